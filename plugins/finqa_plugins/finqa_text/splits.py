"""Rows by split: from the names of files, or by company."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.types import DataInfo
from finqa_plugins.finqa_text.rows import Row

ORDER = ("train", "dev", "test")
_WORDS = {"train": "train", "dev": "dev", "val": "dev", "valid": "dev", "validation": "dev", "test": "test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """All rows of a source, by split, in the order of `ORDER`; no split is empty."""

    info: DataInfo
    rows: Mapping[str, tuple[Row, ...]]


def split_of_name(path: Path) -> str:
    """The split that a file's name speaks of (`test.json`, `finqa_dev.jsonl`), or nothing.

    A name with the word `test` is test data whatever else it says: taking test rows for training data cannot be mended.
    """
    words = {_WORDS[word] for word in re.split(r"[^a-z]+", path.stem.lower()) if word in _WORDS}
    return next((split for split in reversed(ORDER) if split in words), "")


def divide(rows: Sequence[Row], shares: Mapping[str, float], seed: int) -> dict[str, tuple[Row, ...]]:
    """Gives each split its share of the companies, at least one while there are enough; the rest is `train`.

    Which company falls where depends on the seed and the names alone; rows keep their order.
    """
    companies = sorted({row.company for row in rows}, key=lambda name: _rank(name, seed))
    split_of: dict[str, str] = {}
    for split, share in shares.items():
        free = [company for company in companies if company not in split_of]
        count = min(max(1, round(share * len(companies))), len(free) - 1) if share else 0
        split_of |= dict.fromkeys(free[:count], split)
    found = {split: tuple(row for row in rows if split_of.get(row.company, "train") == split) for split in ORDER}
    return {split: part for split, part in found.items() if part}


def _rank(company: str, seed: int) -> bytes:
    return hashlib.sha256(f"finqa-text:{seed}:{company}".encode()).digest()
