"""Small tokenizers of the supported families: their control tokens, pre-tokenizers and templates' behaviour.

The vocabularies are learned from a few lines; the control tokens, the regular expressions that cut words, Qwen's NFC
normalisation and Llama's automatic `<|begin_of_text|>` are the published ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fixtures.codec_contexts import codec_context

from finqa_cli.types import Message, Prompt, ToolSpec

TEMPLATES = Path(__file__).with_name("templates")
EMBEDDED = Path(__file__).parents[3] / "plugins" / "finqa_plugins" / "policies"

_VISION = ("object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start", "quad_end", "vision_start")
_VISION_MORE = ("vision_end", "vision_pad", "image_pad", "video_pad")
_CODE = ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")
_QWEN_SPECIAL = tuple(f"<|{name}|>" for name in ("endoftext", "im_start", "im_end", *_VISION, *_VISION_MORE))
_QWEN2_5_TAGS = ("<tool_call>", "</tool_call>", *(f"<|{name}|>" for name in _CODE))
_QWEN3_TAGS = (*_QWEN2_5_TAGS, "<tool_response>", "</tool_response>", "<think>", "</think>")
_LLAMA_SPECIAL = tuple(
    f"<|{name}|>"
    for name in (
        *("begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"),
        *("finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag"),
    )
)
CONTROL_STRINGS = tuple(dict.fromkeys((*_QWEN_SPECIAL, *_QWEN3_TAGS, *_LLAMA_SPECIAL)))

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LINES = [
    '{"name": "sql_query", "arguments": {"query": "SELECT revenue FROM income_statement WHERE year = 2024"}}',
    "<function=sql_query>\n<parameter=query>\nSELECT a FROM b\n</parameter>\n</function>",
    "You are an analyst. Company: Acme Inc\nQuestion: what was the revenue growth in percent?\n\n\n  12,345 (6.7) %",
    "Caf\u00e9 \u4e2d\u6587 \u20ac 1\u202f234,56 \U0001f600 system user assistant ipython tool_response",
]


@dataclass(frozen=True)
class Case:
    """The codec over one family's tokenizer. `None` for a template stands for the embedded policy.

    `changed` is what is written for what in the template.
    """

    template: str | None
    options: dict[str, Any] = field(default_factory=dict)
    changed: tuple[str, str] | None = None


CASES = {
    "embedded": Case(None),
    "qwen2.5": Case("qwen2_5"),
    "qwen3": Case("qwen3"),
    "qwen3 thinking": Case("qwen3", {"thinking": True}),
    "qwen3-coder": Case("qwen3_coder"),
    "qwen3.5": Case("qwen3_5"),
    "qwen3.5 thinking": Case("qwen3_5", {"thinking": True}),
    "llama3": Case("llama3"),
}
_SAID = "'<|im_start|>assistant\\n' }}\n        {%- if loop"
FORKING = {
    # As DeepSeek-R1's template does: only what follows the reasoning stays.
    "qwen3 forgets": Case(
        "qwen3", {"thinking": True}, ("loop.index0 > asked.last and (loop.last or reasoning)", "false")
    ),
    "qwen3.5 forgets": Case("qwen3_5", {"thinking": True}, ("if loop.index0 > asked.last else ''", "if false else ''")),
    # With thinking off the prompt closes an empty block, which the template leaves out of earlier turns.
    "qwen3 exact": Case("qwen3", {"history": "template"}),
    "qwen3 counts turns": Case("qwen3", {}, (_SAID, _SAID.replace("assistant", "assistant ' ~ loop.index ~ '"))),
    "qwen2.5 drops replies": Case(
        "qwen2_5",
        {},
        (
            "+ message.content + '\\n</tool_response>'",
            "+ (message.content if loop.last else '') + '\\n</tool_response>'",
        ),
    ),
    "llama3 trims replies": Case(
        "llama3", {}, ("message.content | tojson", "(message.content if loop.last else '-') | tojson")
    ),
}
"""Templates that rewrite earlier turns."""
THINKING = [name for name in CASES if "thinking" in name]
LOOK_UP = ToolSpec(
    name="sql_query",
    description="Run \u201cSQL\u201d <here>",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}, "rows": {"type": ["integer", "null"]}},
        "required": ["query"],
    },
)


@cache
def make_tokenizer(template: str) -> Any:
    """A tokenizer of the template's family; cached, so do not change it."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast

    llama = template == "llama3"
    tags = () if llama else _QWEN2_5_TAGS if template == "qwen2_5" else _QWEN3_TAGS
    tokenizer = Tokenizer(models.BPE(ignore_merges=llama))
    words = pre_tokenizers.Split(Regex(_WORDS % ("{1,3}" if llama else "")), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_LINES * 3, trainer)
    special = _LLAMA_SPECIAL if llama else _QWEN_SPECIAL
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in tags])
    if llama:
        begin = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
        tokenizer.post_processor = processors.TemplateProcessing(f"{begin[0]} $A", special_tokens=[begin])
    else:
        tokenizer.normalizer = normalizers.NFC()
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin_of_text|>" if llama else None,
        eos_token="<|eot_id|>" if llama else "<|im_end|>",
        pad_token="<|finetune_right_pad_id|>" if llama else "<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    return fast


def altered(template: str, old: str, new: str) -> Any:
    """The tokenizer of a family with a changed chat template."""
    tokenizer = copy.copy(make_tokenizer(template))
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return tokenizer


def make_codec(case: Case, tokenizer: Any = None) -> Any:
    """The codec of a case, over another tokenizer where one is given."""
    from finqa_plugins.codecs.config import TemplateCodecConfig
    from finqa_plugins.codecs.template_codec import TemplateCodec

    if case.template is None:
        return TemplateCodec(None, codec_context(str(EMBEDDED)))
    tokenizer = tokenizer or (altered(case.template, *case.changed) if case.changed else make_tokenizer(case.template))
    return TemplateCodec(TemplateCodecConfig(**case.options), codec_context(case.template), tokenizer)


@cache
def codec_of(name: str) -> Any:
    """The codec of `CASES[name]` or `FORKING[name]`; cached."""
    return make_codec((CASES | FORKING)[name])


def decode(codec: Any, ids: Sequence[int]) -> str:
    """The text of the ids, control tokens included."""
    return str(codec._decode(list(ids)))


def controls(codec: Any, ids: Sequence[int]) -> list[str]:
    """The control tokens among the ids."""
    added = codec._tokenizer.added_tokens_decoder
    return [added[number].content for number in ids if number in added and added[number].content in CONTROL_STRINGS]


def rendered(codec: Any, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool = True) -> str:
    """What the tokenizer's own template makes of the messages as they are."""
    chats: list[dict[str, Any]] = []
    for message in messages:
        chats.append({"role": message.role, "content": message.content})
        if message.calls:
            functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
            chats[-1]["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return str(
        codec._tokenizer.apply_chat_template(
            chats,
            tools=[tool.as_function() for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=prompt,
            **codec._template.variables,
        )
    )


def as_prompt(system: str, question: str, *tools: ToolSpec) -> Prompt:
    """A system text, a question and tools."""
    messages = (Message(role="system", content=system), Message(role="user", content=question))
    return Prompt(messages=messages, tools=tools or (LOOK_UP,))
