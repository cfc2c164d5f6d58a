"""Registers the `cwsandbox` sandbox provider, its old name `aviato`, their checks and their explanations."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAMES = ("cwsandbox", "aviato")
KEY_VARIABLE = "CWSANDBOX_API_KEY"
OLD_KEY_VARIABLE = "AVIATO_API_KEY"
WANDB_KEY_VARIABLE = "WANDB_API_KEY"
ENTITY_VARIABLE = "WANDB_ENTITY_NAME"


@hookimpl
def register_components() -> list[Component]:
    """The provider under both names."""
    return [
        Component(
            kind="sandbox",
            name="cwsandbox",
            readiness="finqa_plugins.sandboxes.coreweave.plugin:readiness",
            target="finqa_plugins.sandboxes.coreweave.coreweave_provider:CoreWeaveSandboxProvider",
            config="finqa_plugins.sandboxes.coreweave.config:CoreWeaveSandboxConfig",
            summary="sandboxes in the CoreWeave cloud, for environments that execute code",
            requires=("cwsandbox",),
            extra="coreweave",
        ),
        Component(
            kind="sandbox",
            name="aviato",
            readiness="finqa_plugins.sandboxes.coreweave.plugin:aviato_readiness",
            target="finqa_plugins.sandboxes.coreweave.aviato:aviato_provider",
            config="finqa_plugins.sandboxes.coreweave.config:CoreWeaveSandboxConfig",
            summary="the old name of cwsandbox, with the variables of its time",
            requires=("cwsandbox",),
            extra="coreweave",
        ),
    ]


def has_wandb_key(environment: Mapping[str, str]) -> bool:
    """Whether W&B's own search for a key can succeed without asking the user."""
    netrc = Path(environment.get("NETRC") or "~/.netrc").expanduser()
    return bool(environment.get(WANDB_KEY_VARIABLE, "").strip()) or netrc.is_file()


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is a key of CoreWeave, or of W&B where it is that account; see `Component.readiness`."""
    options = _options(settings, "cwsandbox")
    if options.get("auth") == "wandb":
        return [] if has_wandb_key(os.environ) else [_lacks("cwsandbox", WANDB_KEY_VARIABLE)]
    return [] if _has(KEY_VARIABLE) or options.get("api_key") else [_lacks("cwsandbox", KEY_VARIABLE)]


def aviato_readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is one of the keys that `aviato.mapped` takes; see `Component.readiness`."""
    options = _options(settings, "aviato")
    if options.get("auth") != "wandb" and (options.get("api_key") or _has(OLD_KEY_VARIABLE) or _has(KEY_VARIABLE)):
        return []
    if has_wandb_key(os.environ) and (options.get("entity") or _has(ENTITY_VARIABLE)):
        return []
    return [_lacks("aviato", OLD_KEY_VARIABLE)]


def _options(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    chosen = settings["sandbox"]
    options: Mapping[str, Any] = chosen["options"] if chosen["name"] == name else {}
    return options


def _has(variable: str) -> bool:
    return bool(os.environ.get(variable, "").strip())


def _lacks(name: str, variable: str) -> Check:
    return Check(name=name, status="fail", detail=f"needs {variable}", remedy=f"export {variable}=...")


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """The account, where sandboxes are to run there. That the package is installed is checked for every component."""
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
