"""What a training run changed: its first and its last evaluation, and three questions as examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.evaluation.before_after import asked_questions, before_after_rows
from finqa_cli.evaluation.cluster_nouns import UNKNOWN
from finqa_cli.publishing.report.report_records import Episode, RunRecords
from finqa_cli.statistics import MALFORMED

EXAMPLES = 3
"""Number of questions that are shown with their episodes before and after."""

Pair = tuple[Episode, Episode]
"""The first attempts at one question, before and after training."""


def progress_document(records: RunRecords) -> dict[str, Any] | None:
    """Returns the first and the last evaluation of a training run in comparison; None if it has fewer than two.

    Returns:
        `iterations` of the last one, `before` and `after` as [accuracy, low, high], `asked` (the number of questions as
        text), `clustered_by` (what the intervals are clustered by, as a noun), `questions` (the number of questions
        that both graded), `rows` of [label, before, after] as `finqa train` prints them, `changes` (how many questions
        became right, became wrong, were right both times and wrong both times), and `examples` as pairs of ids of
        episodes.
    """
    evaluations = [record for record in records.metrics if record.get("kind") == "eval"]
    if len(evaluations) < 2:
        return None
    before, after = evaluations[0], evaluations[-1]
    try:
        first, last = int(before["iteration"]), int(after["iteration"])
        if first >= last:
            return None
        pairs = pair_evaluations(records.episodes, first, last)
        return {
            "iterations": last,
            "before": [float(before["accuracy"]), *map(float, before["accuracy_interval"])],
            "after": [float(after["accuracy"]), *map(float, after["accuracy_interval"])],
            "asked": asked_questions(after),
            "clustered_by": str(after.get("clustered_by", UNKNOWN)),
            "questions": len(pairs),
            "rows": before_after_rows(before, after),
            "changes": _changes(pairs),
            "examples": [[earlier.id, later.id] for earlier, later in choose_examples(pairs)],
        }
    except MALFORMED:  # written by a plugin or by an earlier version
        return None


def pair_evaluations(episodes: Sequence[Episode], first: int, last: int) -> list[Pair]:
    """Returns the first attempts at each question that both evaluations graded, in the order of the episodes.

    Args:
        episodes: The attempts of the run, by `Episode.order`.
        first: Step of the evaluation before training.
        last: Step of the evaluation after training.
    """
    earlier, later = (_first_attempts(episodes, step) for step in (first, last))
    return [(episode, later[question]) for question, episode in earlier.items() if question in later]


def _first_attempts(episodes: Sequence[Episode], step: int) -> dict[str, Episode]:
    found: dict[str, Episode] = {}
    for episode in episodes:
        if episode.phase == "eval" and episode.iteration == step and episode.outcome.correct is not None:
            found.setdefault(episode.outcome.question, episode)
    return found


def choose_examples(pairs: Sequence[Pair], most: int = EXAMPLES) -> list[Pair]:
    """Chooses the questions that a report shows before and after.

    Questions that were wrong before and are right after come first, then all others. Within each of these parts, one
    question of each kind comes first, then the rest; otherwise the given order is kept. Nothing else about an attempt
    affects the choice.
    """
    became_right = [pair for pair in pairs if _verdicts(pair) == (False, True)]
    others = [pair for pair in pairs if _verdicts(pair) != (False, True)]
    chosen: list[Pair] = []
    for candidates in (became_right, others):
        kinds = {pair[0].outcome.kind for pair in chosen}
        repeated: list[Pair] = []
        for pair in candidates:
            kind = pair[0].outcome.kind
            (repeated if kind in kinds else chosen).append(pair)
            kinds.add(kind)
        chosen += repeated
    return chosen[:most]


def _verdicts(pair: Pair) -> tuple[bool, bool]:
    return bool(pair[0].outcome.correct), bool(pair[1].outcome.correct)


def _changes(pairs: Sequence[Pair]) -> Mapping[str, int]:
    verdicts = [_verdicts(pair) for pair in pairs]
    return {
        "became_right": verdicts.count((False, True)),
        "became_wrong": verdicts.count((True, False)),
        "stayed_right": verdicts.count((True, True)),
        "stayed_wrong": verdicts.count((False, False)),
    }
