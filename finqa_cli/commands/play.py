"""`finqa play`: one episode as a readable transcript."""

from __future__ import annotations

import json
import secrets
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit
from finqa_cli.commands.shared.perform import perform
from finqa_cli.errors import FinqaError
from finqa_cli.evaluation.evaluate import play
from finqa_cli.masking import mask_text
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings
from finqa_cli.types import Observation, Task, ToolCall, Trajectory, Turn
from finqa_cli.wiring.policies import resolve_for

app = CommandApp()

WIDTH = 100
LONGEST_REPLY = 1200


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
            show_default="one drawn by the seed",
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
        line.note(f"seed {settings.train.seed}, drawn at random; --seed repeats it")
    policy = resolve_for(settings.engine.name, settings.model.name)
    shown = not line.as_json and settings.engine.name != "human"  # a person sees the conversation while playing it
    turns = 0

    def on_start(task: Task) -> None:
        if shown:
            typer.echo(mask_text(_opening(task)))

    def on_turn(turn: Turn) -> None:
        nonlocal turns
        turns += 1
        if shown:
            typer.echo(mask_text(_one_turn(turns, turn)))

    trajectory = perform(
        line,
        lambda reporter, _: play(
            settings, policy, question=question, reporter=reporter, on_start=on_start, on_turn=on_turn
        ),
        patient=False,
    )
    if trajectory.status.is_fault:
        raise FinqaError(f"The episode ended with {trajectory.status.value}: {trajectory.error}")
    emit(trajectory_record(trajectory), as_json=line.as_json, text=_verdict(trajectory))


def _with_drawn_seed(settings: Settings) -> Settings:
    """Return the settings with a seed drawn by the operating system, for a question that was not chosen."""
    return settings.model_copy(update={"train": settings.train.model_copy(update={"seed": secrets.randbelow(10**6)})})


def _opening(task: Task) -> str:
    """Return the question and where it comes from."""
    about = ", ".join(part for part in (task.cluster, task.kind, f"{task.split} split") if part)
    return "\n".join([f"Question {task.id} ({about})", _block(task.prompt, "  ")])


def _one_turn(number: int, turn: Turn) -> str:
    """Return what the policy did and what came back."""
    if turn.tool_call is None and not turn.parse_error:  # an environment without tools takes the text itself
        return "\n".join([f"{number}. {_block(_cut(turn.text.strip()), '   ').lstrip()}", *_reply(turn.observation)])
    if not turn.steps:
        return "\n".join([f"{number}. (no tool call) {turn.text.strip()[:200]}", *_reply(turn.observation)])
    lines: list[str] = []
    for place, step in enumerate(turn.steps):
        start = f"{number}. " if place == 0 else " " * len(f"{number}. ")
        lines += [f"{start}{_action(step.call)}", *_reply(step.observation)]
    return "\n".join(lines)


def _verdict(trajectory: Trajectory) -> str:
    """Return the status, the reward and its reason."""
    if trajectory.rewards is None:
        return f"Not graded: {trajectory.status.value}. {trajectory.error}"
    reason = trajectory.rewards.explanation or trajectory.error
    ended = "" if trajectory.status == "completed" else f" The episode ended with {trajectory.status.value}."
    return f"Reward {trajectory.rewards.total:g}: {reason}.{ended}".replace("..", ".")


def _action(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={_value(value)}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"


def _value(value: object) -> str:
    return value if isinstance(value, str) and "\n" not in value and len(value) < 400 else json.dumps(value)


def _reply(observation: Observation | None) -> Iterator[str]:
    if observation is not None:
        images = [f"[{len(observation.images)} image{'s' * (len(observation.images) > 1)}]"] * bool(observation.images)
        yield _block("\n".join([_cut(observation.text), *images]), "   > ")


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_REPLY else f"{text[:LONGEST_REPLY]} ... ({len(text)} characters)"


def _block(text: str, indent: str) -> str:
    lines = text.splitlines() or [""]
    return "\n".join(
        textwrap.fill(line, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        for line in lines
    )
