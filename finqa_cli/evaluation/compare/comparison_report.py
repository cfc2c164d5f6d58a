"""Writes a comparison as files: report.md, tables, comparison.json and plots."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.evaluation.cluster_nouns import alike, clustered_by, counted, plural_noun
from finqa_cli.evaluation.compare.comparison import CompareResult
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun
from finqa_cli.evaluation.compare.plots import plotter
from finqa_cli.evaluation.markdown import cell, points, render
from finqa_cli.runs.durable_files import new_folder, read_document, storage, write_csv, write_json
from finqa_cli.runs.run_folder import write_manifest
from finqa_cli.statistics import REASONS, Comparison, Outcome, evaluation_metrics, scores_of, t_quantile
from finqa_cli.types.token_use import dollars

MOST_QUESTIONS = 10
"""Largest number of gained and of lost questions in the report; questions.csv has all."""

_POWER = 0.8

_SAID_OF_ONE_RUN = {
    "policies": "; one run each says nothing about the methods",
    "method and policy": "; one run says nothing about the method of that policy",
}


def write_comparison(result: CompareResult, out: Path, *, plots: bool = True) -> None:
    """Writes summary.csv, questions.csv, report.md, comparison.json, manifest.json and plots/ to a new folder.

    Raises:
        ConfigError: The folder is not empty.
        MissingDependencyError: `plots` is True, and matplotlib is not installed.
        StorageError: Writing failed; the folder is then not created.
    """
    draw = plotter() if plots else None
    check_out(out)
    with new_folder(out) as folder:
        drawn = draw(result, folder / "plots") if draw else []
        write_csv(folder / "summary.csv", summary_rows(result))
        write_csv(folder / "questions.csv", question_rows(result))
        write_json(folder / "comparison.json", document(result))
        with storage(folder / "report.md"):
            (folder / "report.md").write_text(markdown(result, drawn), encoding="utf-8")
        write_manifest(
            folder,
            "compare",
            parameters={"level": result.level, "baseline": result.baseline},
            inputs=[
                {
                    **{"run": str(run.path), "method": method.label, "seed": run.seed, "finqa": run.finqa},
                    **{"data": run.data_digest, "split": run.split, "files": dict(run.files)},
                }
                for method in result.methods
                for run in method.runs
            ],
            outputs=[path for path in sorted(folder.rglob("*")) if path.is_file()],
        )


def check_out(out: Path) -> None:
    """Raises a ConfigError if the path exists and is not an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder.", remedy="choose another --out")


def markdown(result: CompareResult, plots: Sequence[str]) -> str:
    """Returns the content of report.md; `plots` are names of files in plots/ beside it."""
    runs, methods, noun = result.runs, result.methods, result.clustered_by
    folders = dict(zip((run.path for run in runs), folder_names([run.path for run in runs]), strict=True))
    failures = failure_table(result)
    return render(
        Path(__file__).with_name("comparison.md.j2"),
        result=result,
        labels=[method.label for method in methods],
        level=f"{100 * result.level:g}",
        false_findings=f"{100 - 100 * result.level:g}",
        sentence=lambda one: sentence(result, one),
        clusters=plural_noun(noun),
        alike=alike(noun),
        clustered=clustered_by(noun),
        folders=folders,
        number_of=lambda number: "-" if number is None else f"{number:.0f}",
        dollars_of=lambda run: "-" if run.usage is None or run.usage.cost_usd is None else dollars(run.usage.cost_usd),
        tokens_per_answer=lambda run: _tokens_mean(each for each in run.outcomes if each.correct is not None),
        asked={outcome.question: outcome.prompt for run in runs for outcome in run.outcomes},
        most_questions=MOST_QUESTIONS,
        failures=failures,
        differing=[
            [path, *("-" if value is None else value for value in values)] for path, values in result.differing.items()
        ],
        several_seeds=any(len(method.runs) > 1 for method in methods),
        plots=plots,
    )


def failure_table(result: CompareResult) -> list[list[str]]:
    """Returns a row for each reason for which attempts are not right: its text, and the count of each method."""
    attempts = [sum(len(run.outcomes) for run in method.runs) for method in result.methods]
    rows = []
    for reason, text in REASONS.items():
        counts = [method.failures.get(reason, 0) for method in result.methods]
        if any(counts):
            shares = zip(counts, attempts, strict=True)
            rows.append([text, *(f"{count} ({100 * count / most:.1f} %)" if count else "0" for count, most in shares)])
    return rows


