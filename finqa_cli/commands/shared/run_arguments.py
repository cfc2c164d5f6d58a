"""What the commands that play episodes share: the run's folder, and a workflow under progress and signals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from finqa_cli.commands.shared.progress import progress
from finqa_cli.commands.shared.torchrun import leading
from finqa_cli.errors import UsageError
from finqa_cli.runs.interrupts import Stopper, run
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import new_run_path
from finqa_cli.settings import Settings

Result = TypeVar("Result")


def run_path(settings: Settings, prefix: str = "") -> Path:
    """The folder that was asked for, or a new one below ./runs."""
    return settings.run.dir or new_run_path(Path("runs"), prefix)


def check_project(project: str | None, settings: Settings) -> None:
    """Refuses a project that nothing is filed under.

    Raises:
        UsageError: One is named, and no tracker is.
    """
    if project is not None and not settings.trackers:
        raise UsageError("--project is what trackers file the run under, and there is none.", remedy="--tracker wandb")


def perform(
    work: Callable[[Reporter, Stopper], Coroutine[Any, Any, Result]],
    *,
    as_json: bool,
    quiet: bool = False,
    remedy: str = "",
    patient: bool = True,
    learner: str = "",
) -> Result:
    """Runs a workflow with progress on stderr and signals handled.

    Args:
        work: Makes the workflow's coroutine.
        as_json: No progress: stdout is for one document.
        quiet: No progress.
        remedy: Said when a signal ends it.
        patient: The first signal lets running episodes finish.
        learner: Name of the learner that the workflow trains, which under torchrun several processes share.

    Raises:
        ConfigError: torchrun started this, and the learner is for one process.
    """
    with leading(learner), progress(as_json=as_json, quiet=quiet) as reporter:
        stopper = Stopper(reporter, patient=patient)
        return run(work(reporter, stopper), stopper, remedy=remedy)
