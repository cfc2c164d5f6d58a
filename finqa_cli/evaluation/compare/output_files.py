"""A comparison as files and as a document."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.evaluation.compare.comparison import CompareResult
from finqa_cli.evaluation.compare.evaluated_runs import EvaluatedRun
from finqa_cli.evaluation.compare.markdown import markdown
from finqa_cli.evaluation.compare.plots import plotter
from finqa_cli.runs.durable_files import new_folder, storage, write_csv, write_json
from finqa_cli.runs.run_folder import write_manifest
from finqa_cli.statistics import Comparison, evaluation_metrics, scores_of


def write_comparison(result: CompareResult, out: Path, *, plots: bool = True) -> None:
    """Writes summary.csv, questions.csv, report.md, comparison.json, manifest.json and plots/ to a new folder.

    Raises:
        ConfigError: There is something in the folder already.
        MissingDependencyError: There are to be plots and matplotlib is not installed.
        StorageError: Writing failed; the folder is then not there.
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
            inputs=[_input(method.label, run) for method in result.methods for run in method.runs],
            outputs=[path for path in sorted(folder.rglob("*")) if path.is_file()],
        )


def check_out(out: Path) -> None:
    """Raises ConfigError when something would be overwritten."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not an empty folder.", remedy="choose another --out")


def document(result: CompareResult) -> dict[str, Any]:
    """The `--json` form."""
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
    """One row per run; empty where a thing was not measured or is not known."""
    return [_summary(method.label, run, result.level) for method in result.methods for run in method.runs]


def question_rows(result: CompareResult) -> list[dict[str, Any]]:
    """One row per question with the share of right attempts of each method: which questions changed, both ways."""
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
        "answer_tokens_mean": statistics.fmean(outcome.tokens for outcome in graded),
        "training_iterations": cost.iterations if cost else None,
        "training_sampled_tokens": cost.sampled_tokens if cost else None,
        "training_learner_tokens": cost.trained_tokens if cost else None,
        "training_hours": cost.hours if cost else None,
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    paired = asdict(comparison.paired)
    if comparison.paired.standard_error != comparison.paired.standard_error:  # NaN, which JSON has no word for
        paired["standard_error"] = None
    return {
        "first": comparison.first,
        "second": comparison.second,
        **paired,
        "p_value_holm": comparison.adjusted,
        "mcnemar_holm": comparison.adjusted_mcnemar,
        "verdict": comparison.verdict,
        "gained": list(comparison.gained),
        "lost": list(comparison.lost),
    }


def _input(label: str, run: EvaluatedRun) -> dict[str, Any]:
    facts = {"run": str(run.path), "method": label, "seed": run.seed, "finqa": run.finqa}
    return {**facts, "data": run.data_digest, "split": run.split, "files": dict(run.files)}
