"""Keeps control-token strings inside contents ordinary text.

A tokenizer turns `<|im_start|>` into the control id wherever it reads it, so a question or a tool reply could
imitate the system. Contents are therefore rendered as placeholders, and contents with such strings are encoded in
pieces, cut inside every control-token string: no piece contains a whole one, and the decoded text is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

Encode = Callable[[str], list[int]]

_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\s]+>")

# Private-use characters: no template contains them, and JSON does not escape them.
_MARKS = range(0xE000, 0xF8FF)


class Shield:
    """Encodes texts around the control-token strings of one tokenizer."""

    def __init__(self, control: Iterable[str], encode: Encode) -> None:
        longest_first = sorted((token for token in control if len(token) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else re.compile(r"(?!)")
        # A lookahead also finds occurrences that overlap each other.
        self._starts = re.compile(f"(?={self._pattern.pattern})")
        self._encode = encode

    def encode(self, text: str, contents: Mapping[str, str]) -> list[int]:
        """Ids of `text` with its placeholders (keys of `contents`) filled in; control tokens only from `text` itself.

        Harmless contents are filled in before encoding, so that the ids are those of the tokenizer on the whole text.
        """
        pieces = _split(text, contents)
        whole = "".join(contents.get(piece, piece) for piece in pieces)
        if len(self._starts.findall(whole)) == len(self._starts.findall(text)):
            return self._encode(whole)
        ids: list[int] = []
        for piece in pieces:
            ids += self.encode_content(contents[piece]) if piece in contents else self._encode(piece)
        return ids

    def encode_content(self, content: str) -> list[int]:
        """Ids of a content by itself, none of them a control token."""
        cuts = [0, *(found.start() + 1 for found in self._starts.finditer(content)), len(content)]
        return [i for start, end in pairwise(cuts) for i in self._encode(content[start:end])]

    def hold(self, value: Any, contents: dict[str, str], mark: str) -> Any:
        """`value` (JSON-like) with every control-token string in it replaced by a placeholder added to `contents`."""
        if isinstance(value, str):
            return self._pattern.sub(lambda found: add_placeholder(found.group(), contents, mark), value)
        if isinstance(value, Mapping):
            return {self._hold_key(key, contents, mark): self.hold(item, contents, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hold(item, contents, mark) for item in value]
        return value

    def _hold_key(self, key: Any, contents: dict[str, str], mark: str) -> Any:
        """Return the key, or a placeholder if a template would turn it into a control token by writing it as a tag."""
        if isinstance(key, str) and self._pattern.fullmatch(f"<{key}>"):
            return add_placeholder(key, contents, mark)
        return self.hold(key, contents, mark)


def control_strings(tokenizer: Any) -> list[str]:
    """Strings that the tokenizer turns into tokens which control the format.

    Qwen3 adds `<tool_call>` as an ordinary token, so `special` alone does not show it.
    """
    added = tokenizer.added_tokens_decoder.values()
    return [token.content for token in added if token.special or _LOOKS_LIKE_CONTROL.fullmatch(token.content)]


def free_mark(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of the texts."""
    used = set().union(*map(set, texts))
    return next(chr(code) for code in _MARKS if chr(code) not in used)


def add_placeholder(content: str, contents: dict[str, str], mark: str) -> str:
    """Adds `content` under a new placeholder, which is returned."""
    placeholder = f"{mark}{len(contents)}{mark}"
    contents[placeholder] = content
    return placeholder


def _split(text: str, contents: Mapping[str, str]) -> list[str]:
    if not contents:
        return [text]
    return [piece for piece in re.split(f"({'|'.join(map(re.escape, contents))})", text) if piece]
