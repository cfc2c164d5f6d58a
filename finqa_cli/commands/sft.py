"""`finqa sft`: imitation of recorded demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.dpo import followed
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import UsageError
from finqa_cli.settings import Settings
from finqa_cli.settings.offered import offered_settings
from finqa_cli.training.sft.sft_run import Imitation, SftResult, sft
from finqa_cli.training.training_loop import result_document
from finqa_cli.wiring.command_settings import run_path, stored_parameter

app = CommandApp()

QUICK_DEMONSTRATIONS = 16
QUICK = {"sft.epochs": 1.0, "sft.batch_tokens": 4096, "sft.validate_every": 2, "sft.validation_samples": 4}
"""Counts of --quick-test, unless they are given."""

OF_A_MODEL = ("model.name", "lora")
"""Settings without effect on a new model, all of whose weights are trained."""

DECIDED_BY_FLAG = {
    "environment.name": "environment.",
    "reward.name": "reward.",
    "data.snapshot": "data.",
    "data.path": "data.",
}
"""Flag -> prefix of the settings that are not taken from the demonstrations' run if the flag is given."""


@app.command(epilog=f"Example: finqa sft runs/demonstrations --model Qwen/Qwen3-4B --epochs 2. {EXIT_CODES}")
@offers(
    *("sft", *OF_A_MODEL, "train.gradient_checkpointing", "train.learner_processes", "environment", "engine"),
    *("sandbox", "reward", "data.snapshot", "data.path", "data.eval_split", "pool.sandboxes"),
    *("pool.sessions_per_sandbox", "generation.max_steps", "generation.max_gen_tokens", "data.allow_evaluation_only"),
    *("data.allow_overlap", "run.dir", "run.mirror", "trackers", "run.project", "train.seed"),
)
def main(
    line: CommandLine,
    demonstrations: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders or trajectories.jsonl files, as `finqa eval` and `finqa sample` write them."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Interrupted run to resume after its newest checkpoint.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option("--init", help="TOML file that specifies a new tokenizer and model.")
    ] = None,
    quick_test: Annotated[
        bool, typer.Option("--quick-test", help="One pass over 16 demonstrations, as a quick test.")
    ] = False,
) -> None:
    """Train a model (or with --init a new one) to imitate the demonstrations; loss on assistant tokens only.

    While it learns it answers held-out questions in the environment that the demonstrations are of, greedily. Saves
    checkpoints/best, final and step_N, valid_samples/, metrics.jsonl, report.json and manifest.json in the run folder.
    """
    if resume is not None:
        settings, wanted, run = *_stored(line, resume), resume
    elif not demonstrations:
        raise UsageError(
            "No demonstrations and no run to resume are given.",
            remedy="finqa eval scripted --split train --run-dir DIR, then finqa sft DIR",
        )
    else:
        if init is not None:
            _check_new_model(line)
        # a new model has no size yet, so nothing is planned; it is small
        extra = {**_followed(line, demonstrations[0]), **line.quick(QUICK)}
        settings = line.load(extra, purpose="sft" if init is None else None).settings
        line.warn_of_project(settings)
        most = QUICK_DEMONSTRATIONS if quick_test else 0
        wanted, run = Imitation(sources=tuple(demonstrations), init=init, most=most), run_path(settings, "sft_")
    result = perform(
        line,
        lambda reporter, stopper: sft(
            settings,
            wanted,
            run,
            resume=resume is not None,
            reporter=reporter,
            stopper=stopper,
            again=line.again,
        ),
        remedy=f"finqa sft --resume {run}",
        learner=settings.learner.name,
    )
    emit(result_document(result), as_json=line.as_json, text=lambda: _text(result))


def _check_new_model(line: CommandLine) -> None:
    if refused := set(line.flags) & {each.path for each in offered_settings(OF_A_MODEL)}:
        raise UsageError(
            f"With --init a new model is trained whole, so {line.written(refused)} would have no effect.",
            remedy=f"leave out {line.written(refused).replace(', ', ' and ')}",
        )


def _stored(line: CommandLine, run: Path) -> tuple[Settings, Imitation]:
    line.check_resumed(run, command="sft")
    names = ("demonstrations", "init", "most_demonstrations")
    stored = {name: stored_parameter(run, name, "sft") for name in names}
    settings = line.stored_settings(run, "sft" if stored["init"] is None else None)
    return settings, Imitation.from_parameters(stored)


def _followed(line: CommandLine, demonstrations: Path) -> dict[str, Any]:
    """Return settings of the run that made the demonstrations, so that the policy plays in the same environment."""
    flags = line.flags
    decided = tuple(prefix for path, prefix in DECIDED_BY_FLAG.items() if path in flags)
    return {
        path: value
        for path, value in followed(line, demonstrations).items()
        if path not in flags and not path.startswith(decided)
    }


def _text(result: SftResult) -> str:
    held_out = ""
    if result.validation_loss is not None and result.validation_episode_loss is not None:
        held_out = (
            f"; on held-out ones {result.validation_loss:.4f}, {result.validation_episode_loss:.3g} nats an episode"
        )
    best = f"; lowest loss on held-out demonstrations: {result.best} (step {result.best_step})" if result.best else ""
    lines = [
        f"{plural(result.demonstrations, 'demonstration')}, {plural(result.steps, 'step')} in {result.seconds:.0f} s: "
        f"loss {result.loss:.4f} nats a token{held_out}.",
        *_samples(result),
        f"Policy: {result.policy}{best}",
        f"Evaluate it: finqa eval {result.policy}",
    ]
    return "\n".join(lines)


def _samples(result: SftResult) -> list[str]:
    samples = result.after.samples if result.after else None
    if samples is None or samples.accuracy is None or samples.reward_mean is None:
        return []
    form = "" if samples.parse_rate is None else f"{100 * samples.parse_rate:.1f} % of the right form (wanted: 90 %), "
    cut = sum(samples.cut_replies.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in samples.cut_replies.items() if kind)
    return [
        f"Answers to {plural(samples.questions, 'held-out question')}: {form}accuracy {samples.accuracy:.3f}, "
        f"mean reward {samples.reward_mean:.3f}",
        *(
            [f"{plural(cut, 'answer')} cut at --max-gen-tokens{f' ({kinds})' if kinds else ''}: raise it"]
            if cut
            else []
        ),
    ]
