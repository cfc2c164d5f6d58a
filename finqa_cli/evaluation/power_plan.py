"""Plans what an evaluation can show, from assumptions or from the variation of evaluated runs."""

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
"""Values if neither a flag nor a run gives them: the accuracy with the largest variance, and moderate correlations."""

RUN_DEVIATION = 0.025
"""Standard deviation of the accuracies of a method's runs if neither the flag nor runs give it. It is the median over
the five methods of `benchmarks.methods`, whose deviations over three runs are 0.007, 0.009, 0.025, 0.072 and 0.144
(benchmarks/RESULTS.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Values that flags give; None is replaced by the value of the runs, or else of `FOR_NOTHING_KNOWN`.

    The first four are parameters of `finqa_cli.statistics.power.assumed_variation`. `deviation` is the standard
    deviation of the accuracies of a method's runs; without runs it is `RUN_DEVIATION`.
    """

    accuracy: float | None = None
    paired: float | None = None
    repeated: float | None = None
    company: float | None = None
    deviation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Result of `finqa plan` for an evaluation.

    Attributes:
        design: The planned evaluation.
        variation: Variance between questions and between attempts that the plan is based on.
        used: Name of an assumption -> value and origin.
        smallest: The smallest difference in accuracy of two policies that the design shows.
        deviation: Standard deviation of the accuracies of a method's runs.
        wanted: The difference that is to be shown; None if the user gave none.
        questions: Questions needed to show `wanted` with the design's attempts; None without `wanted`, or if no number
            is sufficient.
        attempts: Attempts needed to show `wanted` with the design's questions; None as above.
        seeds: Runs of each method needed to show `wanted` of two methods with the design; None as above.
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
        questions: Number of questions; None: that of the first run.
        companies: Number of companies of the questions; None: as in the run, or one per question.
        attempts: Attempts per question and policy; None: as in the run, or 1.
        wanted: A difference in accuracy that is to be shown.
        level: 1 - alpha of the two-sided test.
        power: Probability of showing a difference that exists.
        comparisons: Number of comparisons that Holm's method corrects for.
        assumptions: Values of the flags about the variation.
        runs: Empty, one evaluated run, or two that asked the same questions. With LABEL=FOLDER, the runs of one label
            are seeds of one method: the deviation is estimated from all of them, everything else from the first.

    Raises:
        UsageError: A value is out of range, or there are more than two runs or labels.
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
    """Returns the smallest difference of two policies for other numbers of attempts at the same questions."""
    return [(number, detectable(replace(result.design, attempts=number), result.variation)) for number in numbers]


def with_seeds(result: Plan, numbers: Sequence[int]) -> list[tuple[int, float]]:
    """Returns the smallest difference of two methods for other numbers of runs of each; infinite for one run."""
    return [
        (number, detectable_methods(result.design, result.variation, deviation=result.deviation, seeds=number))
        for number in numbers
    ]


def _read(runs: Sequence[str]) -> list[list[EvaluatedRun]]:
    """Reads the runs and groups them by label; a run without a label is a group of its own."""
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
    """Returns the standard deviation between runs of a method, without the noise of questions, and its origin.

    That of several methods is pooled: the variances are weighted by their degrees of freedom.
    """
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
    """Returns each assumption with its origin. An assumed correlation is changed if it contradicts the other one."""
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
    """Returns the variation of the difference of two runs.

    Raises:
        DataError: The runs do not determine it.
    """
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
