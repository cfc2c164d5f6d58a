"""Registers the `local` sandbox provider and its check."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "local"
ISOLATION = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
"""Program -> the package that brings it."""
PROGRAMS = "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin"


@hookimpl
def register_components() -> list[Component]:
    """The provider. What a server needs that runs here, its environment says."""
    return [
        Component(
            kind="sandbox",
            name=NAME,
            target="finqa_plugins.sandboxes.local.local_provider:LocalSandboxProvider",
            config="finqa_plugins.sandboxes.local.config:LocalSandboxConfig",
            readiness="finqa_plugins.sandboxes.local.plugin:readiness",
            summary="server processes on this machine's loopback; code in bubblewrap sandboxes",
        )
    ]


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether the programs that isolate code are here; see `Component.readiness`. `finqa doctor` tries them."""
    chosen = settings["sandbox"]
    if chosen["name"] == NAME and chosen["options"].get("dangerously_run_unisolated"):
        return []
    missing = [package for program, package in ISOLATION.items() if shutil.which(program, path=PROGRAMS) is None]
    if not missing:
        return []
    names = ", ".join(dict.fromkeys(missing))
    detail = f"executing code (environments code, mbpp) needs {names}"
    return [Check(name=NAME, status="warn", detail=detail, remedy=f"sudo apt-get install {names.replace(',', '')}")]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Whether code can be isolated here, where the environment executes any."""
    if settings["sandbox"]["name"] != NAME or not settings["environment"].get("executes"):
        return []
    from finqa_plugins.sandboxes.local.local_doctor import checks

    return checks(settings["sandbox"]["options"])
