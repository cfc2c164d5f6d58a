"""Compares evaluated runs: whether they are comparable, which method is better, by how much, with which certainty."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.evaluation.cluster_nouns import cluster_noun
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun, load_run
from finqa_cli.extend import registry
from finqa_cli.grading import JUDGES
from finqa_cli.statistics import (
    Comparison,
    Interval,
    by_question,
    compare_all,
    crossed_interval,
    failure_counts,
    scores_of,
)

_ABOUT_THE_MACHINE = ("run.", "pool.", "sandbox.", "trackers", "data.home", "model.tensor", "model.gpu", "learner.")
_OF_THE_EVALUATION = ("eval.temperature", "eval.attempts", "generation.max_steps", "generation.max_gen_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The runs of one training method, or one policy.

    Attributes:
        label: Name in the report.
        runs: One run per seed.
        accuracy: Accuracy over the questions that all its runs answered, clustered by company and by run.
        questions: Number of these questions.
        of_runs: Accuracy of each run alone, on the same questions.
        failures: Reason of a failure -> number of attempts, over all its runs.
    """

    label: str
    runs: tuple[EvaluatedRun, ...]
    accuracy: Interval
    questions: int
    of_runs: tuple[float, ...]
    failures: Mapping[str, int]

    @property
    def seeds_deviation(self) -> float | None:
        """Standard deviation of the accuracy between its runs; None for one run."""
        return statistics.stdev(self.of_runs) if len(self.of_runs) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """Results of `finqa compare`.

    Attributes:
        methods: Methods in the order in which their first runs were named.
        comparisons: Every pair of methods, or every other method with the baseline.
        notes: Notes for the reader, a sentence each.
        differing: Settings that are not the same in all runs: path -> value of each run, in order of `runs`.
        level: Confidence level of intervals and tests.
        baseline: Label, or empty.
        clustered_by: What a cluster is, in the singular: `company`, `question`.
    """

    methods: tuple[Method, ...]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    differing: Mapping[str, Sequence[Any]]
    level: float
    baseline: str
    clustered_by: str

    @property
    def runs(self) -> tuple[EvaluatedRun, ...]:
        """All runs, method by method."""
        return tuple(run for method in self.methods for run in method.runs)


def compare(named: Sequence[str], *, baseline: str = "", level: float = 0.95) -> CompareResult:
    """Reads the runs and compares them; nothing is written.

    Args:
        named: Run folders, or LABEL=FOLDER; runs of one label are the seeds of one method.
        baseline: Label of the method that the others are compared with; empty compares every pair.
        level: Confidence level of intervals and tests.

    Raises:
        UsageError: There are fewer than two methods, a run is named twice, or no method has the name of the baseline.
        DataError: A run cannot be read, or the runs cannot be compared.
    """
    labels, paths = zip(*map(label_and_path, named), strict=True) if named else ((), ())
    check_paths(paths)
    runs = [load_run(path) for path in paths]
    check_comparable(runs)
    methods = tuple(_method(label, members, level) for label, members in _by_label(labels, runs).items())
    names = [method.label for method in methods]
    if len(methods) < 2:
        raise UsageError(
            f"All runs are seeds of one method, {names[0]}; there is no other method to compare it with.",
            remedy="name a run of another method, or label them: a=RUN b=RUN",
        )
    if baseline and baseline not in names:
        raise UsageError(f"There is no method {baseline!r}.", remedy=f"--baseline with one of: {', '.join(names)}")
    scores = [scores_of(method.label, [run.outcomes for run in method.runs]) for method in methods]
    ordered = [run for method in methods for run in method.runs]
    environment = ordered[0].asked["environment"]
    return CompareResult(
        methods=methods,
        comparisons=tuple(compare_all(scores, baseline=baseline, level=level)),
        notes=(*notes_on(ordered), *_notes_on_seeds(methods)),
        differing=differing_settings(ordered),
        level=level,
        baseline=baseline,
        clustered_by=cluster_noun(environment["name"], environment["options"]),
    )


def label_and_path(text: str) -> tuple[str, Path]:
    """Splits LABEL=FOLDER or FOLDER into label and folder; the label is empty if there is none.

    Raises:
        UsageError: The label or the folder beside `=` is missing.
    """
    label, equals, rest = text.partition("=")
    if equals and "/" not in label and not Path(text).exists():
        if not label or not rest:
            raise UsageError(f"{text!r} is neither a run folder nor LABEL=FOLDER.", remedy="finqa compare --help")
        return label, _folder(Path(rest))
    return "", _folder(Path(text))


def check_paths(paths: Sequence[Path]) -> None:
    """Raises a UsageError for fewer than two runs, and for a run that is named twice."""
    if len(paths) < 2:
        raise UsageError("A comparison needs at least two runs.", remedy="add another run; `finqa eval` creates one")
    seen: dict[Path, Path] = {}
    for path in paths:
        if (earlier := seen.setdefault(path.resolve(), path)) is not path:
            raise UsageError(f"{earlier} and {path} are the same run.", remedy="name every run only once")


def check_comparable(runs: Sequence[EvaluatedRun]) -> None:
    """Checks that the runs answered the same questions under the same rules.

    Raises:
        DataError: Their data, splits, graders or questions differ.
        UsageError: A run is a copy of another one.
    """
    for what, value, flags in (
        ("data", lambda run: f"{run.data_name} ({run.data_digest})", "--snapshot or --data"),
        ("split", lambda run: run.split, "--split"),
        ("grader", _grader, "--environment, --grader and --reward"),
    ):
        first = runs[0]
        for run in runs[1:]:
            if value(first) != value(run):
                raise DataError(
                    f"The runs differ in {what}: {first.path} has {value(first)}, {run.path} has {value(run)}.",
                    remedy=f"evaluate both with the same {flags}",
                )
    for one, other in itertools.combinations(runs, 2):
        if one.files["trajectories.jsonl"] == other.files["trajectories.jsonl"]:
            raise UsageError(f"{other.path} is a copy of {one.path}.", remedy="name every run only once")
        _same_questions(one, other)


