"""The reasoning block that thinking models open their turns with. Pure text."""

from __future__ import annotations

import re

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
_EMPTY = re.compile(r"<think>\s*</think>\s*")
_BLOCK = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_LEADING = re.compile(r"\s*(<think>)?(.*?)</think>(.*)\Z", re.DOTALL)
_OPENED = re.compile(r"<think>\s*(?:</think>\s*)?\Z")


def split_reasoning(content: str, *, opened: bool) -> tuple[str, str]:
    """Reasoning and words of an assistant's content, as Qwen3's chat template splits them.

    `opened`: the block may lack its opening tag, which prompts of some models bring.
    """
    found = _LEADING.match(content)
    if found is None or not (found[1] or opened):
        return "", content
    return found[2].strip("\n"), found[3].lstrip("\n")


def render_reasoning(reasoning: str) -> str:
    """The block as Qwen3's chat template writes it."""
    return f"<think>\n{reasoning}\n</think>\n\n"


def without_reasoning(text: str) -> str:
    """`text` without its closed reasoning blocks."""
    return _BLOCK.sub("", text)


def without_empty_reasoning(text: str) -> str:
    """`text` without its closed reasoning blocks that say nothing."""
    return _EMPTY.sub("", text)


def opened_reasoning(prompt: str) -> str:
    """What a generation prompt ends in: an opened block, an empty one (thinking is off), or nothing."""
    found = _OPENED.search(prompt)
    return found[0] if found else ""
