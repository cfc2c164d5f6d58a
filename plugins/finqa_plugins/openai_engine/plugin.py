"""Registers the `openai` engine and its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.extend import Component, hookimpl
from finqa_cli.types import Check

NAME = "openai"


@hookimpl
def register_components() -> list[Component]:
    """One engine, for chat or, on servers that can, for tokens."""
    return [
        Component(
            kind="engine",
            name=NAME,
            remote=True,
            target="finqa_plugins.openai_engine.factory:make_engine",
            config="finqa_plugins.openai_engine.config:OpenAIEngineConfig",
            summary="Any OpenAI-compatible server (vLLM, SGLang, llama.cpp, Ollama, hosted) by its URL; vLLM can train",
        )
    ]


@hookimpl
def doctor_checks(settings: Mapping[str, Any]) -> Sequence[Check]:
    """The server, where it is to be the engine."""
    if settings["engine"]["name"] != NAME:
        return []
    from finqa_plugins.openai_engine.doctor import checks

    return checks(settings)
