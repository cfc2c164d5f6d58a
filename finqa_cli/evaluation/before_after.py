"""Rows that compare two evaluations of one training; `finqa train` prints them and `finqa report` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finqa_cli.evaluation.cluster_nouns import UNKNOWN, counted
from finqa_cli.rollout.measures import flat

LARGEST_GROUP = 4
"""Groups of measures of an environment with more numbers than this are in metrics.jsonl only."""

_MEASURES: tuple[tuple[str, str, bool], ...] = (
    ("accuracy", "accuracy", True),
    ("quoted_years", "queries with quoted years", True),
    ("sql_error_rate", "SQL errors per query", True),
    ("turns_mean", "turns per episode", False),
)
"""Key in the record, label, and whether the value is a share."""


def before_after_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[list[str]]:
    """Returns rows of [label, before, after]; `-` where a record lacks a number that the other one has.

    Args:
        before: Record of the first evaluation, as in metrics.jsonl.
        after: Record of the last evaluation.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: One of them is not a record of an evaluation.
    """
    rows = [
        [_label(label, after), *(_measure(facts, key, is_share) for facts in (before, after))]
        for key, label, is_share in _MEASURES
    ]
    rows = [row for row in rows if row[1:] != ["-", "-"]]  # without measures that this environment does not have
    own = [flat(_brief(facts.get("measures", {}))) for facts in (before, after)]
    names = dict.fromkeys([*own[0], *own[1]])
    return [*rows, *([name, *(format_number(facts.get(name)) for facts in own)] for name in names)]


def asked_questions(report: Mapping[str, Any]) -> str:
    """Returns the numbers of questions, clusters and attempts, if these differ: `224 of 16 companies, 448 attempts`."""
    episodes, clusters = report["episodes"], report["clusters"]
    by_question = report.get("clustered_by") == "question"
    # records of earlier versions do not record the number of questions
    questions = report.get("questions", clusters if by_question else episodes)
    attempts = "" if episodes == questions else f", {episodes} attempts"
    return f"{questions}{attempts}" if clusters >= questions else f"{questions} of {name_clusters(report)}{attempts}"


def name_clusters(report: Mapping[str, Any]) -> str:
    """Returns the number of clusters with their noun."""
    return counted(report["clusters"], report.get("clustered_by", UNKNOWN))  # runs of earlier versions do not record it


def format_number(value: float | None) -> str:
    """Returns a number with four digits, `-` for none."""
    return "-" if value is None else f"{value:.4g}"


def format_share(value: float | None) -> str:
    """Returns a share in percent, `-` for none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _label(label: str, facts: Mapping[str, Any]) -> str:
    if label != "accuracy":
        return label
    temperature = facts["temperature"]
    return f"accuracy at temperature {temperature:g}" if temperature else "accuracy, greedy"


def _measure(facts: Mapping[str, Any], key: str, is_share: bool) -> str:
    value = facts[key]
    if not is_share:
        return f"{value:.2f}"
    if key == "accuracy":
        low, high = facts["accuracy_interval"]
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return format_share(value)


def _brief(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns measures without groups of many numbers; `finqa eval` and metrics.jsonl have them all."""
    return {
        name: value
        for name, value in measures.items()
        if not (isinstance(value, Mapping) and len(value) > LARGEST_GROUP)
    }
