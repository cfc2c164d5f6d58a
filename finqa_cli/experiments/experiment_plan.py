"""The plan of an experiment: every cell with its settings, its steps, and estimates of time and cost.

The plan is stored as one document, and a later call resumes with it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from finqa_cli.errors import ConfigError, DataError, FinqaError, UsageError
from finqa_cli.evaluation.compare.comparison import differing, flat
from finqa_cli.evaluation.evaluate import eval_split, eval_tasks
from finqa_cli.experiments.experiment_file import (
    Cell,
    ExperimentFile,
    Measure,
    Preparation,
    Question,
    Rates,
    cells,
    experiment_name,
    given_variables,
    preparations,
)
from finqa_cli.experiments.step_runner import Step
from finqa_cli.experiments.step_settings import check_secrets, settings_document
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Loaded, Settings, from_public_dict, to_public_dict
from finqa_cli.settings.layers import assignment_text
from finqa_cli.settings.settings_files import Document
from finqa_cli.training.rl.rl_run import check_group_size, check_idle_options
from finqa_cli.wiring.build import open_environment

OUTPUTS = Path("outputs")

Resolve = Callable[[Sequence[str], Mapping[str, Any]], Loaded]
"""Loads settings from settings files and settings by dotted path."""

Source = Literal["measured", "given", "none"]


class PlannedCell(BaseModel):
    """One cell under one seed.

    Attributes:
        label: Name in comparisons: the name of the cell, the same for every seed.
        group: Only cells of the same group are compared with each other.
        choices: Axis -> choice.
        settings: All settings, as `to_public_dict` returns them.
        evaluation: Dotted path -> value that replaces the setting in the evaluation.
        rates: Rates for estimates.
    """

    model_config = ConfigDict(frozen=True)

    label: str
    group: str
    choices: dict[str, str]
    settings: dict[str, Any]
    evaluation: dict[str, Any]
    rates: Rates | None


class ExperimentPlan(BaseModel):
    """A whole experiment.

    Attributes:
        name: Name of the experiment.
        file: File that it was read from.
        given: Variables that environment variables set.
        prepare: Commands before the first cell, in order.
        cells: Cells by name, which also names their folders.
        measures: Measures by name.
        questions: Questions to answer.
        reference: Time and cost reported elsewhere.
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
        """Returns the plan as JSON values."""
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
    """Plans all cells; also returns the folder for them, `outputs/NAME` unless another one is given.

    The cells that `only` selects must be distinct, and every environment variable must affect one of them.

    Raises:
        ConfigError: The file is wrong, a setting does not fit, two selected cells have the same settings, or an
            environment variable affects none of them.
        UsageError: A pattern of `only` matches no cell.
    """
    given = given_variables(file, environment)
    name = experiment_name(document, file, given)
    run = output or OUTPUTS / name
    matrix = cells(document, file, given, str(run))
    planned: dict[str, PlannedCell] = {}
    for cell in matrix:
        wanted = tuple(seeds) or cell.seeds
        for seed in wanted:
            place = cell.name if len(wanted) == 1 else f"{cell.name}_seed{seed}"
            planned[place] = _planned(cell, seed, file, resolve)
    chosen = {planned[place].label for place in chosen_cells(planned, only)}
    _check_given(given, [cell for cell in matrix if cell.name in chosen], file)
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
    """Reads the plan that `ExperimentPlan.document` wrote.

    Raises:
        DataError: The document is damaged, or of another version.
    """
    try:
        return ExperimentPlan.model_validate(document)
    except ValidationError as error:
        raise DataError(f"The parameters of the experiment cannot be read: {error.errors()[0]['msg']}.") from error


def chosen_cells(planned: Mapping[str, PlannedCell], only: Sequence[str]) -> list[str]:
    """Returns the names of the cells that match any of the patterns, such as `qwen3_4b_*`; all without patterns.

    Raises:
        UsageError: A pattern matches no cell.
    """
    for pattern in only:
        if not any(_matches(name, cell, pattern) for name, cell in planned.items()):
            raise UsageError(f"There is no cell {pattern!r}.", remedy=f"--only with one of: {', '.join(planned)}")
    return [name for name, cell in planned.items() if not only or any(_matches(name, cell, one) for one in only)]


def settings_of(cell: PlannedCell) -> Settings:
    """Returns the cell's settings."""
    return from_public_dict(cell.settings)


def prepare_steps(plan: ExperimentPlan, run: Path) -> list[Step]:
    """Returns the steps before the first cell."""
    names = [f"prepare/{one.name}" for one in plan.prepare]
    return [
        Step(name=name, arguments=(*one.arguments, "--run-dir", f"{run / name}"), reads=tuple(names[:place]))
        for place, (name, one) in enumerate(zip(names, plan.prepare, strict=True))
    ]


