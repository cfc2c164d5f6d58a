"""Options of the `openenv` environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _with_texts(variables: Any) -> Any:
    """Convert whole numbers of a settings file to text; another number may have lost digits, such as `1.10`."""
    if not isinstance(variables, Mapping):
        return variables
    return {name: str(value) if type(value) is int else value for name, value in variables.items()}


class OpenEnvConfig(BaseModel):
    """Which server and tasks are used, and how rewards of steps are combined."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        description="URL of a running server for all sessions, instead of sandboxes",
    )
    token_env: str = Field(
        default="",
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description="Name of the environment variable with the bearer token of the server at url",
    )
    module: str = Field(
        default="",
        description="The server's ASGI app, package.server.app:app, or the folder of an environment with server/app.py",
    )
    image: str = Field(default="", description="Container image that serves on port 8000, with --sandbox docker")
    recipe: Literal["auto", "dockerfile", "packages"] = Field(
        default="auto",
        description="How providers build an image of the folder: with its own Dockerfile, or by installing its "
        "project with pip; auto: with the Dockerfile if there is one",
    )
    python: str = Field(
        default="",
        description="Python interpreter of local sandboxes with the packages of the module, such as "
        ".venv/bin/python; empty: that of finqa",
    )
    variables: Annotated[Mapping[str, str], BeforeValidator(_with_texts)] = Field(
        default_factory=dict, description="Environment variables of the server, such as TEXTARENA_ENV_ID; no secrets"
    )
    tasks: Annotated[int, Field(gt=0)] | Literal["auto", "server"] = Field(
        default="auto",
        description="Tasks without --data: `server`: those that the server lists (openenv 0.4.1 or newer); a number: "
        "the server is reset with the seeds from 0; auto: the server's list if it has one, else 200 seeds",
    )
    reset: Mapping[str, Any] = Field(default_factory=dict, description="Arguments of every reset")
    fields: tuple[str, ...] = Field(
        default=(), description="Fields of a typed observation that the model reads; empty: all but done and reward"
    )
    observation_chars: int | None = Field(
        default=None,
        ge=40,
        description="Maximum characters of an observation; the middle of a longer one, such as a traceback, is "
        "removed; unset: all",
    )
    instructions: str = Field(default="", description="System message; empty: the server's own description")
    discount: float = Field(
        default=1.0, gt=0, le=1, description="Factor per step on later rewards; their sum is the reward"
    )
    solved_at: float | None = Field(
        default=None, description="Sum of rewards from which an episode counts as right; unset: 1"
    )
    plain_text: bool = Field(
        default=True, description="A turn without a tool call is an action, if actions are one text"
    )
    tool_exceptions: Literal["fault", "model"] = Field(
        default="model",
        description="Effect of an exception in a step, which many environments raise for an action that is not "
        "allowed: an error message to the model, or a fault of the episode",
    )
    connect_timeout_s: float = Field(default=30.0, gt=0, description="Seconds to open a connection")
    max_reply_mb: float = Field(default=1.0, gt=0, le=1024, description="Maximum size of one reply, in MiB")
    reply_timeout_s: float = Field(default=60.0, gt=0, description="Seconds to wait for one reply")

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        named = [name for name in ("url", "module", "image") if getattr(self, name)]
        if len(named) > 1:
            raise ValueError(f"give one of url, module and image, not {' and '.join(named)}")
        if self.token_env and not self.url:
            raise ValueError("token_env applies to a running server: set url too")
        if self.python and not self.module:
            raise ValueError("python applies to a module; other servers have their own")
        return self
