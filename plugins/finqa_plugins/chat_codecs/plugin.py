"""Registers the chat codecs."""

from __future__ import annotations

from finqa_cli.extend import Component, hookimpl


@hookimpl
def register_components() -> list[Component]:
    """The codec for models with Qwen's chat format."""
    return [
        Component(
            kind="codec",
            name="qwen3",
            target="finqa_plugins.chat_codecs.qwen:QwenCodec",
            summary="ChatML with <tool_call> JSON, as Qwen2.5, Qwen3 and the embedded policy speak it",
            requires=("transformers", "jinja2"),
            extra="train",
        )
    ]