def steps_of(plan: ExperimentPlan, name: str, run: Path) -> tuple[Step, Step]:
    """Returns the training and the evaluation of a cell."""
    cell, prepared = plan.cells[name], tuple(f"prepare/{one.name}" for one in plan.prepare)
    file, trained = f"settings/{name}.json", f"runs/{name}"
    others = dict(cell.evaluation)
    split = others.pop("data.eval_split", settings_of(cell).data.eval_split)  # one setting is given once
    changed = [word for path, value in others.items() for word in ("--set", f"{path}={assignment_text(path, value)}")]
    return (
        Step(
            name=trained,
            arguments=("train", "--config", f"{run / file}", "--run-dir", f"{run / trained}"),
            reads=(file, *prepared),
        ),
        Step(
            name=f"evals/{name}",
            arguments=(
                *("eval", f"{run / trained}", "--config", f"{run / file}", "--split", split),
                *(*changed, "--run-dir", f"{run / 'evals' / name}"),
            ),
            reads=(file, trained),
        ),
    )


def settings_file(cell: PlannedCell) -> dict[str, Any]:
    """Returns the content of a cell's settings file."""
    settings = settings_of(cell)
    return settings_document(settings, data=settings.data.path, snapshot=settings.data.snapshot)


def differing_settings(plan: ExperimentPlan) -> dict[str, list[Any]]:
    """Returns dotted path -> value in each cell, for the settings that are not the same in all."""
    return differing([cell.settings for cell in plan.cells.values()])


def _planned(cell: Cell, seed: int, file: ExperimentFile, resolve: Resolve) -> PlannedCell:
    try:
        loaded = resolve(file.experiment.config, {**cell.settings, "train.seed": seed})
        check_secrets(loaded)
        check_group_size(loaded.settings)
        check_idle_options(loaded)
        if (named := loaded.settings.run.dir) is not None:
            remedy = f"leave run.dir out of its settings, and give --output {shlex.quote(str(named))}"
            raise UsageError("run.dir has no effect here.", remedy=remedy)
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


def _check_given(given: Mapping[str, Any], chosen: Sequence[Cell], file: ExperimentFile) -> None:
    for name, value in given.items():
        if all(name in cell.fixed for cell in chosen):
            path = next((path for path, formula in flat(file.settings).items() if formula == f"={name}"), "")
            instead = f"--set {path}={assignment_text(path, value)} for all cells, or " if path else ""
            raise ConfigError(
                f"{name} has no effect (environment {name}): every selected cell sets its own value.",
                remedy=f"{instead}unset {name}, or choose other cells with --only",
            )


def _check_distinct(chosen: Sequence[Cell], planned: Mapping[str, PlannedCell]) -> None:
    seen: dict[str, str] = {}
    for cell in chosen:
        settings = next(one.settings for one in planned.values() if one.label == cell.name)
        if (other := seen.setdefault(repr((settings, cell.evaluation)), cell.name)) != cell.name:
            raise ConfigError(
                f"{other} and {cell.name} have the same settings, so there is nothing to compare.",
                remedy=f"--only {other}, or unset the variable that makes them equal",
            )


