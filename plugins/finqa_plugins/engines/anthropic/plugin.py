"""Registers the `anthropic` engine."""

from __future__ import annotations

from collections.abc import Mapping
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
    from pydantic import ValidationError

    from finqa_cli.errors import AuthenticationError
    from finqa_plugins.engines._http.config import find_key
    from finqa_plugins.engines.anthropic.config import AnthropicConfig

    options = settings["engine"]["options"] if settings["engine"]["name"] == NAME else {}
    if options.get("api_key"):
        return []
    try:
        find_key(AnthropicConfig.model_validate(options))
    except ValidationError as error:
        remedy = f"correct engine.options where they are set; `finqa plugins show {NAME}` lists them"
        return [Check(name=NAME, status="fail", detail=f"wrong options: {error.errors()[0]['msg']}", remedy=remedy)]
    except AuthenticationError as error:
        return [Check(name=NAME, status="fail", detail="needs ANTHROPIC_API_KEY", remedy=error.remedy)]
    return []
