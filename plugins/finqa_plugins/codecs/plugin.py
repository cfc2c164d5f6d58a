"""Registers the chat codecs."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl

_PACKAGE = "finqa_plugins.codecs"


@hookimpl
def register_components() -> list[Component]:
    """One codec per model family, the choice among them, and the formats in which models write calls."""
    return [
        *_formats(),
        _codec("auto", "auto_codec:choose_codec", "ThinkingCodecConfig", "the codec that fits the model's tokenizer"),
        _codec("llama3", "llama:LlamaCodec", "LlamaCodecConfig", "Llama 3.1 to 3.3: JSON calls with parameters"),
        _codec(
            "plain",
            "plain:PlainCodec",
            "PlainCodecConfig",
            "roles as text, turns closed by the end token: for models whose template has no tools, or without one",
        ),
        _codec("qwen2.5", "qwen:QwenCodec", "CodecConfig", "ChatML with <tool_call>, for models without thinking"),
        _codec(
            "qwen3",
            "qwen:QwenCodec",
            "ThinkingCodecConfig",
            "ChatML with <tool_call> JSON, as Qwen2.5, Qwen3 and the embedded policy speak it; thinking on or off",
        ),
    ]


def _formats() -> list[Component]:
    formats = {
        "hermes": ("hermes_format:HermesFormat", "JSON between <tool_call> tags: Qwen2.5, Qwen3, the embedded policy"),
        "llama3_json": ("llama3_format:Llama3JsonFormat", "bare JSON with parameters: Llama 3.1 to 3.3"),
        "xml": ("xml_format:XmlFormat", "one tag for each parameter: Qwen3-Coder, Qwen3.5"),
    }
    return [
        Component(kind="call_format", name=name, target=f"{_PACKAGE}.{target}", summary=summary)
        for name, (target, summary) in formats.items()
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
