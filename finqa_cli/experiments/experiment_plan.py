"""What an experiment is asked for, as one document that a later call goes on with: all cells, settings resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from finqa_cli.errors import ConfigError, DataError, FinqaError, UsageError
from finqa_cli.evaluation.compare.comparability import differing
from finqa_cli.experiments.experiment_file import ExperimentFile, Measure, Preparation, Question, Rates
from finqa_cli.experiments.formulas import Scalar
from finqa_cli.experiments.matrix import Cell, cells, experiment_name, given_variables, preparations
from finqa_cli.experiments.pipeline_plan import Step
from finqa_cli.experiments.pipeline_spec import check_secrets, settings_document
from finqa_cli.settings import Loaded, Settings, from_public_dict, to_public_dict
from finqa_cli.settings.settings_files import Document
from finqa_cli.training.rl.rl_run import check_idle_options

OUTPUTS = Path("outputs")

Resolve = Callable[[Sequence[str], Mapping[str, Any]], Loaded]
"""Settings files and settings by dotted path -> what they come to on this machine."""


class PlannedCell(BaseModel):
    """One cell under one seed.

    Attributes:
        label: Its name in comparisons: that of the cell, whatever the seed.
        group: Only cells of one group are compared with each other.
        choices: Axis -> choice.
        settings: All of them, as `to_public_dict` has them.
        evaluation: Dotted path -> value, in place of the setting when it is evaluated.
        rates: For estimates.
    """

    model_config = ConfigDict(frozen=True)

    label: str
    group: str
    choices: dict[str, str]
    settings: dict[str, Any]
    evaluation: dict[str, Any]
    rates: Rates | None


class ExperimentPlan(BaseModel):
    """The whole.

    Attributes:
        name: Of the experiment.
        file: That it was read from.
        given: Variables that the environment set.
        prepare: Commands before the first cell, in order.
        cells: By name, which is that of their folders.
        measures: By name.
        questions: To be answered.
        reference: What is known about time and cost from elsewhere.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    file: str
    given: dict[str, bool | int | float | str]
    prepare: tuple[Preparation, ...]
    cells: dict[str, PlannedCell]
    measures: dict[str, Measure]
    questions: tuple[Question, ...]
    reference: str

    def document(self) -> dict[str, Any]:
        """JSON-ready."""
        return self.model_dump(mode="json")


