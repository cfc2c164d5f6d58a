"""Registers the `cwsandbox` sandbox provider, its old name `aviato`, their checks and their explanations."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAMES = ("cwsandbox", "aviato")


@hookimpl
def register_components() -> list[Component]:
    """The provider under both names."""
    return [
        Component(
            kind="sandbox",
            name="cwsandbox",
            readiness="finqa_plugins.sandboxes.coreweave.config:readiness",
            target="finqa_plugins.sandboxes.coreweave.coreweave_provider:CoreWeaveSandboxProvider",
            config="finqa_plugins.sandboxes.coreweave.config:CoreWeaveSandboxConfig",
            summary="sandboxes in the CoreWeave cloud, for environments that execute code",
            requires=("cwsandbox",),
            extra="coreweave",
        ),
        Component(
            kind="sandbox",
            name="aviato",
            readiness="finqa_plugins.sandboxes.coreweave.config:aviato_readiness",
            target="finqa_plugins.sandboxes.coreweave.coreweave_provider:aviato_provider",
            config="finqa_plugins.sandboxes.coreweave.config:CoreWeaveSandboxConfig",
            summary="former name of cwsandbox, with its former environment variables",
            requires=("cwsandbox",),
            extra="coreweave",
        ),
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Checks of the account, if sandboxes are to run there. That the package is installed is checked elsewhere."""
    if settings["sandbox"]["name"] not in NAMES or importlib.util.find_spec("cwsandbox") is None:
        return []
    from finqa_plugins.sandboxes.coreweave.coreweave_doctor import checks

    return checks(settings)


@hookimpl
def explain_error(error: BaseException) -> str | None:
    """Return the remedy for an uncaught exception of the SDK."""
    if not type(error).__module__.startswith("cwsandbox."):
        return None
    from finqa_plugins.sandboxes.coreweave.coreweave_errors import remedy_of

    return remedy_of(error)
