"""The codec that fits a model's tokenizer."""

from __future__ import annotations

from typing import Any

import structlog

from finqa_cli.contracts import ChatCodec, CodecContext
from finqa_cli.errors import ConfigError
from finqa_plugins.codecs import llama, plain, qwen
from finqa_plugins.codecs.config import LlamaCodecConfig, PlainCodecConfig, ThinkingCodecConfig
from finqa_plugins.codecs.loading import load_tokenizer

log = structlog.get_logger(__name__)

_TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def choose_codec(config: ThinkingCodecConfig | None, context: CodecContext) -> ChatCodec:
    """The codec of the family whose turn end the tokenizer has; `plain` where its chat template offers no tools.

    Raises:
        ConfigError: It is of no known family, or an option is set that the family does not have.
    """
    options = config or ThinkingCodecConfig()
    tokenizer = load_tokenizer(context.model, template=False)
    if not _offers_tools(tokenizer):
        return _plain(options, context, tokenizer)
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    if qwen.TURN_END in added:
        return qwen.QwenCodec(options, context, tokenizer)
    if llama.TURN_END not in added:
        raise ConfigError(
            f"No codec fits {context.model!r}: its chat template has tools, but its tokenizer has neither "
            f"{qwen.TURN_END} nor {llama.TURN_END}.",
            remedy="--set codec.name=plain, which marks turns by text of its own, or another --model",
        )
    _refuse_thinking(options, context)
    shared = LlamaCodecConfig(call_format=options.call_format, history=options.history)
    return llama.LlamaCodec(shared, context, tokenizer)


def _plain(options: ThinkingCodecConfig, context: CodecContext, tokenizer: Any) -> ChatCodec:
    _refuse_thinking(options, context)
    if options.history == "template":
        raise ConfigError(
            f"{context.model!r} has no chat template with tools, so there is none to follow.",
            remedy="--set codec.options.history=auto",
        )
    codec = plain.PlainCodec(PlainCodecConfig(call_format=options.call_format), context, tokenizer)
    log.warning(
        "the model has no chat template with tools: codec 'plain' gives it a turn format that it may never have seen",
        model=context.model,
        remedy="finqa sft with demonstrations, before anything else",
    )
    return codec


def _refuse_thinking(options: ThinkingCodecConfig, context: CodecContext) -> None:
    if options.thinking:
        raise ConfigError(f"The model {context.model!r} has no thinking.", remedy="--set codec.options.thinking=false")


def _offers_tools(tokenizer: Any) -> bool:
    if not tokenizer.chat_template:
        return False
    chat = [{"role": "user", "content": "question"}]
    try:
        return "look_up" in tokenizer.apply_chat_template(chat, tools=[_TOOL], tokenize=False)
    except Exception:  # a template may raise anything that jinja or its own expressions do
        return False
