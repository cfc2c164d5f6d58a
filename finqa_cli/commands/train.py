"""`finqa train`: reinforcement learning in sandboxes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands import dpo
from finqa_cli.commands.shared import options, reports
from finqa_cli.commands.shared.options import PATHS
from finqa_cli.commands.shared.output import emit
from finqa_cli.commands.shared.quick import quick, shown
from finqa_cli.commands.shared.resume import FREE, as_typed, check_resumed, given_flags, own_settings
from finqa_cli.commands.shared.run_arguments import check_project, perform, run_path
from finqa_cli.diagnostics.machine_checks import plan_report
from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.settings import Loaded, Settings
from finqa_cli.training.rl.dry_run import dry_run
from finqa_cli.training.rl.rl_run import check_idle_options, train
from finqa_cli.training.running_learner import is_scheduled
from finqa_cli.wiring.placing import visible_devices

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

FREE_ON_RESUME = ("iterations", *FREE)

QUICK = {
    "sandboxes": 8,
    "iterations": 2,
    "group_size": 4,
    "target_groups_per_iter": 4,
    "max_rollout_rounds": 4,
    "limit": 16,
}
"""What --quick-test asks for, unless it is given."""

DRY = {"iterations": 10, "target_groups_per_iter": 4, "group_size": 2}
"""What --dry-run plays, unless a flag, a variable or a file says something else."""

WITH_PAIRS = (
    "pairs",
    "optimizer",
    "quick_test",
    "learning_rate",
    "model",
    "lora_rank",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "gradient_checkpointing",
    "learner_processes",
    "allow_evaluation_data",
    "allow_overlap",
    "run_dir",
    "tracker",
    "project",
    "seed",
    "config",
    "assign",
    "as_json",
    "quiet",
)
"""Flags that mean something to a method that learns from pairs; the others are about rollouts."""

Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Continue this run after its newest checkpoint; --iterations and --learner-processes may change.",
    ),
]
Pairs = Annotated[
    Path | None,
    typer.Option(
        "--pairs",
        help="For --optimizer dpo: train on the pairs that `finqa prefs` wrote, as `finqa dpo` does; play nothing.",
    ),
]
QuickTest = Annotated[
    bool, typer.Option("--quick-test", help=f"To see that everything works: {shown(QUICK)}, unless they are given.")
]


DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help=f"Play what training would, with any engine, and train on nothing: {shown(DRY)}, unless they are set.",
    ),
]


@app.command(epilog=f"Smoke test: finqa train --sandboxes 2 --iterations 1 --group-size 2. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    resume: Resume = None,
    pairs: Pairs = None,
    quick_test: QuickTest = False,
    only_rollouts: DryRun = False,
    sandboxes: options.Sandboxes = None,
    sessions_per_sandbox: options.SessionsPerSandbox = None,
    max_concurrent_create: options.MaxConcurrentCreate = None,
    max_concurrent_play: options.MaxConcurrentPlay = None,
    max_play_retries: options.MaxPlayRetries = None,
    iterations: options.Iterations = None,
    group_size: options.GroupSize = None,
    target_groups_per_iter: options.TargetGroups = None,
    max_rollout_rounds: options.MaxRolloutRounds = None,
    model: options.Model = None,
    snapshot: options.Snapshot = None,
    data: options.Data = None,
    learning_rate: options.LearningRate = None,
    temperature: options.Temperature = None,
    max_steps: options.MaxSteps = None,
    max_gen_tokens: options.MaxGenTokens = None,
    rollout_dispatch_wait_ms: options.DispatchWait = None,
    engine_replicas: options.EngineReplicas = None,
    tensor_parallel_size: options.TensorParallelSize = None,
    gpu_memory_utilization: options.GpuMemoryUtilization = None,
    max_model_len: options.MaxModelLen = None,
    sleep: options.Sleep = None,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_target_modules: options.LoraTargetModules = None,
    sync_every: options.SyncEvery = None,
    max_staleness: options.MaxStaleness = None,
    off_policy: options.OffPolicy = None,
    grpo_update_batch_size: options.UpdateBatchSize = None,
    gradient_checkpointing: options.GradientCheckpointing = None,
    learner_processes: options.LearnerProcesses = None,
    run_dir: options.RunDir = None,
    save_token_ids: options.SaveTokenIds = None,
    tracker: options.Tracker = None,
    project: options.Project = None,
    environment: options.EnvironmentName = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    dangerously_run_unisolated: options.DangerouslyRunUnisolated = None,
    reward: options.Reward = None,
    grader: options.Grader = None,
    hints: options.Hints = None,
    optimizer: options.Optimizer = None,
    eval_split: options.Split = None,
    dataset_split: options.DatasetSplit = None,
    dataset_limit: options.DatasetLimit = None,
    max_attempts: options.MaxAttempts = None,
    limit: options.Limit = None,
    shuffle_rewards: options.ShuffleRewards = None,
    allow_evaluation_data: options.AllowEvaluationData = None,
    allow_overlap: options.AllowOverlap = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a LoRA policy: groups of episodes in sandboxes, credit, an update, the new weights back to the engine.

    Evaluates on held-out companies before and after. With no model named and no GPU it trains the embedded policy,
    whose profile replaces some of the defaults below: finqa config show --origin.
    """
    if pairs is not None:
        _on_pairs(ctx, pairs)
    elif resume is not None:
        _on_groups(ctx, _stored(ctx, resume), resume, resume=True)
    else:
        loaded = options.load(ctx, quick(ctx, QUICK), purpose="play" if only_rollouts else "train")
        _check(ctx, loaded)
        if only_rollouts:
            _play_only(ctx, loaded)
        else:
            _on_groups(ctx, loaded.settings, run_path(loaded.settings), resume=False)


