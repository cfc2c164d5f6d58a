"""Rows by split, and how companies are divided among splits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.types import DataInfo
from finqa_cli.types.splits import SPLITS
from finqa_plugins.environments.finqa_text.text_rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class TextData:
    """All rows of a source, by split, in the order of `SPLITS`; no split is empty."""

    info: DataInfo
    rows: Mapping[str, tuple[Row, ...]]


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
    found = {split: tuple(row for row in rows if split_of.get(row.company, "train") == split) for split in SPLITS}
    return {split: part for split, part in found.items() if part}


def _rank(company: str, seed: int) -> bytes:
    return hashlib.sha256(f"finqa-text:{seed}:{company}".encode()).digest()
