"""`finqa experiment run`: trains and evaluates every cell of a matrix, each step a finqa command, and compares them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.errors import ConfigError, DataError, FinqaError
from finqa_cli.experiments.experiment_plan import (
    ExperimentPlan,
    PlannedCell,
    chosen_cells,
    prepare_steps,
    read_plan,
    row_warnings,
    settings_file,
    settings_of,
    steps_of,
)
from finqa_cli.experiments.experiment_report import ExperimentReport, make_report, write_report
from finqa_cli.experiments.step_runner import (
    Owner,
    Relay,
    Show,
    State,
    Step,
    StepFolder,
    open_folder,
    read_facts,
    with_settings,
)
from finqa_cli.experiments.step_settings import (
    check_options,
    check_recorded,
    check_variables,
    write_settings,
)
from finqa_cli.extend import registry
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.training.rl.rl_run import check_method
from finqa_cli.training.training_data import guard_training

EXPERIMENT = Owner(command="experiment", resume="finqa experiment run --resume", redo="--redo")

CellStates = dict[str, tuple[State, State]]
"""Cell -> states of its training and of its evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """Result of `run_experiment`.

    Attributes:
        run: Folder of the experiment.
        states: State of every cell.
        report: Report on all cells that are done; None if none is done.
    """

    run: Path
    states: CellStates
    report: ExperimentReport | None


def stored_plan(run: Path) -> ExperimentPlan:
    """Reads the stored plan of the experiment in a folder.

    Raises:
        ConfigError: There is no experiment in the folder.
        DataError: Its run.json is damaged.
    """
    if (facts := read_facts(run, EXPERIMENT)) is None:
        raise ConfigError(f"There is no experiment in {run}.", remedy="finqa experiment run financial_qa")
    return read_plan(facts["parameters"])


def continued_plan(plan: ExperimentPlan, run: Path) -> ExperimentPlan:
    """Returns the plan with the cell names of the folder, if the folder contains the same experiment or a part of it.

    Seeds and cells can be added later. A cell that had one seed has no seed in its name, and keeps that name.

    Raises:
        ConfigError: The folder contains another experiment, or a cell that the plan does not have.
    """
    facts = read_facts(run, EXPERIMENT)
    if facts is None:
        return plan
    names = {_identity(cell): name for name, cell in read_plan(facts["parameters"]).cells.items()}
    cells = {names.get(_identity(cell), name): cell for name, cell in plan.cells.items()}
    plan = plan.model_copy(update={"cells": cells})
    wanted = plan.document()
    there = {name: wanted["cells"][name] for name in facts["parameters"]["cells"] if name in cells}
    check_recorded(run, wanted | {"cells": there}, EXPERIMENT)
    return plan


def _identity(cell: PlannedCell) -> str:
    return json.dumps(cell.model_dump(mode="json"), sort_keys=True)


def check_cells(plan: ExperimentPlan, only: Sequence[str]) -> None:
    """Checks the components, methods and data of all cells, before the first one runs.

    Raises:
        ConfigError: A component or an option is unknown, or the method does not fit the settings.
        DataError: The data of a cell is malformed, for evaluation only, or its splits overlap.
    """
    checked: set[str] = set()
    for name in chosen_cells(plan.cells, only):
        try:
            settings = settings_of(plan.cells[name])
            check_options(settings)
            check_method(settings)
            key = json.dumps([plan.cells[name].settings[part] for part in ("environment", "data", "eval")])
            if key not in checked and _has_data(settings):
                guard_training(settings, NullReporter())
            checked.add(key)
        except FinqaError as error:
            error.args = (f"Cell {name}: {error.message}",)
            error.remedy = with_settings(error.remedy)
            raise


def _has_data(settings: Settings) -> bool:
    """Returns whether the data of a cell exists already; else its training says what is missing."""
    if not registry().find("environment", settings.environment.name).snapshotless:
        return settings.data.snapshot in [snapshot.name for snapshot in LocalSnapshots(settings.data.home).list()]
    return settings.data.path is None or settings.data.path.exists()


def states_of(plan: ExperimentPlan, run: Path) -> CellStates:
    """Returns the state of every cell; nothing is written.

    Raises:
        ConfigError: The folder was changed by hand, or a step is still running.
    """
    facts = read_facts(run, EXPERIMENT)
    return _states(plan, run, StepFolder(run, facts, EXPERIMENT) if facts is not None else None)


