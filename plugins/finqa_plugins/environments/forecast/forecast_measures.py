"""Measures of forecasts besides accuracy: calibration, accuracy by uncertainty, directions, refusals. Pure.

Sources: Brier, "Verification of forecasts expressed in terms of probability" (1950), for two outcomes; the expected
calibration error of Guo et al., arXiv 1706.04599, equation 3, with ten bins of equal width; log score, Good (1952).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from finqa_cli.contracts import OWN_PREFIX
from finqa_cli.types import Trajectory
from finqa_plugins.environments.forecast.forecast_prompt import QUESTION_TYPES

BINS = 10
BUCKETS = 5
_SURE = 1e-6
"""Confidences are clipped to this distance from 0 and 1, so that log scores are finite."""


@dataclass(frozen=True, slots=True)
class JudgedForecast:
    """One stated confidence, 0 to 1, and whether the answer was right."""

    confidence: float
    correct: bool


def measure(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Compute all measures of the scored attempts; unknown measures are left out, and {} without any attempt.

    `accuracy_by_uncertainty`, `attempts_by_uncertainty`, `confidence_by_uncertainty`, `accuracy_by_confidence`,
    `attempts_by_confidence` and `score_by_type` are groups of measures; bins are named by their bounds.
    """
    parts = [_parts(each) for each in trajectories if each.rewards is not None and not each.status.is_fault]
    if not parts:
        return {}
    judged = [JudgedForecast(each["confidence"], each["correct"] > 0) for each in parts if "confidence" in each]
    by_uncertainty = _binned(
        ((each["uncertainty"], each["correct"]) for each in parts if "uncertainty" in each), BUCKETS
    )
    stated = [each for each in parts if "confidence" in each and "uncertainty" in each]
    stated_by = _binned(((each["uncertainty"], each["confidence"]) for each in stated), BUCKETS)
    simple = {
        "score": "score",
        "answer_tag_rate": "has_answer_tag",
        "refusal_rate": "is_refusal",
        "exact_match": "exact_match",
        "direction_accuracy": "direction_correct",
        "response_words": "response_length",
    }
    means = {name: fmean(values) for name, part in simple.items() if (values := _values(parts, part))}
    by_type = {name: fmean(values) for name in (*QUESTION_TYPES, "fallback") if (values := _values(parts, name))}
    return {
        **means,
        **calibration(judged),
        "confidence_rate": len(judged) / len(parts),
        "score_by_type": by_type,
        **_figures("uncertainty", by_uncertainty),
        **({"confidence_by_uncertainty": {name: fmean(each) for name, each in stated_by.items()}} if stated else {}),
        **_figures("confidence", _binned(((one.confidence, float(one.correct)) for one in judged), BINS)),
    }


def calibration(judged: Sequence[JudgedForecast]) -> dict[str, float]:
    """Compute the calibration of the attempts that stated a confidence; {} without any.

    With q for the confidence of an attempt and c for 1 (right) or 0 (wrong): `brier` is the mean of (q - c)^2; `ece` is
    the mean gap between confidence and accuracy of the bins, weighted by their attempts; `log_score` is the mean of -ln
    of the probability given to what happened, in nats. For all three, lower is better. `confidence` is the mean q, and
    `overconfidence` is the mean q minus the share that is right. With few attempts per bin, chance alone raises `ece`.
    """
    if not judged:
        return {}
    right = fmean([float(one.correct) for one in judged])
    confidence = fmean([one.confidence for one in judged])
    bins: dict[int, list[JudgedForecast]] = defaultdict(list)
    for one in judged:
        bins[_bin(one.confidence, BINS)].append(one)
    gaps = (abs(math.fsum(one.confidence - one.correct for one in part)) for part in bins.values())
    return {
        "brier": fmean([(one.confidence - one.correct) ** 2 for one in judged]),
        "ece": math.fsum(gaps) / len(judged),
        "log_score": fmean([_log_score(one) for one in judged]),
        "confidence": confidence,
        "overconfidence": confidence - right,
    }


def _log_score(one: JudgedForecast) -> float:
    sure = min(1.0 - _SURE, max(_SURE, one.confidence))
    return -math.log(sure if one.correct else 1.0 - sure)


def _parts(trajectory: Trajectory) -> Mapping[str, float]:
    """Return the environment's own parts, even if a configured reward has parts of the same name."""
    assert trajectory.rewards is not None, "only scored attempts"
    given = trajectory.rewards.components
    return {
        **given,
        **{name.removeprefix(OWN_PREFIX): value for name, value in given.items() if name.startswith(OWN_PREFIX)},
    }


def _values(parts: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [each[name] for each in parts if name in each]


def _binned(pairs: Iterable[tuple[float, float]], count: int) -> dict[str, list[float]]:
    """Group the second numbers by the bin of the first, from 0 to 1; bins have equal width, empty ones are left out."""
    found: dict[int, list[float]] = defaultdict(list)
    for value, other in pairs:
        found[_bin(value, count)].append(other)
    return {f"{place / count:.1f}-{(place + 1) / count:.1f}": part for place, part in sorted(found.items())}


def _bin(value: float, count: int) -> int:
    return min(count - 1, max(0, int(value * count)))


def _figures(name: str, bins: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    if not bins:
        return {}
    return {
        f"accuracy_by_{name}": {each: fmean(values) for each, values in bins.items()},
        f"attempts_by_{name}": {each: float(len(values)) for each, values in bins.items()},
    }
