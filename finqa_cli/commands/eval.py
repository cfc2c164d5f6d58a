"""`finqa eval TARGET`: accuracy with its confidence interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared import options, reports
from finqa_cli.commands.shared.output import emit
from finqa_cli.commands.shared.quick import quick, shown
from finqa_cli.commands.shared.run_arguments import perform, run_path
from finqa_cli.errors import ThresholdError, UsageError
from finqa_cli.evaluation.evaluate import EvalResult, evaluate, is_engine
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.settings import Settings
from finqa_cli.types import Status
from finqa_cli.wiring.policies import settings_of

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

FOLLOWED = {
    "environment": "environment.name",
    "snapshot": "data.snapshot",
    "data": "data.path",
    "reward": "reward.name",
    "model": "model.name",
    "max_steps": "generation.max_steps",
    "max_gen_tokens": "generation.max_gen_tokens",
    "seed": "train.seed",
    "lora_rank": "lora.rank",
    "codec": "codec.name",
}
"""Parameter -> setting: what an evaluation takes over from the run that made the policy, unless it is given."""

QUICK = {"limit": 16, "sandboxes": 8}
"""What --quick-test asks for, unless it is given."""


@app.command(epilog=f"Example: finqa eval runs/20260101_120000 --split test. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(help="A run, a checkpoint, a model folder or hub id, `embedded`, or `scripted` (the expert)."),
    ],
    eval_split: options.Split = None,
    limit: options.Limit = None,
    quick_test: Annotated[
        bool,
        typer.Option("--quick-test", help=f"To see that everything works: {shown(QUICK)}, unless they are given."),
    ] = False,
    attempts: options.Attempts = None,
    dataset_limit: options.DatasetLimit = None,
    max_attempts: options.MaxAttempts = None,
    environment: options.EnvironmentName = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    dangerously_run_unisolated: options.DangerouslyRunUnisolated = None,
    reward: options.Reward = None,
    grader: options.Grader = None,
    hints: options.Hints = None,
    snapshot: options.Snapshot = None,
    data: options.Data = None,
    sandboxes: options.Sandboxes = None,
    sessions_per_sandbox: options.SessionsPerSandbox = None,
    max_concurrent_create: options.MaxConcurrentCreate = None,
    max_concurrent_play: options.MaxConcurrentPlay = None,
    max_play_retries: options.MaxPlayRetries = None,
    max_steps: options.MaxSteps = None,
    max_gen_tokens: options.MaxGenTokens = None,
    engine_replicas: options.EngineReplicas = None,
    eval_temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.", show_default="0")
    ] = None,
    run_dir: options.RunDir = None,
    save_token_ids: options.SaveTokenIds = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Play every question of a split and report accuracy with its 95 % confidence interval.

    The interval is clustered by what questions share, such as their company.

    Saves report.json, metrics.json, breakdown.csv, items.csv, samples/, trajectories.jsonl and manifest.json in the run
    folder. With --limit the questions are drawn by eval.seed (0), whatever --seed is: every run is asked the same.
    """
    settings = options.load(ctx, {**target_settings(ctx, target), **quick(ctx, QUICK)}, purpose="play").settings
    run = run_path(settings, "eval_")
    result = perform(
        lambda reporter, stopper: evaluate(settings, target, run, reporter=reporter, stopper=stopper),
        as_json=as_json,
        quiet=quiet,
    )
    document = {"target": target, "run": str(run), **result.report.to_dict()}
    if not as_json:
        emit(document, as_json=False, text=lambda: reports.evaluation(result))
    _check_faults(result, settings)
    if as_json:  # after the check: an error is a document of its own, and there is only one
        emit(document, as_json=True, text="")


def target_settings(ctx: typer.Context, target: str) -> Mapping[str, Any]:
    """What a target says about how it is played: the engine that it names, or the settings of the run that it is of.

    Raises:
        UsageError: The target is an engine, and --engine names another one.
    """
    if is_engine(target):
        if (other := ctx.params.get("engine")) not in (None, target):
            raise UsageError(
                f"{target} plays by itself, so that --engine {other} would have no effect.",
                remedy=f"leave --engine out, or name the policy that {other} is to play instead of {target}",
            )
        return {"engine.name": target}
    if (stored := settings_of(target)) is None:
        return {"model.name": target}
    given = {name for name, value in ctx.params.items() if value is not None}
    followed = {path: _get(stored, path) for parameter, path in FOLLOWED.items() if parameter not in given}
    for kind in ("environment", "reward"):
        if kind not in given:
            options_of_kind = stored[kind]["options"]
            followed |= {f"{kind}.options.{key}": value for key, value in options_of_kind.items() if key not in given}
    return followed


def _get(tree: Mapping[str, Any], path: str) -> Any:
    section, _, field = path.partition(".")
    return tree[section][field]


def _check_faults(result: EvalResult, settings: Settings) -> None:
    report = result.report
    if report.faults > settings.pool.max_fault_share * report.episodes:
        others = "" if report.faults == report.episodes else " The accuracy is that of the others."
        raise ThresholdError(
            f"{report.faults} of {report.episodes} episodes ended in faults, {_most_of_them(result.run)}.{others}",
            remedy=f"see the errors in {result.run / 'trajectories.jsonl'}",
        )


def _most_of_them(run: Path) -> str:
    """The commonest reason, such as `2 by this: Cannot connect to the environment server`."""
    faults = [record for record in read_jsonl(run / "trajectories.jsonl") if Status(record["status"]).is_fault]
    reasons = Counter(str(record["error"]).rstrip(".") for record in faults)
    reason, count = reasons.most_common(1)[0]
    return f"{count} by this: {reason}"
