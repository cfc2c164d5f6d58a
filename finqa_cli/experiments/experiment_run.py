"""`finqa experiment run`: trains and evaluates every cell of a matrix, each step a finqa command, and compares them."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import ConfigError, DataError, FinqaError
from finqa_cli.experiments.experiment_plan import (
    ExperimentPlan,
    PlannedCell,
    chosen_cells,
    prepare_steps,
    read_plan,
    settings_file,
    settings_of,
    steps_of,
)
from finqa_cli.experiments.experiment_report import ExperimentReport, make_report, write_report
from finqa_cli.experiments.experiment_text import markdown
from finqa_cli.experiments.pipeline_checks import check_options, check_recorded, check_variables, write_settings
from finqa_cli.experiments.pipeline_plan import Step
from finqa_cli.experiments.row_counts import row_warnings
from finqa_cli.experiments.step_process import Relay
from finqa_cli.experiments.step_records import Owner, PipelineFolder, State, opened, read_facts
from finqa_cli.experiments.step_runner import Show, do_step, interrupted
from finqa_cli.training.rl.rl_run import check_method

EXPERIMENT = Owner(command="experiment", resume="finqa experiment run --resume", redo="--redo")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """What there is after a call.

    Attributes:
        run: Folder of the experiment.
        states: Cell -> state of its training and of its evaluation.
        report: Over all cells that are done; None before the first.
    """

    run: Path
    states: dict[str, tuple[State, State]]
    report: ExperimentReport | None


def stored_plan(run: Path) -> ExperimentPlan:
    """What the experiment in a folder was asked for.

    Raises:
        ConfigError: There is none.
        DataError: Its run.json is damaged.
    """
    if (facts := read_facts(run, EXPERIMENT)) is None:
        raise ConfigError(f"There is no experiment in {run}.", remedy="finqa experiment run financial_qa")
    return read_plan(facts["parameters"])


def check_same(run: Path, plan: ExperimentPlan) -> None:
    """Compares with the experiment that is in the folder already, if there is one.

    Raises:
        ConfigError: It was asked for something else, which the message tells; or something else is in the folder.
    """
    check_recorded(run, plan.document(), EXPERIMENT)


def check_cells(plan: ExperimentPlan, only: Sequence[str]) -> None:
    """Looks at what the cells will insist on, before the first one.

    Raises:
        ConfigError: A component or an option is unknown, or the method does not go with the settings.
    """
    for name in chosen_cells(plan.cells, only):
        try:
            settings = settings_of(plan.cells[name])
            check_options(settings)
            check_method(settings)
        except FinqaError as error:
            error.args = (f"Cell {name}: {error.message}",)
            raise


def states_of(plan: ExperimentPlan, run: Path) -> dict[str, tuple[State, State]]:
    """How every cell stands; nothing is written.

    Raises:
        ConfigError: The folder was changed by hand, or a step still runs.
    """
    facts = read_facts(run, EXPERIMENT)
    folder = PipelineFolder(run, facts, EXPERIMENT) if facts is not None else None
    return {name: _states(plan, name, run, folder) for name in plan.cells}


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
    """Does what is not done yet of the chosen cells, and reports on all that are done.

    Args:
        plan: The same as before, where the folder holds an experiment.
        run: Its folder.
        only: Patterns of names of cells; all without any.
        redo: Do this cell again, or all from this preparation on; what was there is set aside. Or empty.
        keep_going: A failed cell does not stop the others; the error comes at the end.
        show: Hears every line that a step says.
        relay: Passes signals on.

    Raises:
        UsageError: There is no such cell.
        ConfigError: The folder is of another experiment, held by another process, or was changed by hand; or
            environment variables say something else than the plan.
        DataError: There is no data where a cell has its own.
        FinqaError: A step failed; with its exit code.
        InterruptedRun: A signal stopped a step; `--resume` goes on with it.
    """
    relay = relay or Relay()
    chosen = chosen_cells(plan.cells, only)
    again = _again(plan, redo, run) if redo else []
    check_same(run, plan)
    _check_data([plan.cells[name] for name in chosen])
    for line in row_warnings(plan, chosen):
        show(f"warning: {line}")
    failed: dict[str, FinqaError] = {}
    with opened(run, plan.document(), EXPERIMENT) as folder, relay.watching():
        _write_settings(plan, run, chosen)
        for moved in folder.set_aside(again):
            show(f"Set aside: {moved}")
        _do(prepare_steps(plan, run), folder, relay, show, "before the cells")
        for place, name in enumerate(chosen, start=1):
            try:
                _do(steps_of(plan, name, run), folder, relay, show, f"{place}/{len(chosen)}")
            except FinqaError as error:
                if relay.stopped is not None or not keep_going:
                    raise
                failed[name] = error
                show(f"{name} failed, the others go on: {error.message}")
        states = {name: _states(plan, name, run, folder) for name in plan.cells}
        report = _report(plan, run, states)
        if failed:
            raise _failures(failed, folder)
        finished = all(state == ("done", "done") for state in states.values())
        if finished:
            folder.manifest([*prepare_steps(plan, run), *(s for name in plan.cells for s in steps_of(plan, name, run))])
        folder.finish("completed" if finished else "stopped")
    return ExperimentResult(run=run, states=states, report=report)


def _do(steps: Sequence[Step], folder: PipelineFolder, relay: Relay, show: Show, place: str) -> None:
    for step in steps:
        if (state := folder.state(step)) == "done":
            continue
        if relay.stopped is not None:
            raise interrupted(folder, relay)
        show(f"[{place}] {step.name}: {command_of(step)}")
        do_step(step, state, folder, relay, show)


def _again(plan: ExperimentPlan, redo: str, run: Path) -> list[Step]:
    """The steps that are done again: those of a cell, or a preparation and all that came after it.

    Raises:
        UsageError: There is no such cell or preparation.
    """
    prepared = prepare_steps(plan, run)
    place = next((place for place, step in enumerate(prepared) if redo in (step.name, Path(step.name).name)), None)
    if place is None:
        names = chosen_cells(plan.cells, [redo.removeprefix("runs/").removeprefix("evals/")])
    else:
        names = list(plan.cells)
    first = [] if place is None else prepared[place:]
    return [*first, *(step for name in names for step in steps_of(plan, name, run))]


def command_of(step: Step) -> str:
    """The step as one would type it."""
    return shlex.join(["finqa", *step.arguments])


def _states(plan: ExperimentPlan, name: str, run: Path, folder: PipelineFolder | None) -> tuple[State, State]:
    training, evaluation = steps_of(plan, name, run)
    return ("to do", "to do") if folder is None else (folder.state(training), folder.state(evaluation))


def _report(plan: ExperimentPlan, run: Path, states: dict[str, tuple[State, State]]) -> ExperimentReport | None:
    done = [name for name, state in states.items() if state == ("done", "done")]
    if not done:
        return None
    report = make_report(plan, run, done, plots=importlib.util.find_spec("matplotlib") is not None)
    write_report(report, run, markdown(report))
    return report


def _check_data(cells: Sequence[PlannedCell]) -> None:
    for cell in cells:
        path = settings_of(cell).data.path
        if path is not None and not path.exists():
            raise DataError(
                f"Cell {cell.label}: there is no data at {path}.",
                remedy="put it there, or name another place (see the variables of the experiment file)",
            )


def _write_settings(plan: ExperimentPlan, run: Path, chosen: Sequence[str]) -> None:
    """The settings files of the cells.

    Raises:
        ConfigError: One is there and says something else, or environment variables do.
    """
    for name in chosen:
        write_settings(run / "settings" / f"{name}.json", settings_file(plan.cells[name]), EXPERIMENT)
    check_variables(*(run / "settings" / f"{name}.json" for name in chosen))


def _failures(failed: dict[str, FinqaError], folder: PipelineFolder) -> FinqaError:
    said = "; ".join(f"{name}: {error.message}" for name, error in failed.items())
    error = FinqaError(f"{len(failed)} cells failed. {said}", remedy=f"mend what each says; then {folder.resume}")
    error.exit_code = next(iter(failed.values())).exit_code
    return error
