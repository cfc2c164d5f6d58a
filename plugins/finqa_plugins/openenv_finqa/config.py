"""Options of the `finqa` environment."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FinQAConfig(BaseModel):
    """Time limits of the connection to the environment server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connect_timeout_s: float = Field(default=30.0, gt=0, description="Seconds to open a connection")
    reply_timeout_s: float = Field(default=60.0, gt=0, description="Seconds to wait for one reply")
    session_timeout_s: float = Field(default=1800.0, gt=0, description="Seconds after which an idle session expires")