def notes_on(runs: Sequence[EvaluatedRun]) -> list[str]:
    """Returns notes for the reader of the comparison, a sentence each."""
    notes = []
    asked = [{outcome.question for outcome in run.outcomes} for run in runs]
    common = set.intersection(*asked)
    if any(questions != common for questions in asked):
        counts = ", ".join(f"{run.path} {len(questions)}" for run, questions in zip(runs, asked, strict=True))
        notes.append(
            f"The runs have different questions ({counts}). Each pair is compared on its common "
            "questions, and the accuracy of a method is computed on the questions that all its runs "
            "have in common. To evaluate all runs on the same questions, use no --limit, or the same "
            "--limit and eval.seed."
        )
    faulty = [(run, sum(outcome.correct is None for outcome in run.outcomes)) for run in runs]
    notes += [
        f"{faults} of {len(run.outcomes)} episodes of {run.path} ended in faults and are excluded."
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


def _notes_on_seeds(methods: Sequence[Method]) -> list[str]:
    """Returns a note that names the methods with only two runs, whose variance is very uncertain."""
    pairs = [method.label for method in methods if len(method.runs) == 2]
    few = (
        f"Two runs each of {', '.join(pairs)}: two runs give a very uncertain estimate of the "
        "variance between runs; use three or more."
    )
    return [few] if pairs else []


def differing_settings(runs: Sequence[EvaluatedRun]) -> dict[str, list[Any]]:
    """Returns dotted path -> value in each run, for settings that differ and are not about the machine."""
    found = differing([run.settings for run in runs])
    return {path: values for path, values in found.items() if not path.startswith(_ABOUT_THE_MACHINE)}


def differing(trees: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Returns dotted path -> value in each tree, None where it is missing, for values that differ; sorted by path."""
    each = [flat(tree) for tree in trees]
    paths = sorted({path for leaves in each for path in leaves})
    values = {path: [leaves.get(path) for leaves in each] for path in paths}
    return {path: found for path, found in values.items() if any(value != found[0] for value in found)}


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested mappings to dotted paths; a list becomes one text."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = str(value) if isinstance(value, list) else value
    return leaves


def _folder(path: Path) -> Path:
    """Returns the folder of a run; the user may have named one of its files, such as metrics.json."""
    return path.parent if path.is_file() else path


def _by_label(labels: Sequence[str], runs: Sequence[EvaluatedRun]) -> dict[str, list[EvaluatedRun]]:
    """Groups runs by label; without one by method, or by folder if the runs of a method differ in more than seeds."""
    of_method: dict[str, list[EvaluatedRun]] = {}
    for label, run in zip(labels, runs, strict=True):
        if not label:
            of_method.setdefault(run.method, []).append(run)
    alike = {method for method, members in of_method.items() if _differ_in_seed_only(members)} - set(labels)
    names = Counter(run.path.resolve().name for run in runs)
    found: dict[str, list[EvaluatedRun]] = {}
    for label, run in zip(labels, runs, strict=True):
        name = run.path.resolve().name
        folder = name if names[name] == 1 else str(run.path)
        own = run.method if run.method in alike else f"{run.method} ({folder})"
        found.setdefault(label or own, []).append(run)
    return found


def _differ_in_seed_only(runs: Sequence[EvaluatedRun]) -> bool:
    evaluated = {
        tuple(flat(run.asked).get(path) for path in ("eval.temperature", "generation.max_steps")) for run in runs
    }
    seeds = {run.seed for run in runs}
    return set(differing_settings(runs)) <= {"train.seed"} and len(evaluated) == 1 and len(seeds) == len(runs)


def _method(label: str, runs: Sequence[EvaluatedRun], level: float) -> Method:
    scores = scores_of(label, [run.outcomes for run in runs])
    if not scores.shares:
        raise UsageError(
            f"The runs of {label} have no question in common.", remedy="give them different labels: a=RUN b=RUN"
        )
    questions = list(scores.shares)
    each = scores.of_runs(questions)
    return Method(
        label=label,
        runs=tuple(runs),
        accuracy=crossed_interval(each, [scores.companies[name] for name in questions], level=level),
        questions=len(questions),
        of_runs=tuple(map(statistics.fmean, each)),
        failures=failure_counts([outcome for run in runs for outcome in run.outcomes]),
    )


def _grader(run: EvaluatedRun) -> str:
    """Describes what decides `correct`: the environment with its rules, or the reward if it decides."""
    environment = run.asked["environment"]
    options = environment["options"]
    try:
        config = registry().config(registry().find("environment", environment["name"]), options)
        options = config.model_dump() if config is not None else {}
    except ConfigError:
        pass  # the environment is not installed here, or its options changed: defaults are unknown
    rules = options.get("grader")
    words = [environment["name"], *([f"with grader {rules}"] if rules else [])]
    if rules in JUDGES:
        judge = run.asked["grader"]
        words.append(f"by {judge['name']} {judge['options'].get('model', '')}".rstrip())
    if any(outcome.correct is not None and "correct" not in outcome.components for outcome in run.outcomes):
        words.append(f"with reward {run.asked['reward']['name']} {run.asked['reward']['options'] or ''}".rstrip())
    return " ".join(words)


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