def sentence(result: CompareResult, comparison: Comparison) -> str:
    """Describes one pair in Markdown, with its interval and the smallest difference that would have been detected.

    The sentence is about methods if there are several runs of both, else about the policies of single runs.
    """
    paired, first, second = comparison.paired, cell(comparison.first), cell(comparison.second)
    numbers = f"{points(paired.difference)} points [{points(paired.low)}, {points(paired.high)}]"
    about = f"{first} against {second}: {numbers} on {_counts(result, comparison)}"
    tests = f"p = {comparison.adjusted:.3g}, exact McNemar {comparison.adjusted_mcnemar:.3g} after Holm"
    if comparison.verdict == "shown":
        return f"{about}. {_shown(comparison)} ({tests}){_SAID_OF_ONE_RUN.get(paired.about, '')}."
    if comparison.verdict == "tests disagree":
        if paired.about != "policies" and comparison.adjusted >= 1 - result.level:
            whose = "the methods" if paired.about == "methods" else "the method"
            return (
                f"{about}. These runs differ on these questions, but a difference of {whose} is not "
                "shown, given how runs and "
                f"{plural_noun(result.clustered_by)} vary ({tests}); train more seeds, or evaluate on "
                f"{_more_data(result, comparison)}."
            )
        more = _more_data(result, comparison)
        return f"{about}. The two tests disagree ({tests}); do not rely on it; evaluate on {more}."
    return f"{about}. No difference is shown ({tests}).{_blind_spot(comparison, result.level)}"


def _more_data(result: CompareResult, comparison: Comparison) -> str:
    """Names the data that would make the interval smaller: more clusters, if questions are clustered."""
    clustered = comparison.paired.clusters < comparison.paired.questions
    return f"questions about more {plural_noun(result.clustered_by)}" if clustered else "more questions"


def _shown(comparison: Comparison) -> str:
    paired = comparison.paired
    if paired.about == "policies":
        return "These two policies differ"
    if paired.about == "methods":
        return "The difference of the methods is shown"
    sides = zip((comparison.first, comparison.second), paired.runs, strict=True)
    method, policy = (cell(label) for label, _ in sorted(sides, key=lambda side: -side[1]))
    return f"The method {method} differs from the one policy {policy}"


def _counts(result: CompareResult, comparison: Comparison) -> str:
    """Returns the numbers behind a difference: questions, clusters and runs."""
    paired = comparison.paired
    first, second = paired.runs
    runs = f"{first} and {second} runs" if first != second else "one run each" if first == 1 else f"{first} runs each"
    own = paired.clusters == paired.questions
    clusters = "" if own else f" about {counted(paired.clusters, result.clustered_by)}"
    return f"{paired.questions} questions{clusters}, {runs}"


def _blind_spot(comparison: Comparison, level: float) -> str:
    """Names the smallest difference that such an evaluation shows with 80 % power, from its standard error.

    It is the minimum detectable effect of Bloom (1995), Evaluation Review 19(5): a multiple of the standard error.
    """
    paired = comparison.paired
    if paired.clusters < 2 or not paired.standard_error > 0:
        return ""
    factor = t_quantile((1 + level) / 2, paired.degrees) + t_quantile(_POWER, paired.degrees)
    smallest = min(1.0, factor * paired.standard_error)
    return (
        f" One below {100 * smallest:.1f} points would usually not be detected; `finqa plan` computes what is needed."
    )


def folder_names(paths: Sequence[Path]) -> list[str]:
    """Returns the last parts of each path, as few as are needed to distinguish all paths."""
    depths = range(1, max(len(path.parts) for path in paths) + 1)
    tails = ([str(Path(*path.parts[-depth:])) for path in paths] for depth in depths)
    return next((names for names in tails if len(set(names)) == len(names)), [str(path) for path in paths])


def document(result: CompareResult) -> dict[str, Any]:
    """Returns the `--json` form."""
    return {
        "level": result.level,
        "baseline": result.baseline or None,
        "clustered_by": result.clustered_by,
        "methods": [
            {
                "label": method.label,
                "runs": [str(run.path) for run in method.runs],
                "accuracy": method.accuracy.mean,
                "interval": [method.accuracy.low, method.accuracy.high],
                "questions": method.questions,
                "companies": method.accuracy.clusters,
                "seeds_deviation": method.seeds_deviation,
                "failure_reasons": dict(method.failures),
            }
            for method in result.methods
        ],
        "runs": summary_rows(result),
        "comparisons": [_comparison(comparison) for comparison in result.comparisons],
        "differing_settings": {path: list(values) for path, values in result.differing.items()},
        "notes": list(result.notes),
    }


