"""May these runs be compared? Refuses what would make a difference meaningless, and notes what may explain one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun
from finqa_cli.extend import registry
from finqa_cli.statistics import by_question

_ABOUT_THE_MACHINE = ("run.", "pool.", "sandbox.", "trackers", "data.home", "model.tensor", "model.gpu", "learner.")
_OF_THE_EVALUATION = ("eval.temperature", "eval.attempts", "generation.max_steps", "generation.max_gen_tokens")


def check_paths(paths: Sequence[Path]) -> None:
    """Raises UsageError for a single run, and for one that is named twice."""
    if len(paths) < 2:
        raise UsageError(
            "A comparison needs at least two runs.", remedy="finqa eval embedded, and compare with its run folder"
        )
    seen: dict[Path, Path] = {}
    for path in paths:
        if (earlier := seen.setdefault(path.resolve(), path)) is not path:
            raise UsageError(f"{earlier} and {path} are the same run.", remedy="name every run once")


def check_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Raises DataError when the runs did not answer the same questions under the same rules.

    Raises:
        DataError: Their data, splits, graders or questions differ, or one is a copy of another.
    """
    first = runs[0]
    for run in runs[1:]:
        _same(first, run, "data", lambda one: f"{one.data_name} ({one.data_digest})", "--snapshot or --data")
        _same(first, run, "split", lambda one: one.split, "--split")
        _same(first, run, "grader", _grader, "--environment, --grader and --reward")
    for one, other in itertools.combinations(runs, 2):
        if one.files["trajectories.jsonl"] == other.files["trajectories.jsonl"]:
            raise UsageError(f"{other.path} is a copy of {one.path}.", remedy="name every run once")
        _same_questions(one, other)


def notes_on(runs: Sequence[EvaluatedRun]) -> list[str]:
    """What a reader of the comparison must know, a sentence each."""
    notes = []
    asked = [{outcome.question for outcome in run.outcomes} for run in runs]
    everyone = set.intersection(*asked)
    if any(questions != everyone for questions in asked):
        counts = ", ".join(f"{run.path} {len(questions)}" for run, questions in zip(runs, asked, strict=True))
        notes.append(
            f"The runs asked different questions ({counts}). Each pair is compared on those that it shares, and the "
            "accuracy of a method is over those that all its runs share. Evaluated without --limit, or with the same "
            "--limit and eval.seed, all are asked the same."
        )
    faulty = [(run, sum(outcome.correct is None for outcome in run.outcomes)) for run in runs]
    notes += [
        f"{faults} of {len(run.outcomes)} episodes of {run.path} ended in faults and are left out."
        for run, faults in faulty
        if faults
    ]
    for path in _OF_THE_EVALUATION:
        values = {str(run.path): flat(run.asked).get(path) for run in runs}
        if len(set(values.values())) > 1:
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            notes.append(f"The evaluations differ in {path}: {shown}.")
    if len({run.finqa for run in runs}) > 1:
        shown = ", ".join(f"{run.path} {run.finqa}" for run in runs)
        notes.append(f"The runs were made by different versions of finqa: {shown}.")
    return notes


def differing_settings(runs: Sequence[EvaluatedRun]) -> dict[str, list[Any]]:
    """Dotted path -> its value in each run, for the settings that are not the same in all and not of the machine."""
    found = differing([run.settings for run in runs])
    return {path: values for path, values in found.items() if not path.startswith(_ABOUT_THE_MACHINE)}


def differing(trees: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Dotted path -> its value in each tree, or None, for what is not the same in all; by path."""
    each = [flat(tree) for tree in trees]
    paths = sorted({path for leaves in each for path in leaves})
    values = {path: [leaves.get(path) for leaves in each] for path in paths}
    return {path: found for path, found in values.items() if any(value != found[0] for value in found)}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted paths; lists are values."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = str(value) if isinstance(value, list) else value
    return leaves


def _same(
    first: EvaluatedRun, other: EvaluatedRun, what: str, value: Callable[[EvaluatedRun], str], flags: str
) -> None:
    if value(first) != value(other):
        raise DataError(
            f"The runs differ in {what}: {first.path} has {value(first)}, {other.path} has {value(other)}.",
            remedy=f"evaluate both with the same {flags}",
        )


def _grader(run: EvaluatedRun) -> str:
    """Whose verdict `correct` is: the environment with its rules, and the reward where it decides."""
    environment = run.asked["environment"]
    rules = _options(environment["name"], environment["options"]).get("grader")
    words = [environment["name"], *([f"with grader {rules}"] if rules else [])]
    if any(outcome.correct is not None and "correct" not in outcome.components for outcome in run.outcomes):
        words.append(f"with reward {run.asked['reward']['name']} {run.asked['reward']['options'] or ''}".rstrip())
    return " ".join(words)


def _options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with their defaults, where the environment is installed here and still has them."""
    try:
        config = registry().config(registry().find("environment", name), given)
    except ConfigError:
        return dict(given)
    return config.model_dump() if config is not None else {}


def _same_questions(one: EvaluatedRun, other: EvaluatedRun) -> None:
    mine, theirs = by_question(one.outcomes), by_question(other.outcomes)
    if not (common := mine.keys() & theirs.keys()):
        raise DataError(
            f"{one.path} and {other.path} have no graded question in common.",
            remedy="evaluate both without --limit, or with the same --limit and eval.seed",
        )
    for name in sorted(common):
        asked = [(run[name][0].prompt, run[name][0].company) for run in (mine, theirs)]
        if asked[0] != asked[1]:
            raise DataError(
                f"Question {name!r} is not the same in {one.path} and {other.path}.",
                remedy="evaluate both on the same data",
            )
