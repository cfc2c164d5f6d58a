"""Puts sampled turns through a chat template without decoding and encoding what they keep.

The template sees a turn as placeholders, one for its reasoning and one for what follows. Where it leaves the turn
whole, the ids that were sampled take its place; where it drops the reasoning, those after it; what stands between turns
is encoded as the template writes it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache

from finqa_cli.contracts import PlayedTurn
from finqa_plugins.codecs.reasoning import THINK_CLOSE, THINK_OPEN, render_reasoning
from finqa_plugins.codecs.shielding import Shield, add_placeholder

Ids = tuple[int, ...]
Reader = Callable[[Ids], tuple[str, Ids | None]]


class Replay:
    """The sampled turns of one rendering."""

    def __init__(self, read: Reader, turn_end: str, reasoning_open: str, contents: dict[str, str], mark: str) -> None:
        """Placeholders are added to `contents`. See `TemplateCodec` for the rest."""
        self._read = read
        self._turn_end = turn_end
        self._reasoning_open = reasoning_open
        self._contents = contents
        self._mark = mark
        self._ids: dict[str, Ids] = {}
        self._turns: list[tuple[str, str, str, Ids]] = []

    def add(self, turn: PlayedTurn) -> str:
        """The content that stands for the turn."""
        said, stop = (turn.completion_ids[:-1], turn.completion_ids[-1:]) if turn.stopped else (turn.completion_ids, ())
        whole = self._place(said)
        text, rest = self._read(said)
        thought, closing, spoken = text.rpartition(THINK_CLOSE)
        if not closing:
            self._turns.append((whole, whole, whole, stop))
            return whole
        words = add_placeholder(spoken.lstrip("\n"), self._contents, self._mark) if rest is None else self._place(rest)
        reasoning = thought.lstrip().removeprefix(THINK_OPEN).strip("\n")
        content = render_reasoning(add_placeholder(reasoning, self._contents, self._mark)) + words
        self._turns.append((whole, content.removeprefix(self._reasoning_open), words, stop))
        return content

    def encode(self, text: str, shield: Shield) -> Ids:
        """[L] ids of what the template rendered."""
        for whole, kept, words, stop in self._turns:
            # What the policy ended the turn with may be another stop id than the template's.
            last = whole if kept in text else words
            text = text.replace(kept, whole)
            if stop and last in self._ids and last + self._turn_end in text:
                text = text.replace(last + self._turn_end, last)
                self._ids[last] += stop
        found: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, self._ids))})", text):
            found += self._ids[piece] if piece in self._ids else shield.encode(piece, self._contents)
        return tuple(found)

    def _place(self, ids: Ids) -> str:
        placeholder = add_placeholder("", self._contents, self._mark)
        self._ids[placeholder] = ids
        return placeholder


def reader(decode: Callable[[Sequence[int]], str]) -> Reader:
    """Reads sampled ids: their text, and those after the last `</think>` and the empty lines behind it.

    The latter are all ids where there is no `</think>`, and None where one id reaches across the end. An episode reads
    its turns again and again, so what was read is remembered.
    """

    @lru_cache(maxsize=1024)
    def read(ids: Ids) -> tuple[str, Ids | None]:
        text = decode(ids)
        closings = text.count(THINK_CLOSE)
        if not closings:
            return text, ids
        at = bisect_left(range(len(ids) + 1), closings, key=lambda end: decode(ids[:end]).count(THINK_CLOSE))
        if decode(ids[:at]).rpartition(THINK_CLOSE)[2].strip("\n"):
            return text, None
        while at < len(ids) and not decode(ids[at : at + 1]).strip("\n"):
            at += 1
        return text, ids[at:]

    return read
