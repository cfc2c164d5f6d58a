"""`finqa sft`: imitation of recorded demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli import logs
from finqa_cli.commands.dpo import followed
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.resume import as_typed, check_resumed, given_flags, own_settings, stored_parameter
from finqa_cli.commands.shared.run_arguments import check_project, perform, run_path
from finqa_cli.errors import UsageError
from finqa_cli.settings import Settings
from finqa_cli.training.sft.sft_run import Imitation, SftResult, document, sft

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


Epochs = Annotated[float | None, options.of_method("--epochs", "Passes over the data.", "3")]
PeakLearningRate = Annotated[float | None, options.of_method("--lr --learning-rate", "Peak AdamW step size.", "5e-6")]
BatchTokens = Annotated[int | None, options.of_method("--batch-tokens", "Tokens of one optimizer step.", "8192")]
MinimumReward = Annotated[
    float | None, options.of_method("--minimum-reward", "Imitate only episodes that earned this.", "all")
]
ValidateEvery = Annotated[
    int | None,
    options.of_method("--validate-every", "Steps between looks at held-out companies, each with a checkpoint.", "200"),
]
ValidationSamples = Annotated[
    int | None,
    options.of_method(
        "--validation-samples", "Held-out questions that the policy answers at each look; 0 asks none.", "16 if any"
    ),
]

PATHS = {
    "epochs": "sft.epochs",
    "sft_learning_rate": "sft.learning_rate",
    "batch_tokens": "sft.batch_tokens",
    "minimum_reward": "sft.minimum_reward",
    "validate_every": "sft.validate_every",
    "validation_samples": "sft.validation_samples",
}
"""The method's own parameters, by the setting that they override."""

QUICK_DEMONSTRATIONS = 16
QUICK = {"epochs": 1.0, "batch_tokens": 4096, "validate_every": 2, "validation_samples": 4}
"""What --quick-test asks for, unless it is given."""

OF_A_MODEL = ("model", "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules")
"""Flags that mean nothing to a model that is made anew and trained whole."""

CHOSEN = {"environment": "environment.", "reward": "reward.", "snapshot": "data.", "data": "data."}
"""Flag -> settings that the demonstrations' run does not decide where it is given."""


