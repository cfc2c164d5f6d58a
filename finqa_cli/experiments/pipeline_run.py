"""The whole cycle, from raw data to a comparison: each step is a finqa command in a process of its own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, UsageError
from finqa_cli.experiments.pipeline_checks import check_recorded, check_variables, write_settings
from finqa_cli.experiments.pipeline_data import check_unchanged, data_path
from finqa_cli.experiments.pipeline_plan import (
    COMPARISON,
    IMITATION_FILE,
    TRAINING_FILE,
    Step,
    find_step,
    plan,
)
from finqa_cli.experiments.pipeline_spec import PipelineSpec, read_spec, settings_document
from finqa_cli.experiments.step_process import Relay
from finqa_cli.experiments.step_records import PIPELINE, PipelineFolder, State, opened, read_facts
from finqa_cli.experiments.step_runner import Show, do_step, interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A step, its command as one would type it, and how it stands; seconds are None until it is done."""

    name: str
    command: str
    state: State
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """`report` is that of the comparison; None when the pipeline ended before it."""

    run: Path
    method: str
    steps: tuple[StepReport, ...]
    report: Path | None


def stored_spec(run: Path) -> PipelineSpec:
    """What the pipeline in a folder was asked for.

    Raises:
        ConfigError: There is none.
        DataError: Its run.json is damaged.
    """
    if (facts := read_facts(run)) is None:
        raise ConfigError(f"There is no pipeline in {run}.", remedy="finqa pipeline --method grpo")
    return read_spec(facts["parameters"])


def check_same(run: Path, spec: PipelineSpec) -> None:
    """Compares with the pipeline that is in the folder already, if there is one.

    Raises:
        ConfigError: It was asked for something else, which the message tells; or something else is in the folder.
    """
    check_recorded(run, spec.document(), PIPELINE)


def preview(spec: PipelineSpec, run: Path, *, redo: str, until: str) -> PipelineResult:
    """The steps up to `until`, and which of them are done; those from `redo` on are to do. Nothing is written.

    Raises:
        UsageError: There is no such step, or the one comes after the other.
        ConfigError: A setting does not fit, or the folder was changed by hand.
    """
    steps, first, last = chosen_steps(spec, run, redo=redo, until=until)
    facts = read_facts(run)
    folder = PipelineFolder(run, facts) if facts is not None else None
    states: list[State] = ["to do"] * len(steps)
    if folder is not None:
        states[:first] = [folder.state(step) for step in steps[:first]]
    return _result(spec, run, steps[: last + 1], states[: last + 1], folder)


def chosen_steps(spec: PipelineSpec, run: Path, *, redo: str, until: str) -> tuple[list[Step], int, int]:
    """All steps, the place of the first that is to be done again (behind the end if none is), and that of the last one.

    Raises:
        UsageError: There is no such step, or the one comes after the other.
        ConfigError: A setting does not fit.
    """
    steps = plan(spec, run)
    first = find_step(steps, redo) if redo else len(steps)
    last = find_step(steps, until) if until else len(steps) - 1
    if redo and first > last:
        raise UsageError(f"--from {redo} comes after --until {until}.", remedy="leave one of them out")
    return steps, first, last


def run_pipeline(
    spec: PipelineSpec, run: Path, *, redo: str, until: str, show: Show, relay: Relay | None = None
) -> PipelineResult:
    """Does what is not done yet.

    Args:
        spec: What is asked for; the same as before, where the folder holds a pipeline.
        run: Its folder.
        redo: Do this step and those after it again; what they had is set aside. Or empty.
        until: Stop after this step. Or empty.
        show: Hears every line that a step says.
        relay: Passes signals on.

    Raises:
        UsageError: There is no such step.
        ConfigError: The folder is of another configuration, held by another process, or was changed by hand; or data
            or environment variables are no longer what they were.
        FinqaError: A step failed; with its exit code.
        InterruptedRun: A signal stopped a step; `--resume` goes on with it.
    """
    relay = relay or Relay()
    steps, first, last = chosen_steps(spec, run, redo=redo, until=until)
    check_same(run, spec)
    with opened(run, spec.document()) as folder, relay.watching():
        _write_settings(spec, run)
        if redo:
            _check_done(folder, steps[:first])
            for moved in folder.set_aside(steps[first:]):
                show(f"Set aside: {moved}")
        states = _states(folder, steps)
        if any(state != "done" for state in states[: last + 1]):
            check_unchanged(spec.data)
            check_variables(run / IMITATION_FILE, run / TRAINING_FILE)
        for number, step in enumerate(steps[: last + 1], start=1):
            if states[number - 1] != "done":
                if relay.stopped is not None:
                    raise interrupted(folder, relay)
                show(f"[{number}/{len(steps)}] {step.name}: {shlex.join(['finqa', *step.arguments])}")
                do_step(step, states[number - 1], folder, relay, show)
                states[number - 1] = "done"
        finished = all(state == "done" for state in states)
        if finished:
            folder.manifest(steps)
        folder.finish("completed" if finished else "stopped")
        return _result(spec, run, steps, states, folder)


def _states(folder: PipelineFolder, steps: Sequence[Step]) -> list[State]:
    """How every step stands; those that are done are the first ones.

    Raises:
        ConfigError: A step is done, but one before it, which it builds on, is not; or it was changed by hand.
    """
    states = [folder.state(step) for step in steps]
    pending = next((index for index, state in enumerate(states) if state != "done"), len(steps))
    if later := [step.name for step, state in zip(steps[pending:], states[pending:], strict=True) if state == "done"]:
        raise folder.stale(steps[pending], f"{steps[pending].name} is not done, but {later[0]} is, which came after it")
    return states


def _check_done(folder: PipelineFolder, steps: Sequence[Step]) -> None:
    for step in steps:
        if folder.state(step) != "done":
            raise UsageError(
                f"{step.name} is not done yet, so no later step can be the first.",
                remedy=f"finqa pipeline --resume {folder.path}",
            )


def _write_settings(spec: PipelineSpec, run: Path) -> None:
    """The settings files of the steps.

    Raises:
        ConfigError: One is there and says something else.
    """
    data, snapshot = data_path(spec.data, run), spec.data.snapshot
    for name, settings in ((IMITATION_FILE, spec.imitation), (TRAINING_FILE, spec.training)):
        write_settings(run / name, settings_document(settings, data=data, snapshot=snapshot), PIPELINE)


def _result(
    spec: PipelineSpec, run: Path, steps: Sequence[Step], states: Sequence[State], folder: PipelineFolder | None
) -> PipelineResult:
    reports = tuple(
        StepReport(
            name=step.name,
            command=shlex.join(["finqa", *step.arguments]),
            state=state,
            seconds=folder.seconds(step) if folder else None,
        )
        for step, state in zip(steps, states, strict=True)
    )
    report = run / COMPARISON / "report.md"
    return PipelineResult(run=run, method=spec.method, steps=reports, report=report if report.is_file() else None)


def document(result: PipelineResult) -> dict[str, Any]:
    """The `--json` form."""
    steps = [
        {"name": step.name, "state": step.state, "seconds": step.seconds, "command": step.command}
        for step in result.steps
    ]
    report = str(result.report) if result.report else None
    return {"run": str(result.run), "method": result.method, "report": report, "steps": steps}
