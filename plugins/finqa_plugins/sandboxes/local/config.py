"""Options of the `local` sandbox provider, and whether the programs that isolate code are installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.types import Check

ISOLATION = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
"""Each program and the system package that contains it."""
PROGRAMS = "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin"


class LocalSandboxConfig(BaseModel):
    """Options for spreading logical sandboxes over server processes, and for executing code of a policy.

    One server process of finqa serves about 1,200 tool calls a second, so 64 sandboxes use little of it. Beyond
    `processes` times `sandboxes_per_process`, each process gets more sandboxes; none is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sandboxes_per_process: int = Field(
        default=64, ge=1, description="Sandboxes per server process before another one is started"
    )
    processes: int = Field(
        default_factory=lambda: max(2, os.cpu_count() or 1),
        ge=1,
        description="Maximum number of server processes (default: number of cores, at least two); two from the "
        "second sandbox on",
    )
    commands: int = Field(
        default_factory=lambda: 4 * (os.cpu_count() or 1),
        ge=1,
        description="Maximum number of servers that are started by a command, such as those of OpenEnv; each "
        "sandbox is one server (default: four per core)",
    )
    start_timeout_s: float = Field(default=120.0, gt=0, description="Timeout until a server is healthy, in seconds")
    stop_timeout_s: float = Field(default=3.0, gt=0, description="Seconds between SIGTERM and SIGKILL")
    executions_at_once: int = Field(
        default_factory=lambda: os.cpu_count() or 1,
        ge=1,
        description="Maximum number of simultaneous executions of code (default: number of cores); waiting time "
        "does not count",
    )
    python: str = Field(
        default="",
        description="Python that executes code (default: finqa's if the sandbox can read it, else the system's)",
    )
    dangerously_run_unisolated: bool = Field(
        default=False, description="Execute code that a policy wrote without isolation: it can read and send your files"
    )


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether the programs that isolate code are installed; see `Component.readiness`. `finqa doctor` tries them."""
    chosen = settings["sandbox"]
    if chosen["name"] == "local" and chosen["options"].get("dangerously_run_unisolated"):
        return []
    missing = [package for program, package in ISOLATION.items() if shutil.which(program, path=PROGRAMS) is None]
    if not missing:
        return []
    names = ", ".join(dict.fromkeys(missing))
    detail = f"executing code (environments code, mbpp) needs {names}"
    return [Check(name="local", status="warn", detail=detail, remedy=f"sudo apt-get install {names.replace(',', '')}")]
