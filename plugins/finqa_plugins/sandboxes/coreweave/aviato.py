"""The `aviato` provider: the name that `cwsandbox` had before 2026-02-27, with the variables of that time."""

from __future__ import annotations

import os
from collections.abc import Mapping

import structlog
from pydantic import SecretStr

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import AuthenticationError
from finqa_plugins.sandboxes.coreweave.config import (
    ENTITY_VARIABLE,
    KEY_VARIABLE,
    OLD_KEY_VARIABLE,
    CoreWeaveSandboxConfig,
    has_wandb_key,
)
from finqa_plugins.sandboxes.coreweave.coreweave_provider import CoreWeaveSandboxProvider

log = structlog.get_logger(__name__)

PROJECT_VARIABLE = "WANDB_PROJECT_NAME"


def aviato_provider(config: CoreWeaveSandboxConfig | None, context: SandboxContext) -> CoreWeaveSandboxProvider:
    """The provider, told what the old variables say.

    Raises:
        AuthenticationError: The key is W&B's, and WANDB_ENTITY_NAME is missing.
    """
    log.warning(
        "aviato is the old name of cwsandbox and will be removed", instead=f"--sandbox cwsandbox and {KEY_VARIABLE}"
    )
    return CoreWeaveSandboxProvider(mapped(config or CoreWeaveSandboxConfig(), os.environ), context)


def mapped(config: CoreWeaveSandboxConfig, environment: Mapping[str, str]) -> CoreWeaveSandboxConfig:
    """The options of today for the variables of then: AVIATO_API_KEY first, else W&B's key with entity and project.

    What the options say already wins, and CWSANDBOX_API_KEY over W&B's key.

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
