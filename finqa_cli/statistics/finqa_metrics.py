"""What module 10 of the RL-LLM FinQA pipeline reports: its metrics, a row per attempt, and samples to read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from finqa_cli.statistics.evaluation_report import RIGHT
from finqa_cli.statistics.intervals import clustered_interval
from finqa_cli.statistics.outcomes import REASONS, Outcome, by_question
from finqa_cli.statistics.repeated_attempts import k_values, pass_at_k, pass_hat_k

SAMPLES_PER_REASON = 3

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "accuracy": "share of the attempts that the environment's verdict calls right",
        "exact_match": "the answer is exactly the truth: FinQA's execution accuracy, else the part `exact`, which for "
        "answers that a tool submits means the very text of the gold answer",
        "numeric_correctness": "the stated answer is right within the grader's tolerance",
        "program_validity": "the reply holds a program in FinQA's language",
        "program_accuracy": "the program is equivalent to the gold program",
        "format_compliance": "the reply has the form that was asked for; with tools, every call could be read",
    }
)
"""Each metric: a share of the graded attempts, with its interval clustered by company; null where it is not judged."""


def evaluation_metrics(outcomes: Sequence[Outcome], *, level: float = 0.95) -> dict[str, Any]:
    """The content of metrics.json; see `DEFINITIONS`. Without a graded attempt every metric is null."""
    questions = by_question(outcomes)
    attempts = [len(members) for members in questions.values()]
    companies = [members[0].company for members in questions.values()]
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
        **{name: _metric(outcomes, _JUDGED[name], level) for name in DEFINITIONS},
        **passes,
        "failure_reasons": failure_counts(outcomes),
        "definitions": dict(DEFINITIONS),
    }


def failure_counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Attempts by why they are not right, in the order of `REASONS`; reasons that do not occur are left out."""
    counts = Counter(outcome.reason for outcome in outcomes if outcome.reason)
    return {reason: counts[reason] for reason in REASONS if counts[reason]}


def breakdown_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One row per attempt: its metrics and why it failed. Every row has the same columns."""
    parts = sorted({name for outcome in outcomes for name in outcome.components})
    return [
        {
            "id": outcome.question,
            "member": outcome.member,
            "company": outcome.company,
            "type": outcome.kind,
            "status": outcome.status.value,
            **{name: _as_cell(judged(outcome)) for name, judged in _JUDGED.items()},
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
    """Some attempts of each kind of ending, right ones first: of every reason the first few, of different questions."""
    chosen: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.member, outcome.question)):
        if len(chosen[outcome.reason]) < per_reason:
            chosen[outcome.reason].append(outcome)
    return [outcome for reason in ("", *REASONS) for outcome in chosen[reason]]


def _metric(outcomes: Sequence[Outcome], judged: Callable[[Outcome], bool | None], level: float) -> Any:
    found = [(value, outcome.company) for outcome in outcomes if (value := judged(outcome)) is not None]
    return _share([float(value) for value, _ in found], [company for _, company in found], level)


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


def _graded(judged: Callable[[Outcome], bool | None]) -> Callable[[Outcome], bool | None]:
    return lambda outcome: None if outcome.correct is None else judged(outcome)


def _as_cell(value: bool | None) -> int | None:
    return None if value is None else int(value)


_JUDGED: Mapping[str, Callable[[Outcome], bool | None]] = MappingProxyType(
    {
        "accuracy": lambda outcome: outcome.correct,
        "exact_match": _graded(_exact),
        "numeric_correctness": _graded(_numeric),
        "program_validity": _graded(lambda outcome: outcome.program_reads),
        "program_accuracy": _graded(_program),
        "format_compliance": _graded(lambda outcome: outcome.well_formed),
    }
)
