"""Daytona's sandboxes in our terms."""

from __future__ import annotations

import contextlib
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
"""On every sandbox, since Daytona finds sandboxes by a label's value only, not by its presence."""
_NOT_OURS_TO_SHOW = frozenset({SANDBOX_LABEL, "code-toolbox-language", *_PRODUCT_LABELS})
_GONE = frozenset({"destroyed", "destroying"})
_STATES = {
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
    """What Daytona is asked for to run a server. Nothing of this machine's environment is in it."""
    return CreateSandboxFromSnapshotParams(
        snapshot=image,
        env_vars={
            "PYTHONUNBUFFERED": "1",
            **spec.environment,
            "HOST": "0.0.0.0",  # the server is alone in its sandbox, and the sandbox's proxy comes from outside
            "PORT": str(spec.port),
            # That proxy asks for a key, and requests that it lets through name it as their host.
            "FINQA_REQUIRE_TOKEN": "0",
            "FINQA_ALLOWED_HOSTS": "*",
            **({"FINQA_SNAPSHOT": SNAPSHOT_FOLDER} if spec.snapshot else {}),
        },
        **_common(name, labels, config),
    )


def execution_params(
    name: str, labels: Mapping[str, str], config: DaytonaSandboxConfig
) -> CreateSandboxFromImageParams:
    """What Daytona is asked for to execute code: a stock image, no network, and root to have other users from."""
    return CreateSandboxFromImageParams(
        image=Image.base(execution_image(config)).entrypoint(["sleep", "infinity"]),
        resources=Resources(cpu=config.cpu, memory=config.memory_gib, disk=config.disk_gib),
        network_block_all=True,
        os_user="root",
        **_common(name, labels, config),
    )


def execution_image(config: DaytonaSandboxConfig) -> str:
    """What sandboxes start from in which code is executed."""
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
    """What to ask the list for, so that it contains sandboxes of this product only."""
    return {**labels, **_PRODUCT_LABELS}


def is_ours(remote: AsyncSandbox) -> bool:
    """True for sandboxes of this product; no other is ever shown or ended."""
    return RUN_LABEL in remote.labels


def is_gone(remote: AsyncSandbox) -> bool:
    """True for a sandbox that is deleted or being deleted."""
    return _state(remote.state) in _GONE


def described(remote: AsyncSandbox) -> SandboxInfo:
    """A sandbox as `finqa sandbox ls` shows it."""
    labels = {name: value for name, value in remote.labels.items() if name not in _NOT_OURS_TO_SHOW}
    return SandboxInfo(
        id=remote.id,
        state=_STATES.get(_state(remote.state), "starting"),
        labels=labels,
        created=_created(remote),
    )


def _created(remote: AsyncSandbox) -> float:
    """Unix seconds: what we wrote, else what Daytona reports; 0.0 when neither can be read."""
    with contextlib.suppress(ValueError):
        return float(remote.labels.get(CREATED_LABEL, ""))
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(str(remote.created_at)).timestamp()
    return 0.0


def _state(state: SandboxState | str | None) -> str:
    return str(getattr(state, "value", state))
