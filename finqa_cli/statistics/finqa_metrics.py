"""Metrics of an evaluation (module 10 of the RL-LLM FinQA pipeline), pass@k, a table of attempts, samples to read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from finqa_cli.statistics.intervals import clustered_interval
from finqa_cli.statistics.outcomes import REASONS, RIGHT, Outcome, by_question, identity_columns

SAMPLES_PER_REASON = 3

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "accuracy": "share of attempts that are right according to the environment",
        "exact_match": "the answer is exactly the truth: FinQA's execution accuracy, else the part `exact`, which for "
        "answers that a tool submits means the very text of the gold answer",
        "numeric_correctness": "the stated answer is right within the grader's tolerance",
        "program_validity": "the reply contains a program in FinQA's language",
        "program_accuracy": "the program is equivalent to the gold program",
        "format_compliance": "the reply has the requested format; with tools, every call could be parsed",
    }
)
"""Name -> meaning of each metric. A metric is a share of the graded attempts with an interval clustered by company, and
null if no attempt is judged by it."""


def evaluation_metrics(outcomes: Sequence[Outcome], *, level: float = 0.95) -> dict[str, Any]:
    """Return the content of metrics.json; see `DEFINITIONS`. Without a graded attempt every metric is null."""
    questions = by_question(outcomes)
    attempts = [len(members) for members in questions.values()]
    companies = [members[0].company for members in questions.values()]
    metrics = {}
    for name in DEFINITIONS:
        judged = [(value, outcome.company) for outcome in outcomes if (value := _judge(name, outcome)) is not None]
        metrics[name] = _share([float(value) for value, _ in judged], [company for _, company in judged], level)
    passes: dict[str, dict[str, Any]] = {"pass_at_k": {}, "pass_hat_k": {}}
    for k in k_values(attempts):
        for name, estimate in (("pass_at_k", pass_at_k), ("pass_hat_k", pass_hat_k)):
            values = [
                estimate(len(members), sum(bool(member.correct) for member in members), k)
                for members in questions.values()
            ]
            passes[name][str(k)] = _share(values, companies, level)
    return {
        "questions": len(questions),
        "attempts": {"fewest": min(attempts, default=0), "most": max(attempts, default=0)},
        "faults": sum(outcome.correct is None for outcome in outcomes),
        **metrics,
        **passes,
        "failure_reasons": failure_counts(outcomes),
        "definitions": dict(DEFINITIONS),
    }


def failure_counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Count the attempts that are not right by reason, in the order of `REASONS`, without reasons of no attempt."""
    counts = Counter(outcome.reason for outcome in outcomes if outcome.reason)
    return {reason: counts[reason] for reason in REASONS if counts[reason]}


def breakdown_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one row per attempt: its metrics and why it failed. Every row has the same columns."""
    parts = sorted({name for outcome in outcomes for name in outcome.components})
    return [
        {
            **identity_columns(outcome),
            **{name: None if (value := _judge(name, outcome)) is None else int(value) for name in DEFINITIONS},
            "reward": outcome.reward,
            **{f"part_{name}": outcome.components.get(name) for name in parts},
            "turns": outcome.turns,
            "sampled_tokens": outcome.tokens,
            "seconds": outcome.seconds,
            "answer": outcome.answer,
            "failure_reason": outcome.reason,
            "explanation": outcome.explanation,
        }
        for outcome in outcomes
    ]


def choose_samples(outcomes: Sequence[Outcome], per_reason: int = SAMPLES_PER_REASON) -> list[Outcome]:
    """Choose the first `per_reason` right attempts, and as many for every reason of failure in order of `REASONS`."""
    chosen: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.member, outcome.question)):
        if len(chosen[outcome.reason]) < per_reason:
            chosen[outcome.reason].append(outcome)
    return [outcome for reason in ("", *REASONS) for outcome in chosen[reason]]


def pass_at_k(attempts: int, right: int, k: int) -> float:
    """Chance that at least one of k attempts at a question is right, unbiased: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", arXiv 2107.03374, section 2.1.

    Raises:
        ValueError: `k` is not in 1..`attempts`, or `right` not in 0..`attempts`.
    """
    _check(attempts, right, k)
    return 1 - math.comb(attempts - right, k) / math.comb(attempts, k)


def pass_hat_k(attempts: int, right: int, k: int) -> float:
    """Chance that all of k attempts at a question are right, unbiased: C(c, k) / C(n, k).

    Source: Yao et al. 2024, "tau-bench", arXiv 2406.12045, section 3 (pass^k).

    Raises:
        ValueError: `k` is not in 1..`attempts`, or `right` not in 0..`attempts`.
    """
    _check(attempts, right, k)
    return math.comb(right, k) / math.comb(attempts, k)


def _check(attempts: int, right: int, k: int) -> None:
    if not 0 <= right <= attempts or not 1 <= k <= attempts:
        raise ValueError(f"{right} of {attempts} attempts right, k = {k}")


def k_values(attempts: Sequence[int]) -> list[int]:
    """Return the k of pass@k: 1, 2, 4, ... and the smallest number of attempts at a question; empty without questions.

    Args:
        attempts: Number of attempts at each question.
    """
    most = min(attempts, default=0)
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return sorted({*powers, most}) if most else []


def _share(values: Sequence[float], companies: Sequence[str], level: float) -> dict[str, Any] | None:
    if not values:
        return None
    interval = clustered_interval(values, companies, level=level)
    return {"value": interval.mean, "interval": [interval.low, interval.high], "companies": interval.clusters}


def _exact(outcome: Outcome) -> bool | None:
    if (execution := outcome.part("execution")) is not None:
        return execution >= RIGHT
    return None if (exact := outcome.part("exact")) is None else exact > 0


def _numeric(outcome: Outcome) -> bool | None:
    answer = outcome.part("answer")
    return outcome.correct if answer is None else answer >= RIGHT


def _program(outcome: Outcome) -> bool | None:
    own = outcome.part("program") if outcome.program_reads is not None else None
    return None if own is None else own >= RIGHT


_JUDGED: Mapping[str, Callable[[Outcome], bool | None]] = MappingProxyType(
    {
        "accuracy": lambda outcome: outcome.correct,
        "exact_match": _exact,
        "numeric_correctness": _numeric,
        "program_validity": lambda outcome: outcome.program_reads,
        "program_accuracy": _program,
        "format_compliance": lambda outcome: outcome.well_formed,
    }
)
"""Metric -> its verdict on a graded attempt; None if the metric does not apply."""


def _judge(metric: str, outcome: Outcome) -> bool | None:
    return None if outcome.correct is None else _JUDGED[metric](outcome)
