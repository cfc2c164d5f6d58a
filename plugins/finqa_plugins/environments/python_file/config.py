"""Options of environments that are Python files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class PythonFileConfig(BaseModel):
    """How the user's code is called."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(default="", description="File or module:attribute; set by --environment")
    attribute: str = Field(
        default="", description="Class or function in the file; empty: its only public class, else its functions"
    )
    arguments: Mapping[str, Any] = Field(
        default_factory=dict, description="Values for parameters of tasks() and of the class, by name"
    )
    tool_exceptions: Literal["fault", "model"] = Field(
        default="fault",
        description="An exception in a tool is a fault of the episode, or an error message that the model reads",
    )
    careless: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Share of the tasks that are demonstrated at random, so that training can improve the policy",
    )
    call_timeout_s: float = Field(default=60.0, gt=0, description="Seconds after which a call into the file is a fault")
