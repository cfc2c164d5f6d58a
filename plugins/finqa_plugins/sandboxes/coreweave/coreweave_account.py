"""The keys of the CoreWeave and W&B accounts, and whether they are set. Imports no SDK: every command may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.types import Check

KEY_VARIABLE = "CWSANDBOX_API_KEY"
OLD_KEY_VARIABLE = "AVIATO_API_KEY"
WANDB_KEY_VARIABLE = "WANDB_API_KEY"
ENTITY_VARIABLE = "WANDB_ENTITY_NAME"


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
