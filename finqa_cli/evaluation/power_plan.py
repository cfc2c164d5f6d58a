"""What an evaluation could show: from assumptions, or from the variation that evaluated runs have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finqa_cli.errors import DataError, UsageError
from finqa_cli.evaluation.compare.comparison import check_comparable, check_paths, label_and_path
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun, load_run
from finqa_cli.statistics import (
    Design,
    Observed,
    Variation,
    assumed_variation,
    attempts_for,
    detectable,
    detectable_methods,
    observe,
    observed_variation,
    questions_for,
    run_spread,
    scores_of,
    seeds_for,
)

FOR_NOTHING_KNOWN = {"accuracy": 0.5, "paired": 0.5, "repeated": 0.6, "company": 0.1}
"""Assumed where neither a flag nor a run gives it: the accuracy with the largest variance, middling likeness."""

RUN_DEVIATION = 0.025
"""Assumed where neither the flag nor runs give it: the median over the five methods of `benchmarks.methods`, of
which three runs each have standard deviations of 0.007, 0.009, 0.025, 0.072 and 0.144 (benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What is given by flags; None is taken from the runs, or else from `FOR_NOTHING_KNOWN`.

    The first four are those of `finqa_cli.statistics.power.assumed_variation`; `deviation` is the standard deviation of
    the accuracies of a method's runs, otherwise `RUN_DEVIATION`.
    """

    accuracy: float | None = None
    paired: float | None = None
    repeated: float | None = None
    company: float | None = None
    deviation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `finqa plan` answers.

    Attributes:
        design: The evaluation in question.
        variation: What was taken for the spread.
        used: Each assumption that went into it, with its origin.
        smallest: The smallest difference in accuracy of two policies that the design shows.
        deviation: Standard deviation of the accuracies of a method's runs.
        wanted: The difference asked about; None when none was.
        questions: Questions that it needs with the design's attempts; None when nothing was asked or none suffice.
        attempts: Attempts that it needs with the design's questions; None when nothing was asked or none suffice.
        seeds: Runs of each method that it needs to be shown of methods, with the design's questions and attempts; None
            when nothing was asked or none suffice.
    """

    design: Design
    variation: Variation
    used: dict[str, tuple[float, str]]
    smallest: float
    deviation: float
    wanted: float | None
    questions: int | None
    attempts: int | None
    seeds: int | None


def plan(
    *,
    questions: int | None,
    companies: int | None,
    attempts: int | None,
    wanted: float | None,
    level: float,
    power: float,
    comparisons: int,
    assumptions: Assumptions,
    runs: Sequence[str],
) -> Plan:
    """Plans the comparison of two policies, and of two methods, on the same questions.

    Args:
        questions: How many; None takes those of the first run.
        companies: They are about; None takes those of the run, or one for each question.
        attempts: At each question by each policy; None takes those of the run, or 1.
        wanted: A difference in accuracy that is to be shown.
        level: 1 - alpha of the two-sided test.
        power: Chance of showing a difference that is there.
        comparisons: How many are corrected for, by Holm.
        assumptions: Values of the flags about the variation.
        runs: None, one evaluated run, or two that asked the same questions; with LABEL=FOLDER the runs of one label are
            seeds of one method, whose spread is taken from them and everything else from the first.

    Raises:
        UsageError: Values that cannot be, or more than two runs or labels.
        DataError: A run cannot be read, the two cannot be compared, or they do not show how questions vary.
    """
    methods = _read(runs)
    read = [members[0] for members in methods]
    if len(read) == 2 and {assumptions.accuracy, assumptions.paired, assumptions.company} != {None}:
        raise UsageError(
            "Two runs already determine accuracy and correlations.",
            remedy="leave out --accuracy, --paired-correlation and --company-correlation, or one --from",
        )
    seen = observe(read[0].outcomes) if read else None
    count = questions or (seen.questions if seen else None)
    if count is None:
        raise UsageError("A plan of an evaluation needs a number of questions.", remedy="--questions N, or --from RUN")
    design = Design(
        questions=count,
        companies=companies or _companies(count, seen),
        attempts=attempts or (max(1, round(seen.attempts)) if seen else 1),
        level=level,
        power=power,
        comparisons=comparisons,
    )
    _check(design, wanted)
    used = _used(assumptions, seen, design)
    if len(read) == 2:
        variation = _seen_variation(read[0], read[1], used["repeated"][0])
        used = {"repeated": used["repeated"]} if seen and seen.repeated is None else {}
    else:
        variation = _assumed(used, seen.unevenness if seen else 1.0)
    used["deviation"] = _deviation(assumptions.deviation, methods)
    deviation = used["deviation"][0]
    return Plan(
        design=design,
        variation=variation,
        used=used,
        smallest=detectable(design, variation),
        deviation=deviation,
        wanted=wanted,
        questions=questions_for(wanted, design, variation) if wanted else None,
        attempts=attempts_for(wanted, design, variation) if wanted else None,
        seeds=seeds_for(wanted, design, variation, deviation=deviation) if wanted else None,
    )


def with_attempts(result: Plan, numbers: Sequence[int]) -> list[tuple[int, float]]:
    """The smallest difference for other numbers of attempts at the same questions."""
    return [(number, detectable(replace(result.design, attempts=number), result.variation)) for number in numbers]


def with_seeds(result: Plan, numbers: Sequence[int]) -> list[tuple[int, float]]:
    """The smallest difference of two methods for other numbers of runs of each; infinite for one."""
    return [
        (number, detectable_methods(result.design, result.variation, deviation=result.deviation, seeds=number))
        for number in numbers
    ]


def _read(runs: Sequence[str]) -> list[list[EvaluatedRun]]:
    """Reads the runs, those of one label together; a run without a label is alone."""
    named = [label_and_path(text) for text in runs]
    if len(named) > 1:
        check_paths([path for _, path in named])
    groups: dict[str, list[Path]] = {}
    for place, (label, path) in enumerate(named):
        groups.setdefault(label or str(place), []).append(path)
    if len(groups) > 2:
        raise UsageError(
            "A plan estimates the variation from one run or from two runs.",
            remedy="give --from at most twice, or label the seeds of a method: --from a=RUN --from a=RUN",
        )
    read = [[load_run(path) for path in paths] for paths in groups.values()]
    if len(named) > 1:
        check_comparable([run for members in read for run in members])
    return read


def _deviation(given: float | None, methods: Sequence[Sequence[EvaluatedRun]]) -> tuple[float, str]:
    """Standard deviation between runs of a method, without the noise of questions, and where it comes from."""
    if given is not None:
        return given, "given"
    found = []
    for members in methods:
        scores = scores_of("", [run.outcomes for run in members])
        if len(members) > 1 and (questions := list(scores.shares)):
            clusters = [scores.companies[name] for name in questions]
            found.append((run_spread(scores.of_runs(questions), clusters).between, len(members) - 1))
    if not found:
        return RUN_DEVIATION, "assumed"
    degrees = sum(count for _, count in found)
    return math.sqrt(sum(variance * count for variance, count in found) / degrees), f"from {degrees + len(found)} runs"


def _companies(questions: int, seen: Observed | None) -> float:
    return questions * seen.companies / seen.questions if seen else questions


def _check(design: Design, wanted: float | None) -> None:
    wrong = (
        (
            design.companies > design.questions,
            f"{design.questions} questions cannot be about {design.companies} companies",
        ),
        (design.companies < 2, "with fewer than two companies the variance between companies is unknown"),
        (wanted is not None and not 0 < wanted < 1, f"a difference in accuracy of {wanted} is not between 0 and 1"),
        (not 0.5 < design.level < 1, f"a level of {design.level} is not between 0.5 and 1"),
        (not 0.5 <= design.power < 1, f"a power of {design.power} is not between 0.5 and 1"),
    )
    for is_wrong, reason in wrong:
        if is_wrong:
            raise UsageError(f"This cannot be planned: {reason}.", remedy="finqa plan --help")


def _used(given: Assumptions, seen: Observed | None, design: Design) -> dict[str, tuple[float, str]]:
    """Each assumption and where it comes from; two correlations that rule each other out are made to agree."""
    found = {"accuracy": seen.accuracy, "repeated": seen.repeated, "company": seen.company} if seen else {}
    used: dict[str, tuple[float, str]] = {}
    for name, otherwise in FOR_NOTHING_KNOWN.items():
        own, run = getattr(given, name), found.get(name)
        if own is not None:
            used[name] = (own, "given")
        elif run is not None:
            used[name] = (run, "from the run")
        else:
            used[name] = (otherwise, "assumed")
    if given.company is None and design.companies == design.questions:
        used["company"] = (0.0, "one question per company")
    if given.paired is None and used["paired"][0] > used["repeated"][0]:
        used["paired"] = (used["repeated"][0], "as two attempts of one policy")
    elif given.repeated is None and found.get("repeated") is None and used["repeated"][0] < used["paired"][0]:
        used["repeated"] = (used["paired"][0], "as two policies")
    return used


def _seen_variation(first: EvaluatedRun, second: EvaluatedRun, repeated: float) -> Variation:
    """What two runs show; DataError when they show nothing."""
    try:
        variation = observed_variation(first.outcomes, second.outcomes, repeated=repeated)
        if variation.between + variation.within == 0:
            raise ValueError("the difference is the same on every question")
    except ValueError as error:
        raise DataError(
            f"{first.path} and {second.path} do not determine the variance of differences: {error}.",
            remedy="give one of them, or two larger runs",
        ) from error
    return variation


def _assumed(used: Mapping[str, tuple[float, str]], unevenness: float) -> Variation:
    accuracy, origin = used["accuracy"]
    if not 0 < accuracy < 1:
        raise DataError(
            f"With an accuracy of {accuracy:g} ({origin}) there is no variance between questions.",
            remedy="--accuracy with what you expect, such as 0.9",
        )
    paired, repeated, company = (used[name][0] for name in ("paired", "repeated", "company"))
    if paired > repeated:
        raise UsageError(
            f"Two policies cannot be more similar (correlation {paired:g}, {used['paired'][1]}) than "
            "two attempts of one "
            f"({repeated:g}, {used['repeated'][1]}).",
            remedy="--paired-correlation or --attempt-correlation",
        )
    return assumed_variation(accuracy, paired, repeated, company=company, unevenness=unevenness)