def plan_experiment(
    document: Document,
    file: ExperimentFile,
    *,
    environment: Mapping[str, str],
    resolve: Resolve,
    output: Path | None,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> tuple[ExperimentPlan, Path]:
    """The plan of all cells and the folder for it, `outputs/NAME` unless another is given.

    Cells that `only` names must be distinct, and heed the environment.

    Raises:
        ConfigError: The file is wrong, a setting does not fit, two chosen cells ask for the same, or a variable of the
            environment has no effect on any of them.
        UsageError: `only` names no cell.
    """
    given = given_variables(file, environment)
    name = experiment_name(document, file, given)
    run = output or OUTPUTS / name
    matrix = cells(document, file, given, str(run))
    wanted = tuple(seeds) or file.experiment.seeds
    planned: dict[str, PlannedCell] = {}
    for cell in matrix:
        for seed in wanted:
            place = cell.name if len(wanted) == 1 else f"{cell.name}_seed{seed}"
            planned[place] = _planned(cell, seed, file, resolve)
    chosen = {planned[place].label for place in chosen_cells(planned, only)}
    _check_given(given, [cell for cell in matrix if cell.name in chosen])
    _check_distinct([cell for cell in matrix if cell.name in chosen], planned)
    plan = ExperimentPlan(
        name=name,
        file=str(document.file.resolve()),
        given=given,
        prepare=preparations(document, file, given, str(run)),
        cells=planned,
        measures=file.measures,
        questions=file.questions,
        reference=file.experiment.reference,
    )
    return plan, run


def read_plan(document: Mapping[str, Any]) -> ExperimentPlan:
    """The plan that `ExperimentPlan.document` described.

    Raises:
        DataError: It is damaged, or of another version.
    """
    try:
        return ExperimentPlan.model_validate(document)
    except ValidationError as error:
        raise DataError(f"What the experiment was asked for cannot be read: {error.errors()[0]['msg']}.") from error


def chosen_cells(planned: Mapping[str, PlannedCell], only: Sequence[str]) -> list[str]:
    """Names of the cells that match any of the patterns, such as `qwen3_4b_*`; all without patterns.

    Raises:
        UsageError: A pattern matches none.
    """
    for pattern in only:
        if not any(_matches(name, cell, pattern) for name, cell in planned.items()):
            raise UsageError(f"There is no cell {pattern!r}.", remedy=f"--only with one of: {', '.join(planned)}")
    return [name for name, cell in planned.items() if not only or any(_matches(name, cell, one) for one in only)]


def settings_of(cell: PlannedCell) -> Settings:
    """The cell's settings."""
    return from_public_dict(cell.settings)


def prepare_steps(plan: ExperimentPlan, run: Path) -> list[Step]:
    """What is done before the first cell."""
    names = [f"prepare/{one.name}" for one in plan.prepare]
    return [
        Step(name=name, arguments=(*one.arguments, "--run-dir", f"{run / name}"), reads=tuple(names[:place]))
        for place, (name, one) in enumerate(zip(names, plan.prepare, strict=True))
    ]


def steps_of(plan: ExperimentPlan, name: str, run: Path) -> tuple[Step, Step]:
    """Training and evaluation of a cell, as commands that can be typed."""
    cell, prepared = plan.cells[name], tuple(f"prepare/{one.name}" for one in plan.prepare)
    file, trained = f"settings/{name}.json", f"runs/{name}"
    settings = settings_of(cell)
    changed = [word for path, value in cell.evaluation.items() for word in ("--set", f"{path}={_toml(value)}")]
    return (
        Step(
            name=trained,
            arguments=("train", "--config", f"{run / file}", "--run-dir", f"{run / trained}"),
            reads=(file, *prepared),
        ),
        Step(
            name=f"evals/{name}",
            arguments=(
                *("eval", f"{run / trained}", "--config", f"{run / file}", "--split", settings.data.eval_split),
                *(*changed, "--run-dir", f"{run / 'evals' / name}"),
            ),
            reads=(file, trained),
        ),
    )


def settings_file(cell: PlannedCell) -> dict[str, Any]:
    """The content of a cell's settings file."""
    settings = settings_of(cell)
    return settings_document(settings, data=settings.data.path, snapshot=settings.data.snapshot)


def differing_settings(plan: ExperimentPlan) -> dict[str, list[Any]]:
    """Dotted path -> its value in each cell, for the settings that are not the same in all."""
    return differing([cell.settings for cell in plan.cells.values()])


def _planned(cell: Cell, seed: int, file: ExperimentFile, resolve: Resolve) -> PlannedCell:
    try:
        loaded = resolve(file.experiment.config, {**cell.settings, "train.seed": seed})
        check_secrets(loaded)
        check_idle_options(loaded)
        if loaded.settings.run.dir is not None:
            raise UsageError("run.dir has no effect here.", remedy="--output")
    except FinqaError as error:
        error.args = (f"Cell {cell.name}: {error.message}",)
        raise
    return PlannedCell(
        label=cell.name,
        group=cell.choices.get(file.experiment.compare_within, ""),
        choices=dict(cell.choices),
        settings=to_public_dict(loaded.settings),
        evaluation=dict(cell.evaluation),
        rates=cell.rates,
    )


def _check_given(given: Mapping[str, Scalar], chosen: Sequence[Cell]) -> None:
    for name in given:
        if all(name in cell.fixed for cell in chosen):
            raise ConfigError(
                f"{name} has no effect (environment {name}): every chosen cell has a value of its own for it.",
                remedy=f"unset {name}, or choose other cells with --only",
            )


def _check_distinct(chosen: Sequence[Cell], planned: Mapping[str, PlannedCell]) -> None:
    seen: dict[str, str] = {}
    for cell in chosen:
        settings = next(one.settings for one in planned.values() if one.label == cell.name)
        if (other := seen.setdefault(repr((settings, cell.evaluation)), cell.name)) != cell.name:
            raise ConfigError(
                f"{other} and {cell.name} ask for the same, so there is nothing to compare.",
                remedy=f"--only {other}, or unset the variable that makes them alike",
            )


def _matches(name: str, cell: PlannedCell, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(cell.label, pattern)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)
