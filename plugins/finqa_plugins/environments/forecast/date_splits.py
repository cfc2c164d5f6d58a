"""Rows by split, and how clusters are divided among splits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.types import DataInfo
from finqa_cli.types.splits import SPLITS
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastData:
    """All rows of a source, by split, in the order of `SPLITS`; no split is empty."""

    info: DataInfo
    rows: Mapping[str, tuple[Row, ...]]


def cluster_of(row: Row, config: ForecastConfig) -> str:
    """What the row shares with others: its ticker, or its date; without them the other one, or else nothing."""
    first, second = (row.ticker, row.date) if config.cluster == "ticker" else (row.date, row.ticker)
    return first or second or row.id


def divide(rows: Sequence[Row], shares: Mapping[str, float], config: ForecastConfig) -> dict[str, tuple[Row, ...]]:
    """Gives each split its share of the clusters, at least one while there are enough; the rest is `train`.

    Which cluster falls where depends on the seed and the names alone; rows keep their order.
    """
    names = {row.id: cluster_of(row, config) for row in rows}
    clusters = sorted(set(names.values()), key=lambda name: _rank(name, config.seed))
    split_of: dict[str, str] = {}
    for split, share in shares.items():
        free = [cluster for cluster in clusters if cluster not in split_of]
        count = min(max(1, round(share * len(clusters))), len(free) - 1) if share else 0
        split_of |= dict.fromkeys(free[:count], split)
    found = {split: tuple(row for row in rows if split_of.get(names[row.id], "train") == split) for split in SPLITS}
    return {split: part for split, part in found.items() if part}


def _rank(cluster: str, seed: int) -> bytes:
    return hashlib.sha256(f"forecast:{seed}:{cluster}".encode()).digest()
