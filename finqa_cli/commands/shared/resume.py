"""What commands share that go on with a run: its own settings, and no others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from finqa_cli import logs
from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.runs.run_folder import MANIFEST, read_run, read_settings
from finqa_cli.settings import AUTO, Settings, from_public_dict
from finqa_cli.wiring.placing import Purpose, place_again

FREE = ("resume", "learner_processes", "as_json", "quiet")
"""Flags that a resumed run takes."""

RESUMABLE = ("train", "sft", "dpo", "sample", "pipeline")
"""Commands that go on with a folder of theirs."""


def check_resumed(ctx: typer.Context, run: Path, *, command: str, free: Collection[str] = FREE) -> dict[str, Any]:
    """The flags on the command line, as `only_free` looks at them, for a run of this command.

    Raises:
        UsageError: Another flag than `free` is given.
        ConfigError: It is a run of another command.
        DataError: The folder is no run.
    """
    given = only_free(ctx, run, command=command, free=free)
    if not (run / "run.json").is_file():
        raise DataError(
            f"{run} is no run folder: it has no run.json.",
            remedy=f"finqa {command} --resume RUN, with a folder that `finqa {command}` wrote",
        )
    if (theirs := read_run(run).get("command")) != command:
        goes_on = theirs in RESUMABLE
        raise ConfigError(
            f"{run} is a run of `finqa {theirs}`, not of `finqa {command}`.",
            remedy=f"finqa {theirs} --resume {shlex.quote(str(run))}" if goes_on else f"finqa {theirs} again",
        )
    return given


def only_free(ctx: typer.Context, run: Path, *, command: str, free: Collection[str]) -> dict[str, Any]:
    """The flags on the command line, none of which may be others than `free`: with other settings it is another run.

    Raises:
        UsageError: Another flag is given.
    """
    given = given_flags(ctx)
    if refused := set(given) - set(free):
        raise UsageError(
            f"What is gone on with keeps its settings; --resume does not take {as_typed(ctx, refused)}.",
            remedy=f"finqa {command} --resume {shlex.quote(str(run))}",
        )
    return given


def given_flags(ctx: typer.Context) -> dict[str, Any]:
    """Parameters of the command that stand on the command line."""
    return {
        name: value
        for name, value in ctx.params.items()
        if (source := ctx.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def as_typed(ctx: typer.Context, names: Collection[str]) -> str:
    """Parameters of the command as they are written on a command line: `--set, --split`."""
    written = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    return ", ".join(written[name] for name in sorted(names))


def stored_settings(ctx: typer.Context, run: Path, *, command: str) -> tuple[Settings, str]:
    """Settings and target (or input) of the run that is to go on.

    Raises:
        UsageError: Another flag is given: a resumed run with other settings would be another run.
        ConfigError: It is a run of another command, or of another version of finqa.
        DataError: The folder is no run, or its manifest is not there.
    """
    check_resumed(ctx, run, command=command)
    logs.configure()
    purpose: Purpose = "dpo" if command == "dpo" else "play"
    return own_settings(ctx, run, purpose), str(stored_parameter(run, "target", command))


def own_settings(ctx: typer.Context, run: Path, purpose: Purpose | None) -> Settings:
    """The settings of the run, with another number of learner processes where the command line names one, and placed
    again on the devices of this machine.

    Args:
        ctx: The command's context.
        run: Its folder.
        purpose: What the command runs; None: nothing is placed.

    Raises:
        UsageError: It is no number.
        ConfigError: They are of another version of finqa, or it does not fit on this machine.
    """
    settings = from_public_dict(read_settings(run))
    path, wanted = "train.learner_processes", given_flags(ctx).get("learner_processes")
    if wanted is not None:
        if wanted != AUTO and not (wanted.isdecimal() and int(wanted)):
            raise UsageError("--learner-processes takes a number above 0, or auto.")
        placed = {*settings.run.placed, path} if wanted == AUTO else {*settings.run.placed} - {path}
        count = 1 if wanted == AUTO else int(wanted)
        settings = settings.model_copy(
            update={
                "train": settings.train.model_copy(update={"learner_processes": count}),
                "run": settings.run.model_copy(update={"placed": tuple(sorted(placed))}),
            }
        )
    return settings if purpose is None else place_again(settings, purpose)


def stored_parameter(run: Path, name: str, command: str) -> Any:
    """What the run was asked for, as its manifest says.

    Raises:
        DataError: The manifest is not there.
    """
    try:
        return json.loads((run / MANIFEST).read_text(encoding="utf-8"))["parameters"][name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{run} was ended before it wrote what it was asked for ({error!r}).",
            remedy=f"finqa {command} again, into another --run-dir",
        ) from error
