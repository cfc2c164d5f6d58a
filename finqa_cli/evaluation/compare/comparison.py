"""Comparing evaluated runs: which method is better, by how much, and how sure that is."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import UsageError
from finqa_cli.evaluation.cluster_nouns import cluster_noun
from finqa_cli.evaluation.compare.comparability import check_comparable, check_paths, differing_settings, flat, notes_on
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun, load_run
from finqa_cli.statistics import (
    Comparison,
    Interval,
    clustered_interval,
    compare_all,
    failure_counts,
    scores_of,
)

_PER_SEED = ("train.seed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The runs of one training method, or one policy.

    Attributes:
        label: Its name in the report.
        runs: One for each seed.
        accuracy: Over the questions that all its runs answered, clustered.
        of_runs: The same accuracy of each run alone, on the same questions.
        failures: Attempts by why they were not right, over its runs.
    """

    label: str
    runs: tuple[EvaluatedRun, ...]
    accuracy: Interval
    of_runs: tuple[float, ...]
    failures: Mapping[str, int]

    @property
    def seeds_deviation(self) -> float | None:
        """Standard deviation of the accuracy between its runs; None for one run."""
        return statistics.stdev(self.of_runs) if len(self.of_runs) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """What `finqa compare` found.

    Attributes:
        methods: In the order in which their first runs were named.
        comparisons: Every pair, or everyone with the baseline.
        notes: What a reader must know, a sentence each.
        differing: Settings that are not the same in all runs: path -> value of each run in turn.
        level: Of intervals and tests.
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
        """Every run, method by method."""
        return tuple(run for method in self.methods for run in method.runs)


def compare(named: Sequence[str], *, baseline: str = "", level: float = 0.95) -> CompareResult:
    """Reads the runs and compares them; nothing is written.

    Args:
        named: Run folders, or LABEL=FOLDER; runs of one label are the seeds of one method.
        baseline: Label of the method that the others are compared with; empty compares every pair.
        level: Of intervals and tests.

    Raises:
        UsageError: Fewer than two methods, one run twice, or no method of the baseline's name.
        DataError: A run cannot be read, or they cannot be compared.
    """
    labels, paths = zip(*map(label_and_path, named), strict=True) if named else ((), ())
    check_paths(paths)
    runs = [load_run(path) for path in paths]
    check_comparable(runs)
    methods = tuple(_method(label, members, level) for label, members in _by_label(labels, runs).items())
    names = [method.label for method in methods]
    if len(methods) < 2:
        raise UsageError(
            f"All runs are seeds of one method, {names[0]}; there is nothing to compare it with.",
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
        notes=tuple(notes_on(ordered)),
        differing=differing_settings(ordered),
        level=level,
        baseline=baseline,
        clustered_by=cluster_noun(environment["name"], environment["options"]),
    )


def label_and_path(text: str) -> tuple[str, Path]:
    """What LABEL=FOLDER or FOLDER means; no label is empty.

    Raises:
        UsageError: One of the two is missing.
    """
    label, equals, rest = text.partition("=")
    if equals and "/" not in label and not Path(text).exists():
        if not label or not rest:
            raise UsageError(f"{text!r} is neither a run folder nor LABEL=FOLDER.", remedy="finqa compare --help")
        return label, _folder(Path(rest))
    return "", _folder(Path(text))


def _folder(path: Path) -> Path:
    """The run's folder, where one of its files was named, such as metrics.json."""
    return path.parent if path.is_file() else path


def _by_label(labels: Sequence[str], runs: Sequence[EvaluatedRun]) -> dict[str, list[EvaluatedRun]]:
    """Runs by label; without a given one by method, and by folder where runs of a method differ in more than seeds."""
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
    return set(differing_settings(runs)) <= set(_PER_SEED) and len(evaluated) == 1 and len(seeds) == len(runs)


def _method(label: str, runs: Sequence[EvaluatedRun], level: float) -> Method:
    scores = scores_of(label, [run.outcomes for run in runs])
    if not scores.shares:
        raise UsageError(f"The runs of {label} have no question in common.", remedy="label them apart: a=RUN b=RUN")
    questions = list(scores.shares)
    interval = clustered_interval(
        [scores.shares[name] for name in questions], [scores.companies[name] for name in questions], level=level
    )
    each = [scores_of(label, [run.outcomes]).shares for run in runs]
    return Method(
        label=label,
        runs=tuple(runs),
        accuracy=interval,
        of_runs=tuple(statistics.fmean(shares[name] for name in questions) for shares in each),
        failures=failure_counts([outcome for run in runs for outcome in run.outcomes]),
    )
