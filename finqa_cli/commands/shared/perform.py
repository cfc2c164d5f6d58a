"""Running a workflow for a command: progress, signals, the run's folder, and processes that `torchrun` started."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.output import progress
from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.runs.interrupts import Stopper, run
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.settings import Settings

TRAINING = ("train", "sft", "dpo")
"""The commands that several processes may share."""

_HEAD_START_S = 1.0
"""Head start of the first process, which alone reports a wrong command: torchrun ends all when one fails."""

RUNS = Path("runs")
"""Folder of runs that get no `--run-dir`."""

Result = TypeVar("Result")


def run_path(settings: Settings, prefix: str = "") -> Path:
    """Return the folder of the settings, or a new one below ./runs."""
    return settings.run.dir or new_run_path(RUNS, prefix)


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
        line: The command line, which may ask for no progress.
        work: Creates the workflow's coroutine.
        quiet: No progress.
        remedy: Shown when a signal ends it.
        patient: The first signal lets running episodes finish.
        learner: Name of the learner that the workflow trains, which under torchrun several processes share.

    Raises:
        ConfigError: torchrun started this, and the learner is for one process.
    """
    with leading(learner), progress(as_json=line.as_json, quiet=quiet or line.quiet) as reporter:
        stopper = Stopper(reporter, patient=patient)
        return run(work(reporter, stopper), stopper, remedy=remedy)


def begin(arguments: Sequence[str]) -> None:
    """Silence all processes but the first; with --debug errors of the others are shown as well.

    Raises:
        UsageError: The command has no learner that could be shared.
    """
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


@contextmanager
def leading(learner: str) -> Iterator[None]:
    """Run the block in the first process of torchrun only, with learners that the others serve until they end here.

    Without torchrun it does nothing.

    Raises:
        ConfigError: The learner is for one process.
        SystemExit: In the other processes, with their status.
    """
    if not learner or "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    from finqa_cli.contracts import LearnerProcesses
    from finqa_cli.extend import registry

    processes = registry().first("join_processes", LearnerProcesses, learner=learner)  # type: ignore[type-abstract]
    if processes is None:
        raise ConfigError(
            f"Learner {learner!r} trains in one process, but torchrun started {os.environ['WORLD_SIZE']}.",
            remedy="run the command without torchrun",
        )
    if not processes.leads:
        raise SystemExit(processes.serve())
    try:
        yield
    except BaseException:
        # torchrun ends all processes when one died; this one cleans up, reports the cause and ends by itself
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        processes.close()
