"""The codec of Llama 3.1, 3.2 and 3.3: headers around roles, tool calls as JSON with `parameters`."""

from __future__ import annotations

from typing import Any

from finqa_cli.contracts import CodecContext
from finqa_plugins.codecs.config import LlamaCodecConfig
from finqa_plugins.codecs.loading import load_tokenizer
from finqa_plugins.codecs.template_codec import Family, TemplateCodec

TURN_END = "<|eot_id|>"


class LlamaCodec(TemplateCodec):
    """See `ChatCodec`. Words before a call are kept where they were sampled; Llama's template would leave them out."""

    def __init__(self, config: LlamaCodecConfig | None, context: CodecContext, tokenizer: Any = None) -> None:
        """Raises ConfigError when the model has no tokenizer, no chat template, or does not speak Llama 3's format."""
        options = config or LlamaCodecConfig()
        family = Family(
            name="Llama 3",
            turn_end=TURN_END,
            other_ends=("<|eom_id|>", "<|end_of_text|>"),
            variables={"date_string": options.date},
        )
        super().__init__(tokenizer or load_tokenizer(context.model), family, options, context)
