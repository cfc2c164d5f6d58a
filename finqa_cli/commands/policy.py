"""`finqa policy`: small policies for any environment."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, progress
from finqa_cli.experiments.make_policy import SCRIPTED, Made, Wanted, make_policy
from finqa_cli.settings import Settings

app = CommandApp("Create small policies that learn on a CPU within minutes.", epilog=EXIT_CODES)

SANDBOXES = 8
"""Sandboxes for the demonstrations, unless a number is given."""

FOLDER = Path("policies")
"""Folder of the policies that are made without --output."""


@app.command()
@offers(
    *("environment", "sandbox", "data.snapshot", "data.path", "data.train_split", "pool.sandboxes"),
    *("generation.max_steps", "train.seed"),
)
def make(
    line: CommandLine,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the policy.", show_default="policies/ENVIRONMENT")
    ] = None,
    demonstrations: Annotated[
        int, typer.Option("--demonstrations", min=0, help="Episodes of the expert to imitate; 0: all.")
    ] = 2000,
    epochs: Annotated[float, typer.Option("--epochs", min=0.1, help="Passes over the demonstrations.")] = 8.0,
    careless: Annotated[
        float,
        typer.Option(
            "--careless",
            min=0.0,
            max=1.0,
            help="Share of the tasks that are demonstrated with a mistake, if the environment has this option.",
        ),
    ] = 0.0,
    expert: Annotated[
        str,
        typer.Option(
            "--expert", help="Engine to imitate: scripted (the environment's own expert), random, openai, ..."
        ),
    ] = SCRIPTED,
) -> None:
    """Teach a new policy of half a million weights what the environment's expert does, in minutes on one core.

    For an environment without one, `--expert random` teaches the form of its actions: the rest is left to rewards.
    With `--careless 0.5` half of the tasks are demonstrated with mistakes: the policy has then something to learn by
    reward. The folder has demonstrations/, policy/ and train.toml, with which `finqa train` trains it on a processor.
    The same command again resumes what was stopped.

    Example: finqa policy make --environment ./my_env.py --careless 0.5
    """
    loaded = line.load(quiet=True)
    settings = loaded.settings
    if loaded.origins["pool.sandboxes"] == "default":  # the default is for large machines
        pool = settings.pool.model_copy(update={"sandboxes": SANDBOXES})
        settings = settings.model_copy(update={"pool": pool})
    folder = output or FOLDER / Path(settings.environment.name).stem.replace(":", "_")
    wanted = Wanted(demonstrations=demonstrations, epochs=epochs, careless=careless, expert=expert)
    with progress(as_json=line.as_json, quiet=True) as reporter:
        made = make_policy(
            settings,
            wanted,
            folder,
            reporter=reporter,
            show=lambda text: None if line.as_json or line.quiet else print(text, file=sys.stderr, flush=True),
        )
    document = {"policy": str(made.policy), "training": str(made.training), "samples": made.samples}
    emit(document, as_json=line.as_json, text=lambda: _text(made, settings, wanted))


def _text(made: Made, settings: Settings, wanted: Wanted) -> str:
    samples = made.samples or {}
    rates = ""
    if samples.get("accuracy") is not None:
        rate = samples.get("parse_rate")
        form = f"{100 * rate:.0f} % of the right form, " if rate is not None else ""
        rates = f"Answers to {samples['questions']} held-out tasks: {form}accuracy {samples['accuracy']:.3f}\n"
    if wanted.expert == SCRIPTED and samples.get("accuracy") == 0.0:
        rates += (
            f"None is right: {made.demonstrations} demonstrations taught the form of the answers alone, and rewards "
            "may have nothing to reinforce. Take more tasks or a larger --epochs, with another --output.\n"
        )
    environment = f"--environment {shlex.quote(settings.environment.name)}"
    return (
        f"{rates}Policy: {made.policy}\n"
        f"Train it: finqa train {environment} --model {made.policy} --config {made.training}"
    )
