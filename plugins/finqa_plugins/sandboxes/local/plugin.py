"""Registers the `local` sandbox provider and its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "local"


@hookimpl
def register_components() -> list[Component]:
    """The provider. The packages that a server needs are named by its environment."""
    return [
        Component(
            kind="sandbox",
            name=NAME,
            target="finqa_plugins.sandboxes.local.local_provider:LocalSandboxProvider",
            config="finqa_plugins.sandboxes.local.config:LocalSandboxConfig",
            readiness="finqa_plugins.sandboxes.local.config:readiness",
            summary="server processes on this machine's loopback; code in bubblewrap sandboxes",
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Check whether code can be isolated here, if the environment executes code."""
    if settings["sandbox"]["name"] != NAME or not settings["environment"].get("executes"):
        return []
    from finqa_plugins.sandboxes.local.local_doctor import checks

    return checks(settings["sandbox"]["options"])
