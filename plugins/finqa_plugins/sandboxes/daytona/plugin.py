"""Registers the `daytona` sandbox provider, its checks and its explanations."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "daytona"


@hookimpl
def register_components() -> list[Component]:
    """The provider."""
    return [
        Component(
            kind="sandbox",
            name=NAME,
            target="finqa_plugins.sandboxes.daytona.daytona_provider:DaytonaSandboxProvider",
            config="finqa_plugins.sandboxes.daytona.config:DaytonaSandboxConfig",
            summary="sandboxes in the Daytona cloud, hundreds at a time",
            requires=("daytona",),
            extra="daytona",
            readiness="finqa_plugins.sandboxes.daytona.config:readiness",
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Checks of the account, if sandboxes are to run there. That the package is installed is checked elsewhere."""
    if settings["sandbox"]["name"] != NAME or importlib.util.find_spec("daytona") is None:
        return []
    from finqa_plugins.sandboxes.daytona.daytona_doctor import checks

    return checks(settings)


@hookimpl
def explain_error(error: BaseException) -> str | None:
    """Return the remedy for an uncaught exception of the SDK."""
    if not type(error).__module__.startswith("daytona."):
        return None
    from finqa_plugins.sandboxes.daytona.daytona_errors import remedy_of

    return remedy_of(error)