def run_experiment(
    plan: ExperimentPlan,
    run: Path,
    *,
    only: Sequence[str],
    redo: str,
    keep_going: bool,
    show: Show,
    relay: Relay | None = None,
) -> ExperimentResult:
    """Runs the steps of the chosen cells that are not done yet, and reports on all cells that are done.

    Args:
        plan: The plan. If the folder contains an experiment, it must be the same plan, or one with more cells.
        run: Folder of the experiment.
        only: Patterns of names of cells; empty: all.
        redo: Cell to run again, or preparation to run again with everything that follows; earlier results are moved
            aside. Empty: nothing.
        keep_going: Run the other cells if a cell fails, and raise the error at the end.
        show: Called with every line that a step prints.
        relay: Runs the processes and passes signals on.

    Raises:
        UsageError: There is no such cell.
        ConfigError: The folder is of another experiment, locked by another process, or was changed by hand; or
            environment variables differ from the plan.
        DataError: The data of a cell does not exist.
        FinqaError: A step failed; the error has the exit code of the step.
        InterruptedRun: A signal stopped a step; `--resume` continues.
    """
    relay = relay or Relay()
    plan = continued_plan(plan, run)
    chosen = chosen_cells(plan.cells, only)
    again = _again(plan, redo, run) if redo else []
    for name in chosen:
        path = settings_of(plan.cells[name]).data.path
        if path is not None and not path.exists():
            raise DataError(
                f"Cell {plan.cells[name].label}: there is no data at {path}.",
                remedy="put it there, or set another path (see the variables of the experiment file)",
            )
    for line in row_warnings(plan, chosen):
        show(f"warning: {line}")
    failed: dict[str, FinqaError] = {}
    with open_folder(run, plan.document(), EXPERIMENT) as folder, relay.watching():
        _write_settings(plan, run, chosen)
        for moved in folder.set_aside(again):
            show(f"Set aside: {moved}")
        for step in prepare_steps(plan, run):
            folder.run(step, relay, show, "before the cells")
        for place, name in enumerate(chosen, start=1):
            try:
                for step in steps_of(plan, name, run):
                    folder.run(step, relay, show, f"{place}/{len(chosen)}")
            except FinqaError as error:
                if relay.stopped is not None or not keep_going:
                    raise
                failed[name] = error
                show(f"{name} failed; the other cells continue: {error.message}")
        states = _states(plan, run, folder)
        report = None
        if done := [name for name, state in states.items() if state == ("done", "done")]:
            report = make_report(plan, run, done, plots=importlib.util.find_spec("matplotlib") is not None)
            write_report(report, run)
        if failed:
            said = "; ".join(f"{name}: {error.message}" for name, error in failed.items())
            remedy = f"fix the cause of each; then {folder.resumption}"
            failure = FinqaError(f"{len(failed)} cells failed. {said}", remedy=remedy)
            failure.exit_code = next(iter(failed.values())).exit_code
            raise failure
        steps = [*prepare_steps(plan, run), *(step for name in plan.cells for step in steps_of(plan, name, run))]
        folder.finish(steps if len(done) == len(plan.cells) else None)
    return ExperimentResult(run=run, states=states, report=report)


def _again(plan: ExperimentPlan, redo: str, run: Path) -> list[Step]:
    """Returns the steps to run again: those of a cell, or a preparation and all steps after it.

    Raises:
        UsageError: There is no such cell or preparation.
    """
    prepared = prepare_steps(plan, run)
    for place, step in enumerate(prepared):
        if redo in (step.name, Path(step.name).name):
            return [*prepared[place:], *(step for name in plan.cells for step in steps_of(plan, name, run))]
    names = chosen_cells(plan.cells, [redo.removeprefix("runs/").removeprefix("evals/")])
    return [step for name in names for step in steps_of(plan, name, run)]


def _states(plan: ExperimentPlan, run: Path, folder: StepFolder | None) -> CellStates:
    states: CellStates = dict.fromkeys(plan.cells, ("to do", "to do"))
    if folder is not None:
        for name in plan.cells:
            training, evaluation = steps_of(plan, name, run)
            states[name] = folder.state(training), folder.state(evaluation)
    return states


def _write_settings(plan: ExperimentPlan, run: Path, chosen: Sequence[str]) -> None:
    """Writes the settings files of the cells.

    Raises:
        ConfigError: A file exists with other settings, or environment variables differ from it.
    """
    files = {name: run / "settings" / f"{name}.json" for name in chosen}
    for name, file in files.items():
        write_settings(file, settings_file(plan.cells[name]), EXPERIMENT)
    check_variables(*files.values())
