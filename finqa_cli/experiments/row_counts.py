"""Has the data as many questions as an experiment counts on? Its steps, times and costs are of what the file says."""

from __future__ import annotations

import json
from collections.abc import Sequence

from finqa_cli.errors import FinqaError
from finqa_cli.evaluation.evaluate import eval_tasks
from finqa_cli.experiments.experiment_plan import ExperimentPlan, PlannedCell, settings_of
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.wiring.build import open_environment


def row_warnings(plan: ExperimentPlan, chosen: Sequence[str]) -> list[str]:
    """What does not go together, a line for all cells that it is true of; cells without `rates.questions` are silent.

    Data that is not there, or cannot be read, is said as well: then nothing was compared.
    """
    counted: dict[str, tuple[int, int] | str] = {}
    told: dict[str, list[str]] = {}
    for name in chosen:
        cell = plan.cells[name]
        if cell.rates is None or cell.rates.questions is None:
            continue
        settings = settings_of(cell)
        key = json.dumps([cell.settings[part] for part in ("environment", "data", "eval")], sort_keys=True)
        if key not in counted:
            counted[key] = _counted(settings)
        for line in _differences(cell, settings, counted[key]):
            told.setdefault(line, []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in told.items()]


def _counted(settings: Settings) -> tuple[int, int] | str:
    """Questions to train on and attempts of one evaluation; or why they are not known."""
    path = settings.data.path
    if path is not None and not path.exists():
        return f"there is no data at {path}"
    try:
        environment = open_environment(settings, NullReporter())
        asked = len(eval_tasks(environment, settings)) * settings.eval.attempts
        return len(environment.tasks(settings.data.train_split)), asked
    except FinqaError as error:
        return error.message


def _differences(cell: PlannedCell, settings: Settings, counted: tuple[int, int] | str) -> list[str]:
    assert cell.rates is not None and cell.rates.questions is not None
    if isinstance(counted, str):
        return [f"the plan's numbers of questions are not compared with the data: {counted.rstrip('.')}."]
    data, planned = settings.data, (round(float(cell.rates.questions)), round(float(cell.rates.evaluated)))
    found = []
    if planned[0] != counted[0]:
        found.append(
            f"the plan counts on {planned[0]:,} questions to train on, and split {data.train_split!r} has "
            f"{counted[0]:,}: change what the file calculates rates.questions from."
        )
    if planned[1] != counted[1]:
        found.append(
            f"the plan counts on {planned[1]:,} attempts in an evaluation, and split {data.eval_split!r} has "
            f"{counted[1]:,}: change what the file calculates rates.evaluated from."
        )
    return found
