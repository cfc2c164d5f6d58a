"""Options of environments of other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class LibraryConfig(BaseModel):
    """Which environment is used, and in which interpreter it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: Literal["verifiers", "inspect"] = Field(default="verifiers", description="Set by --environment")
    source: str = Field(default="", description="Name, or file and task; set by --environment")
    arguments: Mapping[str, Any] = Field(
        default_factory=dict, description="Arguments of load_environment() or of the task, by name"
    )
    python: Path | None = Field(
        default=None, description="Interpreter with the library and the environment; default: that of finqa"
    )
    divide: bool = Field(
        default=False,
        description="Divide all tasks into train, dev and test by a hash, instead of the library's splits",
    )
    solved_at: float = Field(default=1.0, description="Score from which an episode counts as right")
    call_timeout_s: float = Field(
        default=120.0, gt=0, description="Seconds after which a tool, a reply or a score is a fault"
    )
