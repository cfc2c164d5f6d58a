"""Options of environments that are Python files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.errors import ConfigError


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

    @model_validator(mode="after")
    def _check_file(self) -> Self:
        """Check that a file exists before its environment is compared with a policy or a model is looked for.

        Raises:
            ConfigError: There is no such file.
        """
        if self.source.endswith(".py") and not Path(self.source).expanduser().is_file():
            raise ConfigError(f"There is no file {self.source}.", remedy="give --environment the path of a Python file")
        return self
