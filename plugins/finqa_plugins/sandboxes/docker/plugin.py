"""Registers the `docker` sandbox provider and its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "docker"


@hookimpl
def register_components() -> list[Component]:
    """The provider. It needs programs, no Python packages; `readiness` looks for them."""
    return [
        Component(
            kind="sandbox",
            name=NAME,
            target="finqa_plugins.sandboxes.docker.docker_provider:DockerSandboxProvider",
            config="finqa_plugins.sandboxes.docker.config:DockerSandboxConfig",
            readiness="finqa_plugins.sandboxes.docker.config:readiness",
            summary="containers on this machine with docker or podman, for servers in images",
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Check whether containers can be started, if sandboxes are to be containers."""
    if settings["sandbox"]["name"] != NAME:
        return []
    from finqa_plugins.sandboxes.docker.docker_doctor import checks

    return checks(settings)
