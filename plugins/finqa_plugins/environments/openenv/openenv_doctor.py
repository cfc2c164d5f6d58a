"""What `finqa doctor` says of an OpenEnv environment: the checks of OpenEnv's own `openenv validate`."""

from __future__ import annotations

import json
import os
import shlex
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
"""Seconds for the checks: less than the time limit of doctor."""

VALIDATE = """\
import json, pathlib, sys
sys.modules["gradio"] = None
what, target = sys.argv[1:]
if what == "url":
    from openenv.cli._validation import validate_running_environment
    found = validate_running_environment(target, timeout_s=3.0)["summary"]["failed_criteria"]
else:
    from openenv.validation import CheckStatus, Level, run_validation
    report = run_validation(pathlib.Path(target), max_level=Level.STATIC, skip_build=True)
    failed = [result for result in report.results if result.status is CheckStatus.FAIL]
    found = [f"{result.check_id}: {'; '.join(map(str, result.evidence))}" for result in failed]
print(json.dumps(found))
"""
"""What `openenv validate` does, in the Python of the environment; its own program takes five seconds to start."""

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
        what, target, shown = "url", config.url, ["--url", config.url]
    elif folder is not None and folder.is_dir():
        what, target, shown = "folder", str(folder), [str(folder), "--level", "static", "--skip-build"]
    else:
        return []
    return _validated(config.python or sys.executable, what, target, shlex.join(["openenv", "validate", *shown]))


def _validated(python: str, what: str, target: str, shown: str) -> list[Check]:
    try:
        done = subprocess.run(
            [python, "-c", VALIDATE, what, target],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={name: os.environ[name] for name in INHERITED if name in os.environ},
        )
        problems = [str(problem) for problem in json.loads(done.stdout)]
    except subprocess.TimeoutExpired:
        problems = [f"did not end within {TIMEOUT_S:g} s"]
    except (OSError, ValueError, TypeError):
        return []  # no environment that this version can check, or another version of OpenEnv
    return [
        Check(name="environment", status="warn", detail=f"openenv validate: {problem[:_LONGEST]}", remedy=shown)
        for problem in problems
    ]
