"""Registers the `finqa-text` environment."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The `finqa-text` environment. It runs in this process and needs no extra packages."""
    return [
        Component(
            kind="environment",
            snapshotless=True,
            sandboxless=True,
            policy="embedded-text",
            clustered_by="company",
            name="finqa-text",
            target="finqa_plugins.environments.finqa_text.text_environment:FinQATextEnvironment",
            config="finqa_plugins.environments.finqa_text.config:FinQATextConfig",
            verdict="finqa_plugins.environments.finqa_text.text_verdict:ProgramVerdictReward",
            summary="original FinQA in one turn: a report page with its table, answered with a program (--data FILE)",
        )
    ]
