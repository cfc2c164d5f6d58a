"""Options of the `openenv` environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class OpenEnvConfig(BaseModel):
    """Which server, which tasks, and how its rewards become one."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)  # variables.N=3

    url: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="Address of a running server for all sessions; no sandbox is started then",
    )
    module: str = Field(
        default="",
        description="The server's ASGI app, package.server.app:app, or the folder of an environment with server/app.py",
    )
    image: str = Field(default="", description="Container image that serves on port 8000")
    python: str = Field(
        default="",
        description="Python of local sandboxes that has the packages of the module, such as .venv/bin/python; "
        "empty: the one of finqa",
    )
    variables: Mapping[str, str] = Field(
        default_factory=dict, description="Environment variables of the server, such as TEXTARENA_ENV_ID; no secrets"
    )
    tasks: int = Field(
        default=200, gt=0, description="Tasks without --data: one for each seed from 0 that the server is reset with"
    )
    reset: Mapping[str, Any] = Field(default_factory=dict, description="Arguments of every reset")
    fields: tuple[str, ...] = Field(
        default=(), description="Fields of a typed observation that the model reads; empty: all but done and reward"
    )
    instructions: str = Field(default="", description="System message; empty: the server's own description")
    discount: float = Field(
        default=1.0, gt=0, le=1, description="Factor per step on later rewards; their sum is the reward"
    )
    solved_at: float | None = Field(
        default=None, description="Sum of rewards from which an episode counts as right; unset: 1"
    )
    plain_text: bool = Field(
        default=True, description="A turn without a call is the action, where actions are one text"
    )
    tool_exceptions: Literal["fault", "model"] = Field(
        default="model",
        description="An exception of the environment in a step, as many raise for an action that is not allowed, is an "
        "error message that the model reads, or a fault of the episode",
    )
    connect_timeout_s: float = Field(default=30.0, gt=0, description="Seconds to open a connection")
    reply_timeout_s: float = Field(default=60.0, gt=0, description="Seconds to wait for one reply")

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        named = [name for name in ("url", "module", "image") if getattr(self, name)]
        if len(named) > 1:
            raise ValueError(f"give one of url, module and image, not {' and '.join(named)}")
        if self.python and not self.module:
            raise ValueError("python is of a module; what runs elsewhere has its own")
        return self
