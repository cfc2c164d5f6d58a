"""Options of the `finqa` environment, and what its server needs on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from finqa_cli.grading import Grader, versioned
from finqa_cli.types import Check
from finqa_plugins.environments._openenv.installed import REINSTALL, overwritten

OPENENV = "openenv"
SERVER_NEEDS = (OPENENV, "httptools")
"""Import names that the server needs; the extra `openenv` installs them."""

_OF_THE_SERVER = ("session_timeout_s", "hints", "joins", "grader", "asked_again", "pandas")


class FinQAConfig(BaseModel):
    """Which environment server is used, the connection to it, and the options of servers in sandboxes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    connect_timeout_s: float = Field(default=30.0, gt=0, description="Seconds to open a connection")
    reply_timeout_s: float = Field(default=60.0, gt=0, description="Seconds to wait for one reply")
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
    max_deals: int = Field(
        default=0,
        ge=0,
        description="Maximum resets until a server that assigns questions at random returns the requested one; 0: "
        "twice the number of questions",
    )
    session_timeout_s: float = Field(default=1800.0, gt=0, description="Seconds after which an idle session expires")
    hints: bool = Field(
        default=False,
        description="Error messages for common SQL mistakes end with a line of advice; an easier task than OpenEnv's",
    )
    joins: bool = Field(
        default=False,
        description="Queries can join all tables of a company; in OpenEnv a query can use only the table that it names",
    )
    grader: Annotated[Grader, AfterValidator(versioned)] = Field(
        default="openenv",
        description="Grading profile: 'openenv' has OpenEnv's rules; 'strict' accepts exactly one value, in any "
        "common notation; 'strict-1' and 'strict-3' are its versions, and 'strict' is 'strict-3'; 'judge' asks a model "
        "about answers that 'strict' cannot read, see docs/judge.md",
    )

    asked_again: int = Field(
        default=2,
        ge=0,
        description="With graders 'strict-3' and 'judge': how often an answer that cannot be read is returned with the "
        "reason, which costs a step; the next one is graded as it is",
    )
    prompt_file: Path | None = Field(
        default=None,
        description="Prompt instead of finqa's: a text file is the system message; a .toml file has the templates "
        "system and user, which may use {{ company }}, {{ question }}, {{ id }} and {{ tools }}",
    )
    tools: Literal["own", "server"] = Field(
        default="own",
        description="Descriptions and schemas of the tools: finqa's, or those of the server's tools/list",
    )
    pandas: Literal[2, 3] = Field(
        default=2,
        description="Version of pandas whose get_table_info output is used: with 3, the type of text columns is 'str'",
    )

    @model_validator(mode="after")
    def _a_running_server_has_its_own_options(self) -> Self:
        fields = type(self).model_fields
        changed = [name for name in _OF_THE_SERVER if getattr(self, name) != fields[name].default]
        if self.url and changed:
            raise ValueError(f"with url, {', '.join(changed)} cannot be set: the server at this URL determines them")
        if self.token_env and not self.url:
            raise ValueError("token_env applies to a running server: set url too")
        return self


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Check that the server can run if sandboxes are processes of this machine; see `Component.readiness`."""
    chosen = settings["environment"]
    elsewhere = settings["sandbox"]["name"] != "local" or (chosen["name"] == "finqa" and chosen["options"].get("url"))
    missing = [name for name in SERVER_NEEDS if importlib.util.find_spec(name) is None]
    if elsewhere:
        return []
    if reason := overwritten():
        return [Check(name="environment", status="fail", detail=reason, remedy=REINSTALL)]
    if not missing:
        return []
    detail = f"its server needs {' and '.join(missing)}, which is not installed"
    return [Check(name="environment", status="fail", detail=detail, remedy=f"pip install 'finqa[{OPENENV}]'")]
