"""Options of the `cwsandbox` sandbox provider, and whether there is a key. No SDK is imported: any command may ask."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from finqa_cli.errors import AuthenticationError
from finqa_cli.types import Check

KEY_VARIABLE = "CWSANDBOX_API_KEY"
OLD_KEY_VARIABLE = "AVIATO_API_KEY"
WANDB_KEY_VARIABLE = "WANDB_API_KEY"
ENTITY_VARIABLE = "WANDB_ENTITY_NAME"
PROJECT_VARIABLE = "WANDB_PROJECT_NAME"


class CoreWeaveSandboxConfig(BaseModel):
    """Options for creating and ending sandboxes. The service ends a forgotten sandbox after `max_lifetime_s`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    auth: Literal["api_key", "wandb"] = Field(default="api_key", description="Account: CoreWeave's key or W&B's")
    api_key: SecretStr | None = Field(default=None, description="CoreWeave's key (default: CWSANDBOX_API_KEY)")
    entity: str | None = Field(
        default=None, description="W&B entity that the sandboxes belong to (default: W&B's settings)"
    )
    project: str | None = Field(default=None, description="W&B project to which the sandboxes are assigned")
    container_image: str = Field(default="python:3.11", min_length=1, description="Image with python3, 3.11 or newer")
    cpu: float = Field(default=1.0, gt=0, description="CPUs of a sandbox")
    memory_mib: int = Field(default=1024, ge=128, description="Memory of a sandbox in MiB")
    network: bool = Field(default=False, description="Whether a sandbox may reach the network")
    placement: Literal["auto", "serverless", "cks"] = Field(
        default="auto",
        description="Where sandboxes run: CoreWeave's own pool or your cluster; auto: as configured in the account",
    )
    max_lifetime_s: int = Field(
        default=21_600, ge=60, description="Seconds after which a sandbox that was never removed ends"
    )
    request_timeout_s: float = Field(default=30.0, gt=0, description="Timeout of a response of the service, in seconds")
    create_timeout_s: float = Field(
        default=120.0, gt=0, description="Timeout until the service accepts a sandbox, in seconds"
    )
    start_timeout_s: float = Field(
        default=300.0, gt=0, description="Timeout until an accepted sandbox runs, in seconds"
    )
    delete_timeout_s: float = Field(
        default=60.0, gt=0, description="Timeout until a removed sandbox has ended, in seconds"
    )


def has_wandb_key(environment: Mapping[str, str]) -> bool:
    """Whether W&B's own search for a key can succeed without asking the user."""
    netrc = Path(environment.get("NETRC") or "~/.netrc").expanduser()
    return bool(environment.get(WANDB_KEY_VARIABLE, "").strip()) or netrc.is_file()


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is a key of the account, CoreWeave's or W&B's; see `Component.readiness`."""
    options = _options(settings, "cwsandbox")
    if options.get("auth") == "wandb":
        return [] if has_wandb_key(os.environ) else [_lacks("cwsandbox", WANDB_KEY_VARIABLE)]
    return [] if _has(KEY_VARIABLE) or options.get("api_key") else [_lacks("cwsandbox", KEY_VARIABLE)]


def aviato_readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is one of the keys that `mapped` reads; see `Component.readiness`."""
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


def mapped(config: CoreWeaveSandboxConfig, environment: Mapping[str, str]) -> CoreWeaveSandboxConfig:
    """Converts Aviato's variables to options: AVIATO_API_KEY first, else W&B's key with entity and project.

    Options that are set have priority, and CWSANDBOX_API_KEY has priority over W&B's key.

    Raises:
        AuthenticationError: There is no key; or it is W&B's, and WANDB_ENTITY_NAME, which was required, is missing.
    """

    def value(name: str) -> str:
        return environment.get(name, "").strip()

    if config.auth == "api_key":
        if config.api_key is not None:
            return config
        if value(OLD_KEY_VARIABLE):
            return config.model_copy(update={"api_key": SecretStr(value(OLD_KEY_VARIABLE))})
        if value(KEY_VARIABLE):
            return config
        if not has_wandb_key(environment):
            raise AuthenticationError(
                f"No key for aviato: neither {OLD_KEY_VARIABLE} nor {KEY_VARIABLE} nor a key of W&B is set.",
                remedy=f"export {KEY_VARIABLE}=... with a key of your CoreWeave organisation, and --sandbox cwsandbox",
            )
    entity, project = config.entity or value(ENTITY_VARIABLE), config.project or value(PROJECT_VARIABLE)
    if not entity:
        raise AuthenticationError(
            f"{OLD_KEY_VARIABLE} is not set, and W&B's key needs {ENTITY_VARIABLE}, which is not set either.",
            remedy=f"export {OLD_KEY_VARIABLE}=..., or export {ENTITY_VARIABLE}=... with the owner of the W&B key",
        )
    return config.model_copy(update={"auth": "wandb", "entity": entity, "project": project or None})
