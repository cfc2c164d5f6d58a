"""The codec of ChatML models: Qwen2.5, Qwen3 and the embedded policy."""

from __future__ import annotations

from typing import Any

from finqa_cli.contracts import CodecContext
from finqa_plugins.codecs.config import CodecConfig, ThinkingCodecConfig
from finqa_plugins.codecs.loading import load_tokenizer
from finqa_plugins.codecs.template_codec import Family, TemplateCodec

TURN_END = "<|im_end|>"


class QwenCodec(TemplateCodec):
    """See `ChatCodec`. Without thinking, turns are written as Qwen3's template writes them with thinking off."""

    def __init__(self, config: CodecConfig | None, context: CodecContext, tokenizer: Any = None) -> None:
        """Raises ConfigError when the model has no tokenizer, no chat template, or does not speak ChatML."""
        options = config or CodecConfig()
        thinking = isinstance(options, ThinkingCodecConfig) and options.thinking
        family = Family(
            name="Qwen",
            turn_end=TURN_END,
            other_ends=("<|endoftext|>",),
            variables={"enable_thinking": thinking},
            thinking=thinking,
        )
        super().__init__(tokenizer or load_tokenizer(context.model), family, options, context)
