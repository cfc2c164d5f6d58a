"""Text to token ids and back without the liberties that tokenizers take at the edges of a text.

SentencePiece tokenizers put a space in front of every text that they encode and take one off when they decode; some
added tokens swallow the space around them. That is right for whole texts and wrong for the pieces of an episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.errors import ConfigError

_PROBE = ' two  spaces\n\n{"Name": "Caf\u00e9", "year": -2024.5}\n<|user|>\n'
_CHILDREN = ("normalizers", "pretokenizers", "decoders")


class ExactText:
    """A tokenizer's vocabulary and merges, applied to each piece of text as it stands.

    Attributes:
        size: Number of ids that the tokenizer knows.
    """

    def __init__(self, tokenizer: Any, model: str) -> None:
        """`model` is what errors call it.

        Raises:
            ConfigError: It is no fast tokenizer, or loses or changes plain text.
        """
        from tokenizers import Tokenizer

        if not tokenizer.is_fast:
            raise ConfigError(
                f"The tokenizer of {model!r} has no fast form (tokenizer.json), which codec 'plain' reads.",
                remedy="choose another model: --model FOLDER_OR_HUB_ID",
            )
        facts = json.loads(tokenizer.backend_tokenizer.to_str())
        facts |= {name: _as_it_stands(facts[name]) for name in ("normalizer", "pre_tokenizer", "decoder")}
        facts["added_tokens"] = [token | {"lstrip": False, "rstrip": False} for token in facts["added_tokens"]]
        self._backend = Tokenizer.from_str(json.dumps(facts | {"truncation": None, "padding": None}))
        self.size: int = self._backend.get_vocab_size(with_added_tokens=True)
        read = self.decode(self.encode(_PROBE))
        if read != _PROBE:
            raise ConfigError(
                f"The tokenizer of {model!r} does not keep text as it is: {_PROBE!r} becomes {read!r}.",
                remedy="choose another model: --model FOLDER_OR_HUB_ID",
            )

    def encode(self, text: str) -> list[int]:
        """Ids; strings of added tokens become those tokens."""
        valid = text.encode("utf-8", errors="replace").decode()  # lone surrogates would make the tokenizer raise
        return list(self._backend.encode(valid, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text, added tokens included; ids outside the vocabulary are left out."""
        return str(self._backend.decode([i for i in ids if 0 <= i < self.size], skip_special_tokens=False))


def _as_it_stands(part: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A normalizer, pre-tokenizer or decoder that neither adds nor takes at the edges; None where nothing is left."""
    if part is None or part["type"] in ("Prepend", "Strip"):
        return None
    changed = dict(part)
    for children in _CHILDREN:
        if children in part:
            left = [kept for child in part[children] if (kept := _as_it_stands(child)) is not None]
            if not left:
                return None
            changed[children] = left
    if "prepend_scheme" in part:
        changed["prepend_scheme"] = "never"
    elif "add_prefix_space" in part:
        changed["add_prefix_space"] = False
    return changed