@app.command(epilog=f"Example: finqa sft runs/demonstrations --model Qwen/Qwen3-4B --epochs 2. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    demonstrations: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders or trajectories.jsonl files, as `finqa eval` and `finqa sample` write them."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with this interrupted run after its newest checkpoint.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option("--init", help="Make tokenizer and model from nothing, as this TOML file specifies."),
    ] = None,
    epochs: Epochs = None,
    sft_learning_rate: PeakLearningRate = None,
    batch_tokens: BatchTokens = None,
    minimum_reward: MinimumReward = None,
    validate_every: ValidateEvery = None,
    validation_samples: ValidationSamples = None,
    quick_test: Annotated[
        bool,
        typer.Option("--quick-test", help="One pass over 16 demonstrations, to see that everything works."),
    ] = False,
    model: options.Model = None,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_target_modules: options.LoraTargetModules = None,
    gradient_checkpointing: options.GradientCheckpointing = None,
    learner_processes: options.LearnerProcesses = None,
    environment: options.EnvironmentName = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    dangerously_run_unisolated: options.DangerouslyRunUnisolated = None,
    reward: options.Reward = None,
    grader: options.Grader = None,
    hints: options.Hints = None,
    snapshot: options.Snapshot = None,
    data: options.Data = None,
    eval_split: options.Split = None,
    sandboxes: options.Sandboxes = None,
    sessions_per_sandbox: options.SessionsPerSandbox = None,
    max_steps: options.MaxSteps = None,
    max_gen_tokens: options.MaxGenTokens = None,
    allow_evaluation_data: options.AllowEvaluationData = None,
    allow_overlap: options.AllowOverlap = None,
    run_dir: options.RunDir = None,
    tracker: options.Tracker = None,
    project: options.Project = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model (or with --init a new one) to say what the demonstrations say; loss on assistant tokens only.

    While it learns it answers held-out questions in the environment that the demonstrations are of, greedily. Saves
    checkpoints/best, final and step_N, valid_samples/, metrics.jsonl, report.json and manifest.json in the run folder.
    """
    if resume is not None:
        settings, wanted, run = *_stored(ctx, resume), resume
    elif not demonstrations:
        raise UsageError("Say what to imitate, or which run to go on with.", remedy="finqa eval scripted --split train")
    else:
        _check(ctx)
        extra = {**_followed(ctx, demonstrations[0]), **_method(ctx.params)}
        # a model that is made from nothing has no size yet; it is small
        settings = options.load(ctx, extra, purpose="sft" if init is None else None).settings
        check_project(project, settings)
        most = QUICK_DEMONSTRATIONS if quick_test else 0
        wanted, run = Imitation(sources=tuple(demonstrations), init=init, most=most), run_path(settings, "sft_")
    result = perform(
        lambda reporter, stopper: sft(
            settings, wanted, run, resume=resume is not None, reporter=reporter, stopper=stopper
        ),
        as_json=as_json,
        quiet=quiet,
        remedy=f"finqa sft --resume {run}",
        learner=settings.learner.name,
    )
    emit(document(result), as_json=as_json, text=lambda: _text(result))


def _check(ctx: typer.Context) -> None:
    if ctx.params["init"] is None:
        return
    if refused := set(given_flags(ctx)) & set(OF_A_MODEL):
        raise UsageError(
            f"With --init a new model is trained whole, so {as_typed(ctx, refused)} would have no effect.",
            remedy="finqa sft DATA --init FILE without them",
        )


def _stored(ctx: typer.Context, run: Path) -> tuple[Settings, Imitation]:
    check_resumed(ctx, run, command="sft")
    logs.configure()
    names = ("demonstrations", "init", "most_demonstrations")
    stored = {name: stored_parameter(run, name, "sft") for name in names}
    return own_settings(ctx, run, "sft" if stored["init"] is None else None), Imitation.from_parameters(stored)


def _method(given: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {
        **(QUICK if given["quick_test"] else {}),
        **{name: given[name] for name in PATHS if given[name] is not None},
    }
    return {PATHS[name]: value for name, value in wanted.items()}


def _followed(ctx: typer.Context, demonstrations: Path) -> dict[str, Any]:
    """Settings of the run that made the demonstrations, so that the policy is asked in the same environment."""
    given = given_flags(ctx)
    decided = tuple(prefix for flag, prefix in CHOSEN.items() if flag in given)
    flags = {options.PATHS[name] for name in given if name in options.PATHS}
    return {
        path: value
        for path, value in followed(demonstrations).items()
        if path not in flags and not path.startswith(decided or ("-",))
    }


def _text(result: SftResult) -> str:
    held_out = "" if result.validation_loss is None else f", {result.validation_loss:.4f} on held-out ones"
    best = f"; lowest loss on held-out demonstrations: {result.best} (step {result.best_step})" if result.best else ""
    lines = [
        f"{plural(result.demonstrations, 'demonstration')}, {plural(result.steps, 'step')} in {result.seconds:.0f} s: "
        f"loss {result.loss:.4f}{held_out}.",
        *_samples(result),
        f"Policy: {result.policy}{best}",
        f"Try it: finqa eval {result.policy}",
    ]
    return "\n".join(lines)


def _samples(result: SftResult) -> list[str]:
    samples = result.after.samples if result.after else None
    if samples is None or samples.accuracy is None or samples.reward_mean is None:
        return []
    form = "" if samples.parse_rate is None else f"{100 * samples.parse_rate:.1f} % of the right form (wanted: 90 %), "
    return [
        f"Answers to {plural(samples.questions, 'held-out question')}: {form}accuracy {samples.accuracy:.3f}, "
        f"mean reward {samples.reward_mean:.3f}"
    ]
