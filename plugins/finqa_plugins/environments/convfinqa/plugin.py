"""Registers the `convfinqa` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `convfinqa` environment. It runs in this process and needs no extra packages."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            sandboxless=True,
            clustered_by="company",
            name="convfinqa",
            target="finqa_plugins.environments.convfinqa.convfinqa_environment:ConvFinQAEnvironment",
            config="finqa_plugins.environments.convfinqa.config:ConvFinQAConfig",
            summary="ConvFinQA: a dialogue about a report page, each question answered with a program (--data FILE)",
        )
    ]
