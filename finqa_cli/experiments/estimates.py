"""How long the cells of an experiment take and what they cost: from rates that are given, or from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finqa_cli.errors import DataError
from finqa_cli.experiments.experiment_plan import ExperimentPlan, PlannedCell, settings_of
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.settings import Settings

Source = Literal["measured", "given", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a cell will take, evaluations included.

    Attributes:
        iterations: Of training.
        attempts: In training, when every iteration fills its groups once.
        evaluated: Attempts in evaluations; None where their number is not given.
        tokens: Prompts and responses of all; None without rates.
        hours: A low and a high estimate of the wall time; None without rates.
        gpu_hours: Likewise.
        gpu_hour_price: US dollars for one GPU and hour, as the file gives it; None without.
        cost: US dollars: GPU-hours at that price; None without a price.
        source: `measured` in this experiment's folder, or `given` by the file.
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
    """An estimate for each cell; rates that were measured in the folder, in a cell of the same group, win."""
    measured: dict[str, float] = {}
    for name, cell in plan.cells.items():
        if (seconds := _measured(run / "runs" / name)) is not None:
            measured[cell.group] = seconds
    return {name: estimate(cell, measured) for name, cell in plan.cells.items()}


def estimate(cell: PlannedCell, measured: Mapping[str, float]) -> Estimate:
    """The estimate of one cell; `measured` has seconds per attempt by group."""
    settings, rates = settings_of(cell), cell.rates
    train = settings.train
    attempts = train.iterations * _groups(settings) * train.group_size
    evaluated = round(_evaluations(settings) * float(rates.evaluated)) if rates else None
    seconds, source = _seconds(cell, measured)
    played = attempts + (evaluated or 0)
    hours = (played * seconds[0] / 3600, played * seconds[1] / 3600) if seconds else None
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


def total(found: Mapping[str, Estimate]) -> tuple[float, float] | None:
    """Hours of all cells one after the other; None where one is not known."""
    hours = [one.hours for one in found.values()]
    known = [pair for pair in hours if pair is not None]
    return (sum(low for low, _ in known), sum(high for _, high in known)) if len(known) == len(hours) else None


def _seconds(cell: PlannedCell, measured: Mapping[str, float]) -> tuple[tuple[float, float] | None, Source]:
    if cell.group in measured:
        return (measured[cell.group], measured[cell.group]), "measured"
    if cell.rates is None:
        return None, "none"
    low, high = cell.rates.seconds_per_attempt
    return (float(low), float(high)), "given"


def _groups(settings: Settings) -> int:
    """Of an iteration: the target, or without one what the places for attempts hold, in every round."""
    train, pool = settings.train, settings.pool
    held = max(1, pool.sandboxes * pool.sessions_per_sandbox // train.group_size)
    return train.target_groups_per_iter or train.max_rollout_rounds * held


def _evaluations(settings: Settings) -> int:
    """Before training, every `eval_every` iterations, after it, and the one of `finqa eval`."""
    train = settings.train
    between = (train.iterations - 1) // train.eval_every if train.eval_every else 0
    return 2 + between + 1


def _measured(run: Path) -> float | None:
    """Seconds of an iteration for each of its attempts, over the iterations of a run; None before the first."""
    if not (run / "metrics.jsonl").is_file():
        return None
    try:
        trained = [record for record in read_jsonl(run / "metrics.jsonl") if record.get("kind") == "train"]
        attempts = sum(int(record["episodes"]) for record in trained)
        seconds = sum(float(record["timing"]["iteration_s"]) for record in trained)
    except (DataError, KeyError, TypeError, ValueError):
        return None  # an estimate is no place to refuse a damaged file
    return seconds / attempts if attempts else None
