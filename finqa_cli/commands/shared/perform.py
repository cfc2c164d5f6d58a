"""Run a workflow for a command: progress, signals, and processes that `torchrun` started."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.output import progress
from finqa_cli.errors import UsageError
from finqa_cli.runs.interrupts import Stopper, run, stop_signals
from finqa_cli.runs.reporter import Reporter
from finqa_cli.training.torchrun import leading

TRAINING = ("train", "sft", "dpo")
"""The commands that several processes may share."""

_HEAD_START_S = 1.0
"""Head start of the first process, in seconds. Only that one reports a wrong command, and torchrun ends all processes
when one fails."""

Result = TypeVar("Result")


def perform(
    line: CommandLine,
    work: Callable[[Reporter, Stopper], Coroutine[Any, Any, Result]],
    *,
    quiet: bool = False,
    remedy: str = "",
    patient: bool = True,
    learner: str = "",
) -> Result:
    """Run a workflow with progress on stderr and signals handled.

    Args:
        line: The command line; `--json` and `--quiet` turn progress off.
        work: Creates the workflow's coroutine.
        quiet: Show no progress.
        remedy: Command that is shown if a signal stops the workflow.
        patient: The first signal lets running episodes finish.
        learner: Name of the learner that the workflow trains with; under torchrun, several processes run it.

    Raises:
        ConfigError: torchrun started this process, and the learner supports one process only.
    """
    with leading(learner), progress(as_json=line.as_json, quiet=quiet or line.quiet) as reporter:
        stopper = Stopper(reporter, patient=patient)
        return run(work(reporter, stopper), stopper, remedy=remedy, signals=stop_signals())


_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def begin(arguments: Sequence[str]) -> None:
    """Silence all processes of torchrun but the first; with --debug the others still write to stderr.

    Raises:
        UsageError: The command trains nothing, or variables of torchrun are missing.
    """
    missing = [name for name in _OF_TORCHRUN if name not in os.environ]
    if missing:
        raise UsageError(
            f"TORCHELASTIC_RUN_ID is set, as torchrun sets it, but {', '.join(missing)} are not.",
            remedy="unset TORCHELASTIC_RUN_ID",
        )
    if os.environ["RANK"] != "0":
        time.sleep(_HEAD_START_S)
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # for as long as the process
        if "--debug" not in arguments:
            sys.stderr = sys.stdout
    command = next((word for word in arguments if not word.startswith("-")), "")
    if command and command not in TRAINING:
        raise UsageError(
            f"`finqa {command}` runs in one process; torchrun is for {', '.join(TRAINING)}.",
            remedy=f"finqa {shlex.join(arguments)}",
        )
