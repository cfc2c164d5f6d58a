"""Evaluations and training results as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from finqa_cli.commands.shared.output import plain_table, plural
from finqa_cli.evaluation.cluster_nouns import UNKNOWN, counted
from finqa_cli.evaluation.evaluate import EvalResult
from finqa_cli.rollout.measures import flat
from finqa_cli.training.rl.dry_run import DryRunResult, closing
from finqa_cli.training.rl.rl_run import TrainResult

LARGEST_GROUP = 4

MEASURES: tuple[tuple[str, str, bool], ...] = (
    ("accuracy", "accuracy", True),
    ("quoted_years", "queries with quoted years", True),
    ("sql_error_rate", "SQL errors per query", True),
    ("turns_mean", "turns per episode", False),
)
"""Key in the report, its label, and whether it is a share."""


def evaluation(result: EvalResult) -> str:
    """Accuracy with its interval, then the breakdown by question type."""
    report = result.report.to_dict()
    low, high = report["accuracy_interval"]
    asked = f"{result.target} on {result.data.name}/{result.split}"
    if report["faults"] == report["episodes"]:  # then its accuracy is no figure of the policy
        return f"{asked}: no accuracy, for none of {plural(report['episodes'], 'episode')} could be graded"
    head = (
        f"{asked}: accuracy {report['accuracy']:.3f}, 95 % interval {low:.3f} to {high:.3f} "
        f"({plural(report['episodes'], 'episode')}, {_clusters(report)})"
    )
    rows = [[kind, facts["episodes"], facts["accuracy"]] for kind, facts in report["by_kind"].items()]
    statuses = ", ".join(f"{count} {status}" for status, count in report["statuses"].items() if count)
    parts = ", ".join(f"{name} {value:.3f}" for name, value in report["components"].items() if name != "correct")
    queries = (
        f"{_share(report['sql_error_rate'])} of SQL queries failed; "
        f"{_share(report['quoted_years'])} quoted their years; "
    )
    lines = [
        head,
        *([f"reward {report['reward_mean']:.3f}: {parts}"] if parts else []),
        f"{report['turns_mean']:.1f} turns; {queries if report['sql_queries'] else ''}{statuses}",
        *(["", plain_table(["question type", "episodes", "accuracy"], rows)] if any(report["by_kind"]) else []),
        *(["", *measures] if (measures := _measure_lines(report["measures"])) else []),
        "",
        f"Report: {result.run / 'report.json'} and metrics.json; a row per attempt: {result.run / 'breakdown.csv'}",
    ]
    return "\n".join(lines)


def training(result: TrainResult) -> str:
    """The before and after table, and where the run lies."""
    if not result.before:
        return f"{plural(result.iterations, 'iteration')} in {result.seconds:.0f} s, not evaluated.\nRun: {result.run}"
    rows = [
        [_label(label, result.after), *(_measure(facts, key, share) for facts in (result.before, result.after))]
        for key, label, share in MEASURES
    ]
    rows = [row for row in rows if row[1:] != ["-", "-"]]  # what this environment has nothing to do with
    own = [flat(_brief(facts.get("measures", {}))) for facts in (result.before, result.after)]
    rows += [[name, *(_number(facts.get(name)) for facts in own)] for name in dict.fromkeys([*own[0], *own[1]])]
    return "\n".join(
        [
            f"Held-out questions ({_asked(result.after)}, never trained on):",
            plain_table(["", "before", f"after {plural(result.iterations, 'iteration')}"], rows),
            "",
            f"Run: {result.run} ({result.seconds:.0f} s)",
            f"Next: finqa eval {result.run}   or   finqa train --resume {result.run} --iterations N",
        ]
    )


def dry_run(result: DryRunResult) -> str:
    """The closing summary of rollouts without training."""
    measures = _measure_lines(result.measures)
    return "\n".join(["Dry run complete!", closing(result), *measures, f"Run: {result.run} ({result.seconds:.0f} s)"])


def dry_run_document(result: DryRunResult) -> dict[str, Any]:
    """The `--json` form."""
    return {**asdict(result), "run": str(result.run), "seconds": round(result.seconds, 3)}


def training_document(result: TrainResult) -> dict[str, Any]:
    """The `--json` form."""
    return {
        "run": str(result.run),
        "iterations": result.iterations,
        "seconds": round(result.seconds, 3),
        "before": result.before,
        "after": result.after,
    }


def _asked(report: Mapping[str, Any]) -> str:
    """How many, and in how many clusters where these are fewer."""
    episodes, clusters = report["episodes"], report["clusters"]
    if clusters >= episodes:
        return str(episodes)
    if report.get("clustered_by") == "question":
        return f"{clusters}, {plural(episodes, 'attempt')}"
    return f"{episodes} of {_clusters(report)}"


def _clusters(report: Mapping[str, Any]) -> str:
    return counted(report["clusters"], report.get("clustered_by", UNKNOWN))  # runs of earlier versions do not say


def _label(label: str, facts: Mapping[str, Any]) -> str:
    if label != "accuracy":
        return label
    temperature = facts["temperature"]
    return f"accuracy at temperature {temperature:g}" if temperature else "accuracy, greedy"


def _measure(facts: Mapping[str, Any], key: str, share: bool) -> str:
    value = facts[key]
    if not share:
        return f"{value:.2f}"
    if key == "accuracy":
        low, high = facts["accuracy_interval"]
        return f"{value:.3f} [{low:.3f}, {high:.3f}]"
    return _share(value)


def _brief(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Without groups of many numbers, which would bury the rest; `finqa eval` and metrics.jsonl have them all."""
    return {
        name: value
        for name, value in measures.items()
        if not (isinstance(value, Mapping) and len(value) > LARGEST_GROUP)
    }


def _measure_lines(measures: Mapping[str, Any]) -> list[str]:
    """The environment's own figures, a line each."""
    return [f"  {name}: {_number(value)}" for name, value in flat(measures).items()]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
