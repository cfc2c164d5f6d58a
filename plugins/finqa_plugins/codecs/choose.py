"""The choice of the codec that fits a model's tokenizer."""

from __future__ import annotations

from typing import Any

import structlog

from finqa_cli.contracts import ChatCodec, CodecContext
from finqa_cli.errors import ConfigError
from finqa_plugins.codecs.config import AutoCodecConfig, PlainCodecConfig, TemplateCodecConfig
from finqa_plugins.codecs.loading import load_tokenizer
from finqa_plugins.codecs.plain import PlainCodec
from finqa_plugins.codecs.template_codec import TemplateCodec

log = structlog.get_logger(__name__)


def choose_codec(config: AutoCodecConfig | None, context: CodecContext) -> ChatCodec:
    """`template` for a tokenizer with a chat template, else `plain`.

    Raises:
        ConfigError: No episode can follow the chat template, or an option is set that codec `plain` does not have.
    """
    options = config or AutoCodecConfig()
    tokenizer = load_tokenizer(context.model, template=False)
    if not tokenizer.chat_template:
        return _plain(options, context, tokenizer)
    shared = TemplateCodecConfig(**options.model_dump(exclude={"version"}))
    codec = TemplateCodec(shared, context, tokenizer)
    if options.version == 1 and not codec.writes_tools:
        return _plain(options, context, tokenizer)
    return codec


def _plain(options: AutoCodecConfig, context: CodecContext, tokenizer: Any) -> ChatCodec:
    if options.thinking:
        raise ConfigError(
            f"The model {context.model!r} does not support thinking.", remedy="--set codec.options.thinking=false"
        )
    if options.history == "template":
        raise ConfigError(
            f"{context.model!r} has no chat template, which this option needs.",
            remedy="--set codec.options.history=auto",
        )
    codec = PlainCodec(PlainCodecConfig(call_format=options.call_format), context, tokenizer)
    # Log: Codec `plain` is used. A base model learns its format from demonstrations (`finqa sft`).
    log.info("the model has no chat template: turns are marked by roles as text", model=context.model)
    return codec
