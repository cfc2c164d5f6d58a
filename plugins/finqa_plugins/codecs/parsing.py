"""Chooses the format in which a model writes its calls, and parses its turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from finqa_cli.contracts import CallError, CallFormat, CodecContext, NoCallError, Schemas
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, ToolCall

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
_EMPTY = re.compile(r"<think>\s*</think>\s*")
_BLOCK = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_LEADING = re.compile(r"\s*(<think>)?(.*?)</think>(.*)\Z", re.DOTALL)
_OPENED = re.compile(r"<think>\s*(?:</think>\s*)?\Z")


def split_reasoning(content: str, *, opened: bool) -> tuple[str, str]:
    """Reasoning of an assistant's content and the text after it, as Qwen3's chat template splits them.

    `opened`: the block may lack its opening tag, because the generation prompt of some models already contains it.
    """
    found = _LEADING.match(content)
    if found is None or not (found[1] or opened):
        return "", content
    return found[2].strip("\n"), found[3].lstrip("\n")


def render_reasoning(reasoning: str) -> str:
    """The reasoning block as Qwen3's chat template writes it."""
    return f"<think>\n{reasoning}\n</think>\n\n"


def without_reasoning(text: str) -> str:
    """`text` without its closed reasoning blocks."""
    return _BLOCK.sub("", text)


def without_empty_reasoning(text: str) -> str:
    """`text` without its closed reasoning blocks that are empty."""
    return _EMPTY.sub("", text)


def opened_reasoning(prompt: str) -> str:
    """The reasoning block at the end of a generation prompt: opened, empty (thinking is off), or none ("")."""
    found = _OPENED.search(prompt)
    return found[0] if found else ""


def parse_turn(
    text: str, form: CallFormat, schemas: Schemas, *, reasoning: bool = False, several: bool = False
) -> AssistantTurn:
    """Parses an assistant turn; `text` is free of stop tokens.

    Unless `several`, exactly one call is accepted: executing only the first of several would leave the model with calls
    that never get a reply. Calls inside a reasoning block do not count.

    Args:
        text: The sampled text.
        form: Format of the calls.
        schemas: See `CallFormat.find`.
        reasoning: The turn starts inside a reasoning block, which the prompt has opened.
        several: Whether the session accepts several calls in one turn.
    """
    thought, closing, spoken = text.rpartition(THINK_CLOSE)
    try:
        if spoken.lstrip().startswith(THINK_OPEN) or (reasoning and not closing):
            raise CallError(f"The reasoning is not closed: {THINK_CLOSE} is missing.")
        call, *further = form.find_all(spoken, schemas) if several else (form.find(spoken, schemas),)
    except CallError as error:
        return AssistantTurn(text=text, parse_error=str(error), no_call=isinstance(error, NoCallError))
    opening = f"{THINK_OPEN}\n" if reasoning else ""
    words = opening + thought + closing + form.words(spoken)
    return AssistantTurn(text=text, words=words, tool_call=call, further_calls=tuple(further))


def render_calls(calls: Sequence[ToolCall], form: CallFormat) -> str:
    """The calls of one turn, each on lines of its own, as the chat templates of Qwen2.5 to Qwen3-Coder write them."""
    return "\n".join(map(form.render, calls))


_OWN = ("hermes", "llama3_json", "xml")
_LLAMA_CALL = "<|python_tag|>"


def named_format(name: str, context: CodecContext) -> CallFormat:
    """The call format named `name`.

    Raises:
        ConfigError: There is no such format.
    """
    if name not in context.call_formats:
        raise ConfigError(
            f"There is no call format named {name!r}. Known: auto, {', '.join(known_formats(context))}.",
            remedy="--set codec.options.call_format=auto",
        )
    return context.call_formats[name]()


def known_formats(context: CodecContext) -> list[str]:
    """The names of all call formats; those of this plugin come first."""
    return sorted(context.call_formats, key=lambda name: (name not in _OWN, name))


def usual_format(tokenizer: Any) -> str:
    """The format for a template that shows none: Llama 3.1's if the tokenizer has its token, else Hermes' form."""
    return "llama3_json" if _LLAMA_CALL in tokenizer.get_vocab() else "hermes"
