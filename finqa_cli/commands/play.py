"""`finqa play`: one episode as a readable transcript."""

from __future__ import annotations

import secrets
import shlex
from typing import Annotated

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.episode_transcript import opening_text, truth_lines, turn_text, verdict_text
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import FinqaError
from finqa_cli.evaluation.play_question import WatchedEpisode, play
from finqa_cli.extend import registry
from finqa_cli.masking import mask_text
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings
from finqa_cli.statistics.outcomes import is_right
from finqa_cli.types import Task, Turn
from finqa_cli.wiring.policies import resolve_for

app = CommandApp()


@app.command(epilog=f"Example: finqa play --engine scripted. {EXIT_CODES}")
@offers(
    *("environment", "engine", "sandbox", "reward", "model.name", "data.snapshot", "data.path", "data.eval_split"),
    *("generation.max_steps", "generation.max_gen_tokens", "eval.temperature", "train.seed"),
)
def main(
    line: CommandLine,
    question: Annotated[
        str | None,
        typer.Option(
            "--question",
            "-n",
            help="Id of the question.",
            show_default="chosen by the seed",
        ),
    ] = None,
) -> None:
    """Play one episode and show it: each tool call, what came back, the reward and why.

    With `--engine human` you play it yourself; with `--engine scripted` an expert does.
    """
    loaded = line.load(purpose="play")
    settings = loaded.settings
    if loaded.origins.get("train.seed", "default") == "default" and question is None:
        settings = _with_drawn_seed(settings)
        line.note(f"seed {settings.train.seed}, chosen at random; --seed repeats it")
    policy = resolve_for(settings.engine.name, settings.model.name)
    shown = not line.as_json and settings.engine.name != "human"  # a person sees the conversation while playing it
    turns = 0

    def on_start(task: Task) -> None:
        if shown:
            typer.echo(mask_text(opening_text(task)))

    def on_turn(turn: Turn) -> None:
        nonlocal turns
        turns += 1
        if shown:
            typer.echo(mask_text(turn_text(turns, turn)))

    played = perform(
        line,
        lambda reporter, _: play(
            settings, policy, question=question, reporter=reporter, on_start=on_start, on_turn=on_turn
        ),
        patient=False,
    )
    trajectory = played.trajectory
    if trajectory.status.is_fault:
        raise FinqaError(f"The episode ended with {trajectory.status.value}: {trajectory.error}")
    record = {**played.truth, **trajectory_record(trajectory)}
    following = _next_command(line, played, settings)
    text = "\n".join([verdict_text(trajectory), *truth_lines(record), f"Next: {following}"])
    emit(record, as_json=line.as_json, text=text)


def _next_command(line: CommandLine, played: WatchedEpisode, settings: Settings) -> str:
    """Return the command to suggest next: the expert's episode of the same question, or an evaluation."""
    engine, trajectory = settings.engine.name, played.trajectory
    same = line.repeat("config", "environment.name", "data.snapshot", "data.path", "assign")
    if played.has_expert and engine != "scripted" and not is_right(trajectory):
        return (
            f"finqa play --engine scripted --question {shlex.quote(trajectory.task.id)}{same}   (the expert's solution)"
        )
    if engine == "scripted" or (engine == "human" and played.has_expert):
        target = "MODEL" if played.lacks_experts else "scripted"
    elif engine == "human":
        target = "MODEL"
    else:
        target = engine if registry().find("engine", engine).modelless else settings.model.name
    return f"finqa eval {shlex.quote(target)}{same}   (all questions)"


def _with_drawn_seed(settings: Settings) -> Settings:
    """Return the settings with a seed drawn by the operating system, for a question that was not chosen."""
    return settings.model_copy(update={"train": settings.train.model_copy(update={"seed": secrets.randbelow(10**6)})})
