"""The model families that have a codec, and the choice of the one that fits a model's tokenizer."""

from __future__ import annotations

from typing import Any

import structlog

from finqa_cli.contracts import ChatCodec, CodecContext
from finqa_cli.errors import ConfigError
from finqa_plugins.codecs.config import CodecConfig, LlamaCodecConfig, PlainCodecConfig, ThinkingCodecConfig
from finqa_plugins.codecs.loading import load_tokenizer
from finqa_plugins.codecs.plain import PlainCodec
from finqa_plugins.codecs.template_codec import Family, TemplateCodec

log = structlog.get_logger(__name__)

QWEN_TURN_END = "<|im_end|>"
LLAMA_TURN_END = "<|eot_id|>"

_TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "", "parameters": {"type": "object", "properties": {}}},
}


class QwenCodec(TemplateCodec):
    """The codec of ChatML models: Qwen2.5, Qwen3 and the embedded policy.

    Without thinking, turns are written as Qwen3's template writes them with thinking off.
    """

    def __init__(self, config: CodecConfig | None, context: CodecContext, tokenizer: Any = None) -> None:
        """Raises ConfigError when the model has no tokenizer, no chat template, or does not use ChatML."""
        options = config or CodecConfig()
        thinking = isinstance(options, ThinkingCodecConfig) and options.thinking
        family = Family(
            name="Qwen",
            turn_end=QWEN_TURN_END,
            other_ends=("<|endoftext|>",),
            variables={"enable_thinking": thinking},
            thinking=thinking,
        )
        super().__init__(tokenizer or load_tokenizer(context.model), family, options, context)


class LlamaCodec(TemplateCodec):
    """The codec of Llama 3.1, 3.2 and 3.3: headers around roles, tool calls as JSON with `parameters`.

    Text that was sampled before a call is kept; Llama's template would leave it out.
    """

    def __init__(self, config: LlamaCodecConfig | None, context: CodecContext, tokenizer: Any = None) -> None:
        """Raises ConfigError when the model has no tokenizer, no chat template, or does not use Llama 3's format."""
        options = config or LlamaCodecConfig()
        family = Family(
            name="Llama 3",
            turn_end=LLAMA_TURN_END,
            other_ends=("<|eom_id|>", "<|end_of_text|>"),
            variables={"date_string": options.date},
        )
        super().__init__(tokenizer or load_tokenizer(context.model), family, options, context)


def choose_codec(config: ThinkingCodecConfig | None, context: CodecContext) -> ChatCodec:
    """The codec of the family whose turn end the tokenizer has; `plain` if the chat template does not support tools.

    Raises:
        ConfigError: The tokenizer is of an unknown family, or an option is set that the family does not have.
    """
    options = config or ThinkingCodecConfig()
    tokenizer = load_tokenizer(context.model, template=False)
    if not _offers_tools(tokenizer):
        return _plain(options, context, tokenizer)
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    if QWEN_TURN_END in added:
        return QwenCodec(options, context, tokenizer)
    if LLAMA_TURN_END not in added:
        raise ConfigError(
            f"No codec fits {context.model!r}: its chat template has tools, but its tokenizer has neither "
            f"{QWEN_TURN_END} nor {LLAMA_TURN_END}.",
            remedy="--set codec.name=plain, which marks turns with its own text, or another --model",
        )
    _refuse_thinking(options, context)
    shared = LlamaCodecConfig(call_format=options.call_format, history=options.history)
    return LlamaCodec(shared, context, tokenizer)


def _plain(options: ThinkingCodecConfig, context: CodecContext, tokenizer: Any) -> ChatCodec:
    _refuse_thinking(options, context)
    if options.history == "template":
        raise ConfigError(
            f"{context.model!r} has no chat template with tools, which this codec needs.",
            remedy="--set codec.options.history=auto",
        )
    codec = PlainCodec(PlainCodecConfig(call_format=options.call_format), context, tokenizer)
    log.warning(
        "the model has no chat template with tools: codec 'plain' gives it a turn format that it may never have seen",
        model=context.model,
        remedy="finqa sft DEMONSTRATIONS, before anything else",
    )
    return codec


def _refuse_thinking(options: ThinkingCodecConfig, context: CodecContext) -> None:
    if options.thinking:
        raise ConfigError(
            f"The model {context.model!r} does not support thinking.", remedy="--set codec.options.thinking=false"
        )


def _offers_tools(tokenizer: Any) -> bool:
    if not tokenizer.chat_template:
        return False
    chat = [{"role": "user", "content": "question"}]
    try:
        return "look_up" in tokenizer.apply_chat_template(chat, tools=[_TOOL], tokenize=False)
    except Exception:  # a template may raise anything that jinja or its own expressions do
        return False
