"""The codec that fits a model's tokenizer."""

from __future__ import annotations

from finqa_cli.contracts import ChatCodec, CodecContext
from finqa_cli.errors import ConfigError
from finqa_plugins.chat_codecs import llama, qwen
from finqa_plugins.chat_codecs.config import LlamaCodecConfig, ThinkingCodecConfig
from finqa_plugins.chat_codecs.loading import MODEL_REMEDY, load_tokenizer


def choose_codec(config: ThinkingCodecConfig | None, context: CodecContext) -> ChatCodec:
    """The codec of the family whose turn end the tokenizer has.

    Raises:
        ConfigError: It is of no known family, or thinking is asked of one that has none.
    """
    options = config or ThinkingCodecConfig()
    tokenizer = load_tokenizer(context.model)
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    if qwen.TURN_END in added:
        return qwen.QwenCodec(options, context, tokenizer)
    if llama.TURN_END not in added:
        raise ConfigError(
            f"No codec fits {context.model!r}: its tokenizer has neither {qwen.TURN_END} nor {llama.TURN_END}.",
            remedy=MODEL_REMEDY,
        )
    if options.thinking:
        raise ConfigError(
            f"The Llama model {context.model!r} has no thinking.", remedy="--set codec.options.thinking=false"
        )
    shared = LlamaCodecConfig(call_format=options.call_format, history=options.history)
    return llama.LlamaCodec(shared, context, tokenizer)
