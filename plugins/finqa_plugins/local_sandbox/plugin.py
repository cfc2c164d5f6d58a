"""Registers the `local` sandbox provider and its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "local"


@hookimpl
def register_components() -> list[Component]:
    """The provider. What a server needs that runs here, its environment says."""
    return [
        Component(
            kind="sandbox",
            name=NAME,
            target="finqa_plugins.local_sandbox.provider:LocalSandboxProvider",
            config="finqa_plugins.local_sandbox.config:LocalSandboxConfig",
            summary="server processes on this machine's loopback; code in bubblewrap boxes",
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Whether code can be isolated here, where the environment executes any."""
    if settings["sandbox"]["name"] != NAME or not settings["environment"].get("executes"):
        return []
    from finqa_plugins.local_sandbox.doctor import checks

    return checks(settings["sandbox"]["options"])
