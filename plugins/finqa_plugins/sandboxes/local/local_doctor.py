"""What `finqa doctor` reports about executing code on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from finqa_cli.errors import ConfigError
from finqa_cli.types import Check
from finqa_plugins.sandboxes.local.bubblewrap import Isolation
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.control_groups import find_control_groups
from finqa_plugins.sandboxes.local.isolation import find_bare, find_isolation

NAME = "isolation"


def checks(options: Mapping[str, Any]) -> Sequence[Check]:
    """One result. Makes a sandbox and checks it from inside, which takes less than a second."""
    try:
        config = LocalSandboxConfig.model_validate(options)
    except ValidationError:
        return []  # wrong options are reported by the check of the settings
    try:
        if config.dangerously_run_unisolated:
            find_bare(config.python)
            remedy = "leave out --dangerously-run-unisolated, or use --sandbox daytona"
            detail = (
                "code that the policy writes runs WITHOUT isolation, as configured: it can read and send your files"
            )
            return [Check(name=NAME, status="warn", detail=detail, remedy=remedy)]
        return [_found(find_isolation(config.python))]
    except ConfigError as error:
        return [Check(name=NAME, status="fail", detail=error.message, remedy=error.remedy)]


def _found(isolation: Isolation) -> Check:
    of = (
        "a sandbox"
        if find_control_groups()
        else "each process of a sandbox separately, because no control group can be created"
    )
    detail = f"code runs in bubblewrap sandboxes without network, with {isolation.python}; memory is limited for {of}"
    missing = ["system calls are not filtered"] * (not isolation.filtered)
    missing += ["code can create its own user namespaces"] * (not isolation.sealed)
    if missing:
        remedy = "a newer bubblewrap (0.8), not setuid, on x86_64 or aarch64 with seccomp in the kernel"
        return Check(name=NAME, status="warn", detail=f"{detail}; but {' and '.join(missing)}", remedy=remedy)
    return Check(name=NAME, status="ok", detail=detail)
