"""Registers the chat codecs."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl

_PACKAGE = "finqa_plugins.codecs"


@hookimpl
def register_components() -> list[Component]:
    """Registers one codec per model family, the choice among them, and the formats in which models write calls."""
    codecs = {
        "auto": ("model_families:choose_codec", "ThinkingCodecConfig", "codec for the model's tokenizer"),
        "llama3": ("model_families:LlamaCodec", "LlamaCodecConfig", "Llama 3.1 to 3.3: JSON calls with parameters"),
        "plain": (
            "plain:PlainCodec",
            "PlainCodecConfig",
            "roles as text, turns end with the end token: for models without a template, or with a "
            "template without tools",
        ),
        "qwen2.5": (
            "model_families:QwenCodec",
            "CodecConfig",
            "ChatML with <tool_call>, for models without thinking",
        ),
        "qwen3": (
            "model_families:QwenCodec",
            "ThinkingCodecConfig",
            "ChatML with <tool_call> JSON, for Qwen2.5, Qwen3 and the embedded policy; thinking on or off",
        ),
    }
    formats = {
        "hermes": ("json_formats:HermesFormat", "JSON between <tool_call> tags: Qwen2.5, Qwen3, the embedded policy"),
        "llama3_json": ("json_formats:Llama3JsonFormat", "bare JSON with parameters: Llama 3.1 to 3.3"),
        "xml": ("xml_format:XmlFormat", "one tag for each parameter: Qwen3-Coder, Qwen3.5"),
    }
    return [
        *(
            Component(kind="call_format", name=name, target=f"{_PACKAGE}.{target}", summary=summary)
            for name, (target, summary) in formats.items()
        ),
        *(
            Component(
                kind="codec",
                name=name,
                target=f"{_PACKAGE}.{target}",
                config=f"{_PACKAGE}.config:{config}",
                summary=summary,
                requires=("transformers", "jinja2"),
                extra="train",
            )
            for name, (target, config, summary) in codecs.items()
        ),
    ]