def _matches(name: str, cell: PlannedCell, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(cell.label, pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated effort of a cell, evaluations included.

    Attributes:
        iterations: Iterations of training.
        attempts: Attempts in training, if every iteration fills its groups once.
        evaluated: Attempts in evaluations; None without rates.
        tokens: Tokens of all prompts and responses; None without rates.
        hours: A low and a high estimate of the wall time; None without rates.
        gpu_hours: A low and a high estimate; None without rates.
        gpu_hour_price: US dollars for one GPU and hour, as in the file; None if it has no price.
        cost: GPU-hours at that price, in US dollars; None without a price.
        source: Whether the seconds per attempt are `measured` in this experiment's folder or `given` by the file.
    """

    iterations: int
    attempts: int
    evaluated: int | None
    tokens: float | None
    hours: tuple[float, float] | None
    gpu_hours: tuple[float, float] | None
    gpu_hour_price: float | None
    cost: tuple[float, float] | None
    source: Source


def estimates(plan: ExperimentPlan, run: Path) -> dict[str, Estimate]:
    """Estimates each cell. Seconds per attempt that were measured in a cell of the same group replace those given."""
    measured: dict[str, float] = {}
    for name, cell in plan.cells.items():
        if (seconds := _measured(run / "runs" / name)) is not None:
            measured[cell.group] = seconds
    return {name: _estimate(cell, measured.get(cell.group)) for name, cell in plan.cells.items()}


def total(found: Mapping[str, Estimate]) -> tuple[float, float] | None:
    """Returns the total hours of all cells, which run one after the other; None if those of a cell are unknown."""
    known = [one.hours for one in found.values() if one.hours is not None]
    return (sum(low for low, _ in known), sum(high for _, high in known)) if len(known) == len(found) else None


def _estimate(cell: PlannedCell, measured: float | None) -> Estimate:
    settings, rates = settings_of(cell), cell.rates
    train, pool = settings.train, settings.pool
    concurrent = max(1, pool.sandboxes * pool.sessions_per_sandbox // train.group_size)
    groups = train.target_groups_per_iter or train.max_rollout_rounds * concurrent
    attempts = train.iterations * groups * train.group_size
    # evaluations before training, every `eval_every` iterations, after training, and by `finqa eval`
    evaluations = 3 + ((train.iterations - 1) // train.eval_every if train.eval_every else 0)
    evaluated = round(evaluations * float(rates.evaluated)) if rates else None
    played = attempts + (evaluated or 0)
    source: Source = "none"
    hours = None
    if measured is not None:
        source, hours = "measured", (played * measured / 3600, played * measured / 3600)
    elif rates is not None:
        low, high = rates.seconds_per_attempt
        source, hours = "given", (played * float(low) / 3600, played * float(high) / 3600)
    gpu_hours = (hours[0] * float(rates.gpus), hours[1] * float(rates.gpus)) if hours and rates else None
    price = float(rates.gpu_hour_price) if rates and rates.gpu_hour_price is not None else None
    return Estimate(
        iterations=train.iterations,
        attempts=attempts,
        evaluated=evaluated,
        tokens=played * (float(rates.prompt_tokens) + float(rates.response_tokens)) if rates else None,
        hours=hours,
        gpu_hours=gpu_hours,
        gpu_hour_price=price,
        cost=(gpu_hours[0] * price, gpu_hours[1] * price) if gpu_hours and price is not None else None,
        source=source,
    )


def _measured(run: Path) -> float | None:
    """Returns the mean seconds per attempt over the training iterations of a run; None before the first iteration."""
    if not (run / "metrics.jsonl").is_file():
        return None
    try:
        trained = [record for record in read_jsonl(run / "metrics.jsonl") if record.get("kind") == "train"]
        attempts = sum(int(record["episodes"]) for record in trained)
        seconds = sum(float(record["timing"]["iteration_s"]) for record in trained)
    except (DataError, KeyError, TypeError, ValueError):
        return None  # a damaged file does not prevent an estimate; the step itself reports it
    return seconds / attempts if attempts else None


def row_warnings(plan: ExperimentPlan, chosen: Sequence[str]) -> list[str]:
    """Compares the numbers of questions that the rates assume with the data; returns one line per difference.

    Cells without `rates.questions` are not checked. Data that does not exist or cannot be read also gives a line.
    """
    counted: dict[str, tuple[tuple[str, int], ...] | str] = {}
    cells_of: dict[str, list[str]] = {}
    for name in chosen:
        cell = plan.cells[name]
        if cell.rates is None or cell.rates.questions is None:
            continue
        settings = settings_of(cell)
        key = json.dumps([cell.settings[part] for part in ("environment", "data", "eval")], sort_keys=True)
        if key not in counted:
            counted[key] = _counted(settings)
        planned = round(float(cell.rates.questions)), round(float(cell.rates.evaluated))
        for line in _count_differences(planned, counted[key]):
            cells_of.setdefault(line, []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in cells_of.items()]


def _counted(settings: Settings) -> tuple[tuple[str, int], ...] | str:
    """Returns (split, number) of training questions and of attempts in an evaluation, or why they are unknown."""
    path = settings.data.path
    if path is not None and not path.exists():
        return f"there is no data at {path}"
    try:
        environment = open_environment(settings, NullReporter())
        trained, evaluated = settings.data.train_split, eval_split(environment, settings)
        attempts = len(eval_tasks(environment, settings)) * settings.eval.attempts
        return (trained, len(environment.tasks(trained))), (evaluated, attempts)
    except FinqaError as error:
        return error.message


def _count_differences(planned: tuple[int, int], counted: tuple[tuple[str, int], ...] | str) -> Iterator[str]:
    if isinstance(counted, str):
        yield f"the numbers of questions in the plan cannot be compared with the data: {counted.rstrip('.')}."
        return
    parts = (("training questions", "rates.questions"), ("attempts in an evaluation", "rates.evaluated"))
    for (what, rate), wanted, (split, found) in zip(parts, planned, counted, strict=True):
        if wanted != found:
            yield (
                f"the plan assumes {wanted:,} {what}, and split {split!r} has {found:,}: "
                f"change what the file calculates {rate} from."
            )