def _check(ctx: typer.Context, loaded: Loaded) -> None:
    """Refuses what would have no effect; one line on stderr names options of presets and defaults that have none."""
    check_project(ctx.params["project"], loaded.settings)
    line = check_idle_options(loaded)
    if line and not (ctx.params["as_json"] or ctx.params["quiet"]):
        print(line, file=sys.stderr)


def _on_groups(ctx: typer.Context, settings: Settings, run: Path, *, resume: bool) -> None:
    """Training on what is played."""
    result = perform(
        lambda reporter, stopper: train(settings, run, resume=resume, reporter=reporter, stopper=stopper),
        as_json=ctx.params["as_json"],
        quiet=ctx.params["quiet"],
        remedy=f"finqa train --resume {run}",
        learner=settings.learner.name,
    )
    emit(reports.training_document(result), as_json=ctx.params["as_json"], text=lambda: reports.training(result))


def _on_pairs(ctx: typer.Context, pairs: Path) -> None:
    """What `finqa dpo` does with the same flags."""
    given = ctx.params
    if refused := set(given_flags(ctx)) - set(WITH_PAIRS):
        raise UsageError(
            f"With --pairs nothing is played, so {as_typed(ctx, refused)} would have no effect.",
            remedy=f"finqa dpo --resume {given['resume']}" if given["resume"] else f"finqa dpo {pairs}",
        )
    extra = {**dpo.followed(pairs), **(dpo.quick_steps() if given["quick_test"] else {})}
    settings = options.load(ctx, extra, purpose="dpo").settings
    check_project(given["project"], settings)
    dpo.train_on_pairs(
        settings,
        pairs,
        run_path(settings, "dpo_"),
        resume=False,
        most=dpo.QUICK_PAIRS if given["quick_test"] else 0,
        as_json=given["as_json"],
        quiet=given["quiet"],
    )


def _play_only(ctx: typer.Context, loaded: Loaded) -> None:
    """Rollouts without a learner."""
    unset = ("default", "profile")
    few = {PATHS[name]: count for name, count in DRY.items() if loaded.origins[PATHS[name]].startswith(unset)}
    loaded = options.load(ctx, {**quick(ctx, QUICK), **few}, quiet=True, purpose="play")
    settings = loaded.settings
    plan = plan_report(settings, loaded.undecided, visible_devices())
    if not (ctx.params["as_json"] or ctx.params["quiet"]):
        print(plan.text or f"placement: {plan.check.detail}\nfix: {plan.check.remedy}", file=sys.stderr)
    run = run_path(settings, "dry_")
    result = perform(
        lambda reporter, stopper: dry_run(settings, run, reporter=reporter, stopper=stopper),
        as_json=ctx.params["as_json"],
        quiet=ctx.params["quiet"],
    )
    document = {**reports.dry_run_document(result), "plan": plan.document}
    emit(document, as_json=ctx.params["as_json"], text=lambda: reports.dry_run(result))


def _stored(ctx: typer.Context, run: Path) -> Settings:
    """The run's own settings; it may be made longer, unless its learning rate counts on its length.

    Raises:
        ConfigError: It would have had another learning rate from the beginning.
    """
    given = check_resumed(ctx, run, command="train", free=FREE_ON_RESUME)
    settings = own_settings(ctx, run, "train")
    planned = settings.train.iterations
    if (iterations := given.get("iterations", planned)) == planned:
        return settings
    if is_scheduled(settings.train):
        raise ConfigError(
            f"The learning rate of {run} is planned for {planned} iterations (train.schedule="
            f"{settings.train.schedule}, train.warmup_share={settings.train.warmup_share:g}); for {iterations} it "
            "would have been another from the first step.",
            remedy=f"finqa train --resume {run}, or a new run with --iterations {iterations}",
        )
    return settings.model_copy(update={"train": settings.train.model_copy(update={"iterations": iterations})})
