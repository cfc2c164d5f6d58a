"""Doing one step: its process, what is noted of it, and what its failure means. For pipelines and experiments."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from finqa_cli.errors import FinqaError, InterruptedRun
from finqa_cli.experiments.pipeline_plan import RESUMABLE, Step
from finqa_cli.experiments.step_process import Ended, Relay
from finqa_cli.experiments.step_records import PipelineFolder, State
from finqa_cli.runs.durable_files import read_document, storage

Show = Callable[[str], None]


def do_step(step: Step, state: State, folder: PipelineFolder, relay: Relay, show: Show) -> None:
    """Runs a step that is not done, from its beginning or on from where it was stopped.

    Raises:
        FinqaError: It failed; with its exit code.
        InterruptedRun: A signal stopped it.
    """
    arguments: Sequence[str] = step.arguments
    if state == "begun":
        if _can_resume(step, folder.path):
            arguments = (step.arguments[0], "--resume", f"{folder.path / step.name}")
            show(f"Going on: {shlex.join(['finqa', *arguments])}")
        else:
            for moved in folder.set_aside([step]):
                show(f"Set aside what an unfinished attempt left: {moved}")
    target = folder.path / step.name
    if step.stdout:
        with storage(target):
            target.mkdir(parents=True, exist_ok=True)
    ended = relay.run(
        arguments,
        _log(step, folder.path),
        stdout=target / step.stdout if step.stdout else None,
        show=show,
        started=lambda pid: folder.begin(step, arguments, pid),
    )
    folder.end(step, ended)
    if ended.code != 0:
        raise interrupted(folder, relay) if relay.stopped is not None else _failed(step, ended, folder)


def interrupted(folder: PipelineFolder, relay: Relay) -> InterruptedRun:
    """The error of a command that a signal stopped."""
    assert relay.stopped is not None
    error = InterruptedRun(f"Stopped by {relay.stopped.name}.", remedy=folder.resume)
    error.exit_code = 128 + relay.stopped
    return error


def _can_resume(step: Step, run: Path) -> bool:
    """The command can go on, and had written what it needs for that."""
    folder = run / step.name
    begun = read_document(folder / "run.json").get("command") == step.arguments[0]
    return begun and step.arguments[0] in RESUMABLE and (folder / "settings.json").is_file() and _asked(step, folder)


def _asked(step: Step, folder: Path) -> bool:
    """`train` goes on by its settings alone; the others by what their manifest says they were asked for."""
    return step.arguments[0] == "train" or bool(read_document(folder / "manifest.json").get("parameters"))


def _failed(step: Step, ended: Ended, folder: PipelineFolder) -> FinqaError:
    how = f"exit code {ended.code}" if ended.code > 0 else f"killed by signal {-ended.code}"
    reason = f": {ended.reason}" if ended.reason else f"; what it said is in {_log(step, folder.path)}."
    again = folder.resume
    mended = f"{ended.remedy}; then {again}. It keeps its settings: others are a new {folder.owner} (--output)"
    error = FinqaError(f"Step {step.name} failed ({how}){reason}", remedy=mended if ended.remedy else again)
    error.exit_code = ended.code if ended.code > 0 else 1
    return error


def _log(step: Step, run: Path) -> Path:
    return run / "logs" / f"{step.name.replace('/', '_')}.log"
