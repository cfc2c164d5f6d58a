"""Registers the `local` sandbox provider."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The provider. The server that it starts by default needs openenv-core."""
    return [
        Component(
            kind="sandbox",
            name="local",
            target="finqa_plugins.local_sandbox.provider:LocalSandboxProvider",
            config="finqa_plugins.local_sandbox.config:LocalSandboxConfig",
            summary="server processes on this machine's loopback, many boxes per process",
            requires=("openenv",),
            extra="openenv",
        )
    ]