def summary_rows(result: CompareResult) -> list[dict[str, Any]]:
    """Returns one row per run; unknown values are None."""
    return [_summary(method.label, run, result.level) for method in result.methods for run in method.runs]


def question_rows(result: CompareResult) -> list[dict[str, Any]]:
    """Returns one row per question with the share of right attempts of each method."""
    scores = [scores_of(method.label, [run.outcomes for run in method.runs]) for method in result.methods]
    asked = {outcome.question: outcome for run in result.runs for outcome in run.outcomes}
    return [
        {
            "id": name,
            "company": outcome.company,
            "type": outcome.kind,
            "question": outcome.prompt,
            **{score.label: score.shares.get(name) for score in scores},
        }
        for name, outcome in sorted(asked.items())
    ]


def accuracy_lines(folder: Path) -> list[str]:
    """Returns one line per method of a written comparison: accuracy, interval, and the numbers behind them.

    Args:
        folder: Folder that `write_comparison` wrote; without `comparison.json` there are no lines.
    """
    compared = read_document(folder / "comparison.json")
    return [
        f"{method['label']}: accuracy {method['accuracy']:.3f} [{method['interval'][0]:.3f}, "
        f"{method['interval'][1]:.3f}] on {method['questions']} questions, "
        f"{counted(method['companies'], compared['clustered_by'])}, {counted(len(method['runs']), 'run')}"
        for method in compared.get("methods", ())
        if "questions" in method  # comparisons of earlier versions do not record it
    ]


_USAGE = {
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "sampled_tokens": "sampled",
    "cost_usd": "cost_usd",
    "request_retries": "retries",
}
"""Column of the summary -> attribute of the `TokenUse` of an evaluation."""


def _summary(label: str, run: EvaluatedRun, level: float) -> dict[str, Any]:
    metrics, cost = evaluation_metrics(run.outcomes, level=level), run.cost
    graded = [outcome for outcome in run.outcomes if outcome.reward is not None]
    low, high = metrics["accuracy"]["interval"]
    shares = ("exact_match", "numeric_correctness", "program_validity", "program_accuracy", "format_compliance")
    return {
        "method": label,
        "seed": run.seed,
        "run": str(run.path),
        "questions": metrics["questions"],
        "companies": len({outcome.company for outcome in graded}),
        "accuracy": metrics["accuracy"]["value"],
        "accuracy_low": low,
        "accuracy_high": high,
        **{name: metrics[name]["value"] if metrics[name] else None for name in shares},
        "pass_at_most_k": list(metrics["pass_at_k"].values())[-1]["value"],
        "pass_hat_most_k": list(metrics["pass_hat_k"].values())[-1]["value"],
        "k": int(list(metrics["pass_at_k"])[-1]),
        "faults": metrics["faults"],
        "reward_mean": statistics.fmean(outcome.reward or 0.0 for outcome in graded),
        "turns_mean": statistics.fmean(outcome.turns for outcome in graded),
        "answer_tokens_mean": _tokens_mean(graded),
        **{name: getattr(run.usage, field, None) for name, field in _USAGE.items()},
        "training_iterations": cost.iterations if cost else None,
        "training_sampled_tokens": cost.sampled_tokens if cost else None,
        "training_learner_tokens": cost.trained_tokens if cost else None,
        "training_hours": cost.hours if cost else None,
    }


def _tokens_mean(outcomes: Iterable[Outcome]) -> float | None:
    known = [outcome.tokens for outcome in outcomes if outcome.tokens is not None]
    return statistics.fmean(known) if known else None


def _comparison(comparison: Comparison) -> dict[str, Any]:
    paired = asdict(comparison.paired)
    for name in ("standard_error", "degrees"):
        if math.isnan(paired[name]):  # JSON has no NaN
            paired[name] = None
    return {
        "first": comparison.first,
        "second": comparison.second,
        "about": comparison.paired.about,
        **paired,
        "p_value_holm": comparison.adjusted,
        "mcnemar_holm": comparison.adjusted_mcnemar,
        "verdict": comparison.verdict,
        "gained": list(comparison.gained),
        "lost": list(comparison.lost),
    }
