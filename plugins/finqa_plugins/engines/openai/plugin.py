"""Registers the `openai` engine and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "openai"


@hookimpl
def register_components() -> list[Component]:
    """The `openai` engine, for chat or, if the server supports them, token ids."""
    return [
        Component(
            kind="engine",
            name=NAME,
            remote=True,
            target="finqa_plugins.engines.openai.openai_engine:make_engine",
            config="finqa_plugins.engines.openai.config:OpenAIEngineConfig",
            readiness="finqa_plugins.engines.openai.plugin:readiness",
            summary="Any OpenAI-compatible server (vLLM, SGLang, llama.cpp, Ollama, hosted) by its URL; vLLM can train",
        )
    ]


def readiness(settings: Mapping[str, Any]) -> list[Check]:
    """Whether there is a key for every address that needs one; see `Component.readiness`."""
    from finqa_plugins.engines._http.key_checks import key_checks
    from finqa_plugins.engines.openai.config import OpenAIEngineConfig

    another = ", or --set engine.options.base_url=... of a server that needs no key"
    return key_checks(NAME, settings, OpenAIEngineConfig, addresses=lambda config: config.addresses, another=another)


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """Checks of the server, if the engine is `openai`."""
    if settings["engine"]["name"] != NAME:
        return []
    from finqa_plugins.engines._http.server_checks import server_checks
    from finqa_plugins.engines.openai.config import OpenAIEngineConfig

    return server_checks(NAME, settings, OpenAIEngineConfig, addresses=lambda config: config.addresses)
