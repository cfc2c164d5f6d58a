"""A comparison as a report in Markdown: what is shown, how surely, at what cost, and how to read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from finqa_cli.evaluation.cluster_nouns import alike, plural_noun
from finqa_cli.evaluation.compare.comparison import CompareResult, Method
from finqa_cli.statistics import REASONS, Comparison, t_quantile

MOST_QUESTIONS = 10
"""Changed questions shown each way; questions.csv has all."""

_POWER = 0.8


def markdown(result: CompareResult, plots: Sequence[str]) -> str:
    """The content of report.md; `plots` are names of files in plots/ beside it."""
    first = result.runs[0]
    title = f"# {', '.join(cell(method.label) for method in result.methods)} on {cell(first.data_name)}/{first.split}"
    parts = [
        title,
        "## What is shown\n\n" + "\n".join(f"- {sentence(one, result.level)}" for one in result.comparisons),
        *(["## Mind\n\n" + "\n".join(f"- {cell(note)}" for note in result.notes)] if result.notes else []),
        "## Accuracy\n\n" + _accuracy(result),
        "## Differences\n\n" + _differences(result),
        "## Cost\n\n" + _cost(result),
        "## Questions that changed\n\n" + "\n\n".join(_changed(result, one) for one in result.comparisons),
        "## Why attempts failed\n\n" + _failures(result),
        *(["## Settings that differ\n\n" + _settings(result)] if result.differing else []),
        *(["## Plots\n\n" + "\n\n".join(f"![{name}](plots/{name})" for name in plots)] if plots else []),
        "## How to read this\n\n" + _method_notes(result),
    ]
    return "\n\n".join(parts) + "\n"


def sentence(comparison: Comparison, level: float) -> str:
    """One pair in words, with its interval and what could not have been seen."""
    paired = comparison.paired
    numbers = f"{_points(paired.difference)} points [{_points(paired.low)}, {_points(paired.high)}]"
    about = f"{cell(comparison.first)} against {cell(comparison.second)}: {numbers} on {paired.questions} questions"
    tests = f"p = {comparison.adjusted:.3g}, exact McNemar {comparison.adjusted_mcnemar:.3g} after Holm"
    if comparison.verdict == "shown":
        return f"{about}. The difference is shown ({tests})."
    if comparison.verdict == "tests disagree":
        return f"{about}. The two tests disagree ({tests}); do not build on it, ask more questions."
    return f"{about}. No difference is shown ({tests}).{_blind_spot(comparison, level)}"


def _blind_spot(comparison: Comparison, level: float) -> str:
    """What such an evaluation shows with 80 % power: Bloom 1995, by the standard error that was found."""
    paired = comparison.paired
    if paired.clusters < 2 or not paired.standard_error > 0:
        return ""
    degrees = paired.clusters - 1
    factor = t_quantile((1 + level) / 2, degrees) + t_quantile(_POWER, degrees)
    smallest = min(1.0, factor * paired.standard_error)
    return f" One below {100 * smallest:.1f} points would mostly go unseen here; `finqa plan` says what it takes."


def _accuracy(result: CompareResult) -> str:
    rows = []
    for method in result.methods:
        interval, deviation = method.accuracy, method.seeds_deviation
        seeds = ", ".join(str(run.seed) for run in method.runs)
        spread = "-" if deviation is None else f"{deviation:.3f}"
        shown = f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
        rows.append([method.label, shown, interval.clusters, seeds, spread])
    clusters = plural_noun(result.clustered_by)
    return table(["method", f"accuracy, {100 * result.level:g} % interval", clusters, "seeds", "SD of seeds"], rows)


def _differences(result: CompareResult) -> str:
    headers = ["pair", "points", "interval", "better", "worse", "p", "p Holm", "McNemar", "McNemar Holm", "verdict"]
    rows = []
    for one in result.comparisons:
        paired = one.paired
        p_values = [f"{value:.3g}" for value in (paired.p_value, one.adjusted, paired.mcnemar, one.adjusted_mcnemar)]
        interval = f"[{_points(paired.low)}, {_points(paired.high)}]"
        changed = [paired.first_better, paired.second_better]
        rows.append(
            [f"{one.first} less {one.second}", _points(paired.difference), interval, *changed, *p_values, one.verdict]
        )
    return table(headers, rows)


def _cost(result: CompareResult) -> str:
    headers = ["method", "seed", "run", "iterations", "sampled tokens", "learner tokens", "hours", "tokens per answer"]
    paths = [run.path for run in result.runs]
    names = dict(zip(paths, folder_names(paths), strict=True))
    rows: list[list[object]] = []
    for method in result.methods:
        for run in method.runs:
            graded = [outcome.tokens for outcome in run.outcomes if outcome.correct is not None]
            per_answer = f"{sum(graded) / len(graded):.0f}"
            cost = run.cost
            spent = (
                [cost.iterations, f"{cost.sampled_tokens:,}", f"{cost.trained_tokens:,}", f"{cost.hours:.3f}"]
                if cost
                else ["-"] * 4
            )
            rows.append([method.label, run.seed, names[run.path], *spent, per_answer])
    return table(headers, rows)


def _changed(result: CompareResult, comparison: Comparison) -> str:
    asked = {outcome.question: outcome.prompt for run in result.runs for outcome in run.outcomes}
    lines = [f"### {cell(comparison.first)} against {cell(comparison.second)}"]
    for what, names in (("better", comparison.gained), ("worse", comparison.lost)):
        more = f", the first {MOST_QUESTIONS} here and all in questions.csv" if len(names) > MOST_QUESTIONS else ""
        lines.append(f"{len(names)} {what}{more}{':' if names else '.'}")
        if names:
            lines.append("\n".join(f"- `{_code(name)}` {cell(asked[name])}" for name in names[:MOST_QUESTIONS]))
    return "\n\n".join(lines)


def _failures(result: CompareResult) -> str:
    met = [reason for reason in REASONS if any(method.failures.get(reason) for method in result.methods)]
    if not met:
        return "Every attempt of every method was right."
    headers = ["reason", *(method.label for method in result.methods)]
    rows = [[REASONS[reason], *(_share(method, reason) for method in result.methods)] for reason in met]
    return table(headers, rows)


def _share(method: Method, reason: str) -> str:
    count, attempts = method.failures.get(reason, 0), sum(len(run.outcomes) for run in method.runs)
    return f"{count} ({100 * count / attempts:.1f} %)" if count else "0"


def _settings(result: CompareResult) -> str:
    headers = ["setting", *folder_names([run.path for run in result.runs])]
    rows = [[path, *("-" if value is None else value for value in found)] for path, found in result.differing.items()]
    return table(headers, rows)


def folder_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path: as few as tell all of them apart."""
    depths = range(1, max(len(path.parts) for path in paths) + 1)
    tails = ([str(Path(*path.parts[-depth:])) for path in paths] for depth in depths)
    return next((names for names in tails if len(set(names)) == len(names)), [str(path) for path in paths])


