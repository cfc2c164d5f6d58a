"""Registers the chat codecs."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl

_PACKAGE = "finqa_plugins.chat_codecs"


@hookimpl
def register_components() -> list[Component]:
    """One codec per model family, and the choice among them."""
    return [
        _codec("auto", "auto:choose_codec", "ThinkingCodecConfig", "the codec that fits the model's tokenizer"),
        _codec("llama3", "llama:LlamaCodec", "LlamaCodecConfig", "Llama 3.1 to 3.3: JSON calls with parameters"),
        _codec("qwen2.5", "qwen:QwenCodec", "CodecConfig", "ChatML with <tool_call>, for models without thinking"),
        _codec(
            "qwen3",
            "qwen:QwenCodec",
            "ThinkingCodecConfig",
            "ChatML with <tool_call> JSON, as Qwen2.5, Qwen3 and the embedded policy speak it; thinking on or off",
        ),
    ]


def _codec(name: str, target: str, config: str, summary: str) -> Component:
    return Component(
        kind="codec",
        name=name,
        target=f"{_PACKAGE}.{target}",
        config=f"{_PACKAGE}.config:{config}",
        summary=summary,
        requires=("transformers", "jinja2"),
        extra="train",
    )
