"""`finqa play`: one episode as a readable transcript."""

from __future__ import annotations

from typing import Annotated

import typer

from finqa_cli.commands.shared import options, transcript
from finqa_cli.commands.shared.output import emit
from finqa_cli.commands.shared.run_arguments import perform
from finqa_cli.errors import FinqaError
from finqa_cli.evaluation.evaluate import play
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.types import Task, Turn
from finqa_cli.wiring.policies import resolve_for

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=f"Example: finqa play --engine scripted. {options.EXIT_CODES}")
def main(
    ctx: typer.Context,
    question: Annotated[
        str | None, typer.Option("--question", "-n", help="Id of the question.", show_default="one drawn by the seed")
    ] = None,
    eval_split: options.Split = None,
    environment: options.EnvironmentName = None,
    engine: options.Engine = None,
    sandbox: options.Sandbox = None,
    dangerously_run_unisolated: options.DangerouslyRunUnisolated = None,
    reward: options.Reward = None,
    grader: options.Grader = None,
    hints: options.Hints = None,
    model: options.Model = None,
    snapshot: options.Snapshot = None,
    data: options.Data = None,
    max_steps: options.MaxSteps = None,
    max_gen_tokens: options.MaxGenTokens = None,
    eval_temperature: Annotated[
        float | None, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.", show_default="0")
    ] = None,
    seed: options.Seed = None,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Play one episode and show it: each tool call, what came back, the reward and why.

    With `--engine human` you play it yourself; with `--engine scripted` an expert does.
    """
    settings = options.load(ctx, purpose="play").settings
    policy = resolve_for(settings.engine.name, settings.model.name)
    shown = not as_json and settings.engine.name != "human"  # a person sees the conversation while playing it
    turns = 0

    def on_start(task: Task) -> None:
        if shown:
            typer.echo(transcript.opening(task))

    def on_turn(turn: Turn) -> None:
        nonlocal turns
        turns += 1
        if shown:
            typer.echo(transcript.one_turn(turns, turn))

    trajectory = perform(
        lambda reporter, _: play(
            settings, policy, question=question, reporter=reporter, on_start=on_start, on_turn=on_turn
        ),
        as_json=as_json,
        quiet=quiet,
        patient=False,
    )
    if trajectory.status.is_fault:
        raise FinqaError(f"The episode ended with {trajectory.status.value}: {trajectory.error}")
    emit(trajectory_record(trajectory), as_json=as_json, text=transcript.verdict(trajectory))