def _method_notes(result: CompareResult) -> str:
    level, several = 100 * result.level, any(len(method.runs) > 1 for method in result.methods)
    seeds = " The intervals are about questions, not about seeds: the spread of the seeds stands beside them."
    lines = [
        f"- Intervals are {level:g} %, each for itself, and clustered by {result.clustered_by}: "
        f"{alike(result.clustered_by)} are right or wrong together (Miller, arXiv 2411.00640)."
        + (seeds if several else " Every method is one training run; another seed may end elsewhere."),
        "- Differences are taken question by question, which removes what makes questions hard for everyone. `p` is of "
        "the clustered t-test; McNemar is the exact test on the questions that changed and takes them for independent.",
        f"- Holm's correction over all pairs ({len(result.comparisons)}) holds the chance of any false finding at "
        f"{100 - level:g} %. A difference counts as shown when both corrected tests say so.",
        "- Cost is of the training of each policy from where it began: an earlier fine-tuning, demonstrations and "
        "sampled pairs are not in it. An iteration of `sft` and `dpo` is one optimizer step.",
        "- Episodes that ended in faults of infrastructure are in no number but their count.",
    ]
    return "\n".join(lines)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def table(headers: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(value: object) -> str:
    """Text that stays in its cell and is no markup of its own."""
    text = " ".join(str(value).split()).replace("\\", "\\\\").replace("<", "&lt;").replace("](", "]\\(")
    return re.sub(r"[|`*]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def _code(value: str) -> str:
    return " ".join(value.replace("`", "'").split())
