"""What a set of preference pairs is like: how many, how far apart, how many of them are worth something. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

BINS = 10
ROBUST = 10_000
"""So many pairs make DPO robust, says module 08 of the RL-LLM FinQA pipeline; with fewer the report says so."""

_BAR = 40


def pair_statistics(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts, margins with their histogram, and shares of both sides; at least one pair.

    Shares are over pairs; `well_formed` is None where an environment asks for no form.
    """
    margins = [record["margin"] for record in records]
    held_out = sum(record["held_out"] for record in records)
    return {
        "pairs": len(records),
        "train": len(records) - held_out,
        "held_out": held_out,
        "companies": len({record["task"]["cluster"] for record in records}),
        "held_out_companies": len({record["task"]["cluster"] for record in records if record["held_out"]}),
        "fewer_than_robust": len(records) < ROBUST,
        "margin": {
            "smallest": min(margins),
            "mean": statistics.fmean(margins),
            "median": statistics.median(margins),
            "largest": max(margins),
            "histogram": histogram(margins),
        },
        "chosen": _sides([record["chosen"] for record in records]),
        "rejected": _sides([record["rejected"] for record in records]),
        "token_ids": all(_has_ids(record[side]) for record in records for side in ("chosen", "rejected")),
    }


def histogram(values: Sequence[float], bins: int = BINS) -> dict[str, list[float]]:
    """`edges` [bins + 1] from the smallest value to the largest and `counts` [bins]; one bin when all are equal.

    A value on an inner edge belongs to the bin on its right.
    """
    low, high = min(values), max(values)
    if not high > low:
        return {"edges": [low, high], "counts": [len(values)]}
    width = (high - low) / bins
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return {"edges": [low + width * edge for edge in range(bins)] + [high], "counts": list(counts)}


def as_text(report: Mapping[str, Any]) -> str:
    """The report as a person reads it."""
    margin = report["margin"]
    edges, counts = margin["histogram"]["edges"], margin["histogram"]["counts"]
    most = max(counts)
    bars = [
        f"{low:8.3f} to {high:8.3f}  {count:6d}  {'#' * -(-_BAR * count // most)}"
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    small = f"; fewer than the {ROBUST} that make DPO robust" if report["fewer_than_robust"] else ""
    return "\n".join(
        [
            f"{report['pairs']} pairs{small}",
            f"  to train on {report['train']}, held out {report['held_out']} "
            f"({report['held_out_companies']} of {report['companies']} clusters)",
            f"{report['questions']} questions, {report['attempts']} attempts: {report['paired']} questions with pairs, "
            f"{report['single']} with one attempt, {report['no_spread']} without a difference, "
            f"{report['right_missing']} without a right attempt",
            f"left out because both said the same: {report['equal_texts']}",
            *(f"{side}: {_share(report[side])}" for side in ("chosen", "rejected")),
            "",
            f"margin: mean {margin['mean']:.3f}, median {margin['median']:.3f}, "
            f"{margin['smallest']:.3f} to {margin['largest']:.3f}",
            *bars,
            "",
        ]
    )


def _sides(sides: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    formed = [side["well_formed"] for side in sides if side["well_formed"] is not None]
    return {
        "right": sum(map(bool, (side["correct"] for side in sides))) / len(sides),
        "well_formed": sum(formed) / len(formed) if formed else None,
        "reward_mean": statistics.fmean(side["reward"] for side in sides),
    }


def _share(side: Mapping[str, Any]) -> str:
    formed = side["well_formed"]
    form = "" if formed is None else f", {100 * formed:.1f} % well-formed"
    return f"{100 * side['right']:.1f} % right{form}, mean reward {side['reward_mean']:.3f}"


def _has_ids(side: Mapping[str, Any]) -> bool:
    return all(turn.get("completion_token_ids") for turn in side["turns"])
