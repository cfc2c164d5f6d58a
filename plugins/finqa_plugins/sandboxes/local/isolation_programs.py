"""The programs of this machine that isolate code, and whether they are installed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from finqa_cli.types import Check

ISOLATION = {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}
"""Program -> the package that brings it."""
PROGRAMS = "/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin"


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether the programs that isolate code are here; see `Component.readiness`. `finqa doctor` tries them."""
    chosen = settings["sandbox"]
    if chosen["name"] == "local" and chosen["options"].get("dangerously_run_unisolated"):
        return []
    missing = [package for program, package in ISOLATION.items() if shutil.which(program, path=PROGRAMS) is None]
    if not missing:
        return []
    names = ", ".join(dict.fromkeys(missing))
    detail = f"executing code (environments code, mbpp) needs {names}"
    return [Check(name="local", status="warn", detail=detail, remedy=f"sudo apt-get install {names.replace(',', '')}")]
