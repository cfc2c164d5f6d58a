"""`finqa dpo PAIRS`: direct preference optimization.

A command of its own, as `finqa sft` is: pairs are a file, so that none of the flags about sandboxes, groups and
rollouts would mean anything. `finqa train --optimizer dpo --pairs PAIRS` does the same and refuses those flags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.resume import stored_parameter, stored_settings
from finqa_cli.commands.shared.run_arguments import check_project, perform, run_path
from finqa_cli.errors import UsageError
from finqa_cli.settings import Settings
from finqa_cli.training.preference.dpo_run import DpoResult, document, dpo
from finqa_cli.training.preference.preference_loop import HeldOut

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


LossType = Annotated[
    Literal["sigmoid", "hinge", "ipo"] | None, options.of_method("--loss-type", "Form of the loss.", "sigmoid")
]
Beta = Annotated[float | None, options.of_method("--beta", "Pull towards the reference.", "0.1")]
LabelSmoothing = Annotated[
    float | None, options.of_method("--label-smoothing", "Share of preferences that may be wrong; sigmoid only.", "0")
]
ReferenceFree = Annotated[bool | None, options.of_method("--reference-free", "Leave the reference policy out.", False)]
Epochs = Annotated[float | None, options.of_method("--epochs", "Passes over the pairs.", "1")]
PairsPerStep = Annotated[int | None, options.of_method("--pairs-per-step", "Of one optimizer step.", "16")]
ValidateEvery = Annotated[
    int | None,
    options.of_method("--validate-every", "Steps between looks at held-out pairs, each with a checkpoint.", "50"),
]

QUICK_PAIRS = 8
QUICK = {"epochs": 1.0, "pairs_per_step": 4, "validate_every": 1}
"""What --quick-test asks for, unless it is given."""

FOLLOWED = ("environment", "reward", "data.snapshot", "data.path", "generation.max_steps", "generation.max_gen_tokens")
"""What a run takes over from the run that its pairs are of, so that an evaluation of its policy asks the same."""


@app.command(epilog=f"Example: finqa dpo runs/prefs_20260101_120000 --beta 0.1. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    pairs: Annotated[Path | None, typer.Argument(help="Folder that `finqa prefs` wrote, or its pairs.jsonl.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with this interrupted run after its newest checkpoint.")
    ] = None,
    loss_type: LossType = None,
    beta: Beta = None,
    label_smoothing: LabelSmoothing = None,
    reference_free: ReferenceFree = None,
    epochs: Epochs = None,
    pairs_per_step: PairsPerStep = None,
    validate_every: ValidateEvery = None,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help="Two steps on eight pairs, to see that everything works.")
    ] = False,
    learning_rate: options.LearningRate = None,
    model: options.Model = None,
    lora_rank: options.LoraRank = None,
    lora_alpha: options.LoraAlpha = None,
    lora_dropout: options.LoraDropout = None,
    lora_target_modules: options.LoraTargetModules = None,
    gradient_checkpointing: options.GradientCheckpointing = None,
    learner_processes: options.LearnerProcesses = None,
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
    """Train a policy to prefer the chosen attempt of each pair, and measure that on held-out companies.

    Saves checkpoints/best, final and step_N, metrics.jsonl, report.json and manifest.json in the run folder.
    """
    if resume is not None:
        settings, target = stored_settings(ctx, resume, command="dpo")
        source, most, run = Path(target), int(stored_parameter(resume, "most_pairs", "dpo")), resume
    elif pairs is None:
        raise UsageError("Say which pairs to train on, or which run to go on with.", remedy="finqa prefs RUN")
    else:
        settings = options.load(ctx, {**followed(pairs), **_method(ctx.params)}, purpose="dpo").settings
        check_project(project, settings)
        source, most, run = pairs, QUICK_PAIRS if quick_test else 0, run_path(settings, "dpo_")
    train_on_pairs(settings, source, run, resume=resume is not None, most=most, as_json=as_json, quiet=quiet)


def train_on_pairs(
    settings: Settings, source: Path, run: Path, *, resume: bool, most: int, as_json: bool, quiet: bool
) -> None:
    """Trains and prints what came of it."""
    result = perform(
        lambda reporter, stopper: dpo(
            settings, source, run, resume=resume, most=most, reporter=reporter, stopper=stopper
        ),
        as_json=as_json,
        quiet=quiet,
        remedy=f"finqa dpo --resume {run}",
        learner=settings.learner.name,
    )
    emit(document(result), as_json=as_json, text=lambda: _text(result))


def _method(given: Mapping[str, Any]) -> dict[str, Any]:
    """The method's own options, by their path in the settings."""
    names = (
        "loss_type",
        "beta",
        "label_smoothing",
        "reference_free",
        "epochs",
        "pairs_per_step",
        "validate_every",
    )
    wanted = {name: given[name] for name in names if given[name] is not None}
    return {
        "optimizer.name": "dpo",
        **(quick_steps() if given["quick_test"] else {}),
        **{f"optimizer.options.{name}": value for name, value in wanted.items()},
    }


def quick_steps() -> dict[str, Any]:
    """What --quick-test asks of the method, by its path in the settings."""
    return {f"optimizer.options.{name}": value for name, value in QUICK.items()}


def followed(pairs: Path) -> dict[str, Any]:
    """Settings of the run that the pairs are of, where `finqa prefs` kept them."""
    folder = pairs if pairs.is_dir() else pairs.parent
    try:
        stored = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        found: dict[str, Any] = {}
        for path in FOLLOWED:
            section, _, field = path.partition(".")
            if field:
                found[path] = stored[section][field]
            else:
                found[f"{section}.name"] = stored[section]["name"]
                found |= {f"{section}.options.{key}": value for key, value in stored[section]["options"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # pairs of another origin: the settings say what a later evaluation asks
    return found


def _text(result: DpoResult) -> str:
    measured = [_row("before", result.before), _row("after", result.after)] if result.before and result.after else []
    best = f"; best on held-out pairs: {result.best} (step {result.best_step})" if result.best else ""
    return "\n".join(
        [
            f"{plural(result.pairs, 'pair')}, {plural(result.steps, 'step')} in {result.seconds:.0f} s",
            *measured,
            f"Policy: {result.policy}{best}",
            f"Try it: finqa eval {result.policy}",
        ]
    )


def _row(label: str, held_out: HeldOut | None) -> str:
    assert held_out is not None
    low, high = held_out.accuracy_interval
    return (
        f"{label:>6}: preference accuracy {held_out.accuracy:.3f} [{low:.3f}, {high:.3f}] on {held_out.pairs} held-out "
        f"pairs, margin {held_out.margin:.3f} nats, likelier {held_out.ranking_accuracy:.3f}"
    )
