"""What `finqa doctor` says of an OpenEnv environment: the checks of OpenEnv's own `openenv validate`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finqa_cli.types import Check
from finqa_plugins.environments._openenv.installed import REINSTALL, overwritten
from finqa_plugins.environments.openenv.config import OpenEnvConfig
from finqa_plugins.environments.openenv.server_tasks import INHERITED

TIMEOUT_S = 15.0
"""Seconds for `openenv validate`: less than the time limit of doctor. The program itself needs some to start."""

_LONGEST = 300


def checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Return what OpenEnv finds wrong with a folder or with a running server; empty if it finds nothing.

    Nothing is found of images, of servers with a token, and where no `openenv` of version 0.10 is installed.
    """
    try:
        config = OpenEnvConfig.model_validate(settings["environment"]["options"])
    except ValidationError:  # the check of the settings says so
        return []
    own = config.module and not config.python and settings["sandbox"]["name"] == "local"
    if own and (reason := overwritten()):
        return [Check(name="environment", status="fail", detail=reason, remedy=REINSTALL)]
    folder = Path(config.module).expanduser() if config.module else None
    if config.url and not config.token_env:
        target = ["--url", config.url, "--timeout", "3"]
    elif folder is not None and folder.is_dir():
        target = [str(folder), "--level", "static", "--skip-build"]
    else:
        return []
    python = Path(config.python or sys.executable).expanduser()
    program = shutil.which("openenv", path=str(python.parent))
    return [] if program is None else _validated(program, target)


def _validated(program: str, target: list[str]) -> list[Check]:
    shown = shlex.join(["openenv", "validate", *target])
    try:
        done = subprocess.run(
            [program, "validate", *target, "--json"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={name: os.environ[name] for name in INHERITED if name in os.environ},
        )
        report = json.loads(done.stdout)
        problems = [
            f"{result['check_id']}: {'; '.join(map(str, result['evidence']))}"
            for result in report.get("results", ())
            if result["status"] == "fail"
        ]
        problems += map(str, report.get("summary", {}).get("failed_criteria", ()))
    except subprocess.TimeoutExpired:
        problems = [f"did not end within {TIMEOUT_S:g} s"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # no environment that this version can check, or another version
    return [
        Check(name="environment", status="warn", detail=f"openenv validate: {problem[:_LONGEST]}", remedy=shown)
        for problem in problems
    ]
