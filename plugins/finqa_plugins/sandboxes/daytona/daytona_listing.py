"""Converts between the contracts' terms and Daytona's: parameters of new sandboxes, labels, descriptions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from daytona import (
    AsyncSandbox,
    CreateSandboxFromImageParams,
    CreateSandboxFromSnapshotParams,
    Image,
    Resources,
    SandboxState,
)

from finqa_cli.types import SandboxInfo, ServerSpec
from finqa_plugins.sandboxes._images.image_recipe import BASE_IMAGE, SNAPSHOT_FOLDER
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_create import SANDBOX_LABEL

RUN_LABEL = "finqa.run"
CREATED_LABEL = "finqa.created"
_PRODUCT_LABELS = {"finqa.product": "finqa-cli"}
"""On every sandbox, because Daytona finds sandboxes only by the value of a label, not by its presence."""
_NOT_OURS_TO_SHOW = frozenset({SANDBOX_LABEL, "code-toolbox-language", *_PRODUCT_LABELS})
_STATES = {
    "destroying": "stuck",
    "started": "started",
    "stopped": "stopped",
    "archived": "stopped",
    "paused": "stopped",
    "error": "error",
    "build_failed": "error",
    "unknown": "error",
}


def server_params(
    name: str, image: str, spec: ServerSpec, labels: Mapping[str, str], config: DaytonaSandboxConfig
) -> CreateSandboxFromSnapshotParams:
    """Parameters of a sandbox that runs a server. They contain nothing of this machine's environment."""
    return CreateSandboxFromSnapshotParams(
        snapshot=image,
        env_vars={
            "PYTHONUNBUFFERED": "1",
            **spec.environment,
            "HOST": "0.0.0.0",  # only the server is in its sandbox, and Daytona's proxy connects from outside
            "PORT": str(spec.port),
            # The proxy requires a key, and the requests that it forwards have its name as host.
            "FINQA_REQUIRE_TOKEN": "0",
            "FINQA_ALLOWED_HOSTS": "*",
            **({"FINQA_SNAPSHOT": SNAPSHOT_FOLDER} if spec.snapshot else {}),
        },
        **_common(name, labels, config),
    )


def execution_params(
    name: str, labels: Mapping[str, str], config: DaytonaSandboxConfig
) -> CreateSandboxFromImageParams:
    """Parameters of a sandbox that executes code: a stock image, no network, and root, which can use other user ids."""
    return CreateSandboxFromImageParams(
        image=Image.base(execution_image(config)).entrypoint(["sleep", "infinity"]),
        resources=Resources(cpu=config.cpu, memory=config.memory_gib, disk=config.disk_gib),
        network_block_all=True,
        os_user="root",
        **_common(name, labels, config),
    )


def execution_image(config: DaytonaSandboxConfig) -> str:
    """The image of sandboxes that execute code."""
    return config.execution_image or config.base_image or BASE_IMAGE


def _common(name: str, labels: Mapping[str, str], config: DaytonaSandboxConfig) -> dict[str, Any]:
    return {
        "name": name,
        "labels": {**labels, **_PRODUCT_LABELS, SANDBOX_LABEL: name},
        "public": False,
        "ephemeral": True,
        "auto_stop_interval": config.auto_stop_minutes,
        "ttl_minutes": config.ttl_minutes,
        "target": config.target,
    }


def query_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels for listing only sandboxes of finqa."""
    return {**labels, **_PRODUCT_LABELS}


def is_ours(remote: AsyncSandbox) -> bool:
    """Whether a sandbox is finqa's; no other is ever shown or ended."""
    return RUN_LABEL in remote.labels


def is_gone(remote: AsyncSandbox, delete_timeout_s: float) -> bool:
    """Whether a sandbox is deleted, or has been on its way to it for no longer than a deletion may take.

    One that hangs in `destroying` counts against the account's quota, and only Daytona can remove it.
    """
    state = _state(remote.state)
    if state != "destroying":
        return state == "destroyed"
    changed = _unix_time(remote.updated_at) or _created(remote)
    return not changed or time.time() - changed <= delete_timeout_s


def described(remote: AsyncSandbox) -> SandboxInfo:
    """The description of a sandbox for `finqa sandbox ls`."""
    labels = {name: value for name, value in remote.labels.items() if name not in _NOT_OURS_TO_SHOW}
    return SandboxInfo(
        id=remote.id,
        state=_STATES.get(_state(remote.state), "starting"),
        labels=labels,
        created=_created(remote),
    )


def _created(remote: AsyncSandbox) -> float:
    """Unix seconds: the value of our label, else what Daytona reports; 0.0 if neither can be read."""
    with contextlib.suppress(ValueError):
        return float(remote.labels.get(CREATED_LABEL, ""))
    return _unix_time(remote.created_at)


def _unix_time(text: object) -> float:
    """Unix seconds of a time that Daytona reports; 0.0 if it cannot be read."""
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(str(text)).timestamp()
    return 0.0


def _state(state: SandboxState | str | None) -> str:
    return str(getattr(state, "value", state))
