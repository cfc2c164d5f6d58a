"""Compares two runs question by question; the questions with the largest differences come first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.publishing.report.report_data import LEVEL
from finqa_cli.publishing.report.report_records import Episode
from finqa_cli.statistics import Scores, by_question, compare_all, scores_of


def comparison_document(first: Sequence[Episode], second: Sequence[Episode]) -> dict[str, Any]:
    """Returns the paired difference, second minus first, and a row per question, the largest differences first.

    A row is [question, prompt, kind, share of right attempts of the first run, of the second, number of attempts of the
    first, of the second, id of an attempt of the first to open, of the second]; shares are null for a run without a
    graded attempt.

    Args:
        first: Scored attempts of the first run.
        second: Those of the second.
    """
    sides = [_shares("A", first), _shares("B", second)]
    common = sides[0].shares.keys() & sides[1].shares.keys()
    attempts = [_attempts(first), _attempts(second)]
    rows = [_row(question, attempts, sides) for question in sides[0].shares.keys() | sides[1].shares.keys()]
    rows.sort(key=_largest_first)
    prompts = [{one.outcome.question: one.outcome.prompt for one in side} for side in (first, second)]
    changed = sum(prompts[0][question] != prompts[1][question] for question in common)
    notes = [f"{changed} questions have a different text in the second run."] if changed else []
    if len(rows) > len(common):
        notes.append(
            f"{len(rows) - len(common)} questions were answered in one run only and are excluded from the differences."
        )
    return {"summary": _summary(sides) if common else None, "rows": rows, "notes": notes}


def _shares(label: str, episodes: Sequence[Episode]) -> Scores:
    outcomes = [episode.outcome for episode in episodes]
    return scores_of(label, [outcomes]) if by_question(outcomes) else Scores(label=label, shares={}, companies={})


def _summary(sides: Sequence[Scores]) -> dict[str, Any]:
    (found,) = compare_all(sides, level=LEVEL)
    paired = found.paired
    return {
        "difference": paired.difference,
        "low": paired.low,
        "high": paired.high,
        "level": LEVEL,
        "questions": paired.questions,
        "clusters": paired.clusters,
        "better": paired.first_better,
        "worse": paired.second_better,
        "p_value": paired.p_value,
        "mcnemar": paired.mcnemar,
        "verdict": found.verdict,
    }


def _row(question: str, attempts: Sequence[Mapping[str, list[Episode]]], sides: Sequence[Scores]) -> list[Any]:
    found = [each.get(question, []) for each in attempts]
    about = next(one.outcome for members in found for one in members)
    shares = [side.shares.get(question) for side in sides]
    counts = [sum(one.outcome.correct is not None for one in members) for members in found]
    opened = [members[0].id if members else None for members in found]
    return [question, about.prompt, about.kind, *shares, *counts, *opened]


def _attempts(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    found: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        found[episode.outcome.question].append(episode)
    return found


def _largest_first(row: Sequence[Any]) -> tuple[float, str]:
    first, second = row[3], row[4]
    return 1.0 if first is None or second is None else -abs(second - first), row[0]
