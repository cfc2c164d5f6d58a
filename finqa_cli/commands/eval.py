"""`finqa eval TARGET`: accuracy with its confidence interval."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine, shown_counts
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plain_table, plural
from finqa_cli.commands.shared.perform import RUNS, perform, run_path
from finqa_cli.commands.shared.rescoring import rescore_run
from finqa_cli.errors import DataError, ThresholdError, UsageError
from finqa_cli.evaluation.cluster_nouns import UNKNOWN, counted
from finqa_cli.evaluation.evaluate import EvalResult, evaluate, is_engine, policy_of
from finqa_cli.evaluation.unfinished_run import check_same, find_unfinished, stored_target
from finqa_cli.rollout.measures import flat
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_folder import read_run
from finqa_cli.settings import Settings
from finqa_cli.types import Status
from finqa_cli.wiring.policies import settings_of

app = CommandApp()

PLAYED = (
    *("environment", "engine", "sandbox", "reward", "pool", "data.snapshot", "data.path"),
    *("generation.max_steps", "generation.max_gen_tokens", "generation.engine_replicas", "run.dir", "train.seed"),
    *("run.max_cost", "run.max_tokens"),
)
"""Settings of every command that measures or samples a policy."""

FOLLOWED = (
    *("environment.name", "data.snapshot", "data.path", "reward.name", "model.name", "generation.max_steps"),
    *("generation.max_gen_tokens", "train.seed", "lora.rank", "codec.name"),
)
"""Settings that an evaluation takes from the run that made the policy, unless they are given."""

QUICK = {"eval.limit": 16, "pool.sandboxes": 8}
"""Counts of --quick-test, unless they are given."""


@app.command(epilog=f"Example: finqa eval runs/20260101_120000 --split test. {EXIT_CODES}")
@offers(*PLAYED, "eval", "data.eval_split", "run.save_token_ids")
def main(
    line: CommandLine,
    target: Annotated[
        str | None,
        typer.Argument(help="A run, a checkpoint, a model folder or hub id, `embedded`, or `scripted` (the expert)."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Evaluation to resume, with its settings: plays what is missing or faulted."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="A new run, also where the same command began one in ./runs that did not end."),
    ] = False,
    rescore: Annotated[
        Path | None,
        typer.Option("--rescore", help="Evaluation whose recorded attempts --grader or --reward grade again; no play."),
    ] = None,
    quick_test: Annotated[bool, typer.Option("--quick-test", help=f"A short run: {shown_counts(QUICK)}.")] = False,
) -> None:
    """Play every question of a split and report accuracy with its 95 % confidence interval.

    The interval is clustered by what questions share, such as their company.

    Saves report.json, metrics.json, breakdown.csv, items.csv, samples/, trajectories.jsonl and manifest.json in the run
    folder. With --limit the questions are drawn by eval.seed (0), independently of --seed: every run has the same.

    Where the same command did not end, it continues: attempts that are recorded are not played again.
    """
    if rescore is not None:
        rescore_run(line, rescore)
        return
    if resume is not None:
        line.check_resumed(resume, command="eval")
        if read_run(resume)["status"] == "completed":
            raise UsageError(f"{resume} is finished: all of its attempts are played.", remedy=f"finqa show {resume}")
        if (target := stored_target(resume)) is None:
            raise DataError(f"{resume} does not say which policy it evaluates.", remedy="finqa eval TARGET")
        settings, run = line.stored_settings(resume, "play"), resume
    elif target is None:
        raise UsageError("No policy and no evaluation to resume is given.", remedy="finqa eval embedded")
    else:
        settings = line.load({**target_settings(line, target), **line.quick(QUICK)}, purpose="play").settings
        resume = None if fresh else _begun(settings, target)
        run = resume or run_path(settings, "eval_")
        if resume is not None:
            line.note(f"{run} was begun by the same command and is continued; --fresh begins anew")
    played = target
    result = perform(
        line,
        lambda reporter, stopper: evaluate(
            settings, played, run, resume=resume is not None, reporter=reporter, stopper=stopper
        ),
        remedy=f"finqa eval --resume {run}",
    )
    document = {"target": target, "run": str(run), **result.report.to_dict()}
    if not line.as_json:
        emit(document, as_json=False, text=lambda: evaluation_text(result))
    _check_faults(result, settings)
    if line.as_json:  # after the check: an error is a document of its own, and there is only one
        emit(document, as_json=True, text="")


def _begun(settings: Settings, target: str) -> Path | None:
    """Return the evaluation that the same command began and did not end; None without one."""
    if (named := settings.run.dir) is not None:
        return named if check_same(named, target, settings) else None
    return find_unfinished(RUNS, target, settings, policy_of(target, settings.engine.name))


def target_settings(line: CommandLine, target: str) -> Mapping[str, Any]:
    """Return the settings that a target implies: the engine that it names, or those of the run that made it.

    Raises:
        UsageError: The target is an engine, and --engine names another one.
    """
    flags = line.flags
    if is_engine(target):
        if (other := flags.get("engine.name")) not in (None, target):
            raise UsageError(
                f"{target} plays by itself, so that --engine {other} would have no effect.",
                remedy=f"leave --engine out, or name the policy that {other} is to play instead of {target}",
            )
        return {"engine.name": target}
    if (stored := settings_of(target)) is None:
        return {"model.name": target}
    followed: dict[str, Any] = {}
    for path in FOLLOWED:
        section, _, field = path.partition(".")
        followed[path] = stored[section][field]
    for kind in ("environment", "reward"):
        if f"{kind}.name" not in flags:
            followed |= {f"{kind}.options.{key}": value for key, value in stored[kind]["options"].items()}
    return {path: value for path, value in followed.items() if path not in flags}


def _check_faults(result: EvalResult, settings: Settings) -> None:
    report = result.report
    if report.faults <= settings.pool.max_fault_share * report.episodes:
        return
    records = read_jsonl(result.run / "trajectories.jsonl")
    reasons = Counter(str(record["error"]).rstrip(".") for record in records if Status(record["status"]).is_fault)
    reason, count = reasons.most_common(1)[0]
    others = "" if report.faults == report.episodes else " The accuracy is that of the others."
    raise ThresholdError(
        f"{report.faults} of {report.episodes} episodes ended in faults, {count} by this: {reason}.{others}",
        remedy=f"finqa show {shlex.quote(str(result.run))} lists the errors",
    )


def evaluation_text(result: EvalResult) -> str:
    """Return the accuracy with its interval, then the breakdown by question type."""
    report = result.report.to_dict()
    low, high = report["accuracy_interval"]
    asked = f"{result.target} on {result.data.name}/{result.split}"
    if report["faults"] == report["episodes"]:  # then its accuracy is no figure of the policy
        return f"{asked}: no accuracy, for none of {plural(report['episodes'], 'episode')} could be graded"
    head = f"{asked}: accuracy {report['accuracy']:.3f}, 95 % interval {low:.3f} to {high:.3f} ({_asked(report)})"
    rows = [[kind, facts["episodes"], facts["accuracy"]] for kind, facts in report["by_kind"].items()]
    statuses = ", ".join(f"{count} {status}" for status, count in report["statuses"].items() if count)
    parts = ", ".join(f"{name} {value:.3f}" for name, value in report["components"].items() if name != "correct")
    errors, quoted = format_share(report["sql_error_rate"]), format_share(report["quoted_years"])
    queries = f"{errors} of SQL queries failed; {quoted} quoted their years; "
    lines = [
        head,
        *([f"reward {report['reward_mean']:.3f}: {parts}"] if parts else []),
        f"{report['turns_mean']:.1f} turns; {queries if report['sql_queries'] else ''}{statuses}",
        *(["", plain_table(["question type", "episodes", "accuracy"], rows)] if any(report["by_kind"]) else []),
        *(["", *measures] if (measures := list_measures(report["measures"])) else []),
        "",
        f"Report: {result.run / 'report.json'} and metrics.json; a row per attempt: {result.run / 'breakdown.csv'}",
        f"Next: finqa report {result.run}   or   finqa show {result.run}",
    ]
    return "\n".join(lines)


def _asked(report: Mapping[str, Any]) -> str:
    """Return the numbers that a score rests on: questions, episodes where these are more, and clusters."""
    episodes, questions = report["episodes"], report["questions"]
    parts = [plural(questions, "question"), *([plural(episodes, "episode")] if episodes != questions else [])]
    return ", ".join([*parts, *([name_clusters(report)] if report["clustered_by"] != "question" else [])])


def name_clusters(report: Mapping[str, Any]) -> str:
    """Return the number of clusters with their noun."""
    return counted(report["clusters"], report.get("clustered_by", UNKNOWN))  # runs of earlier versions do not say


def list_measures(measures: Mapping[str, Any]) -> list[str]:
    """Return the environment's own figures, a line each."""
    return [f"  {name}: {format_number(value)}" for name, value in flat(measures).items()]


def format_number(value: float | None) -> str:
    """Return a number with four digits, `-` for none."""
    return "-" if value is None else f"{value:.4g}"


def format_share(value: float | None) -> str:
    """Return a share in percent, `-` for none."""
    return "-" if value is None else f"{100 * value:.1f} %"
