"""Registers the `anthropic` engine and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "anthropic"


@hookimpl
def register_components() -> list[Component]:
    """The `anthropic` engine."""
    return [
        Component(
            kind="engine",
            name=NAME,
            remote=True,
            target="finqa_plugins.engines.anthropic.anthropic_engine:make_engine",
            config="finqa_plugins.engines.anthropic.config:AnthropicConfig",
            readiness="finqa_plugins.engines.anthropic.plugin:readiness",
            summary="Claude models by Anthropic's messages API, with tools, reasoning and its cache",
        )
    ]


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is a key; see `Component.readiness`."""
    from finqa_plugins.engines._http.key_checks import key_checks
    from finqa_plugins.engines.anthropic.config import AnthropicConfig

    return key_checks(NAME, settings, AnthropicConfig)


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Checks of the service, if the engine is `anthropic`."""
    if settings["engine"]["name"] != NAME:
        return []
    from finqa_plugins.engines._http.server_checks import server_checks
    from finqa_plugins.engines.anthropic.config import AnthropicConfig

    return server_checks(NAME, settings, AnthropicConfig)
