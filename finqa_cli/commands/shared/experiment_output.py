"""How `finqa experiment` shows a plan: its cells with estimates, what tells them apart, and the commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finqa_cli.commands.shared.output import plain_table, plural
from finqa_cli.experiments.experiment_plan import (
    Estimate,
    ExperimentPlan,
    differing_settings,
    estimates,
    prepare_steps,
    row_warnings,
    steps_of,
    total,
)
from finqa_cli.experiments.experiment_run import states_of

_SOURCES = {"measured": "measured in this folder", "given": "as the file gives them", "none": "none, so only counts"}


def plan_document(plan: ExperimentPlan, folder: Path, chosen: Sequence[str]) -> dict[str, Any]:
    """The `--json` form of a plan; nothing is started or written.

    Raises:
        ConfigError: The folder was changed by hand.
    """
    states, found = states_of(plan, folder), estimates(plan, folder)
    return {
        "experiment": plan.name,
        "file": plan.file,
        "output": str(folder),
        "given": plan.given,
        "prepare": [step.line for step in prepare_steps(plan, folder)],
        "cells": {
            name: {
                "choices": plan.cells[name].choices,
                "state": in_one_word(states[name]),
                "estimate": asdict(found[name]),
                "commands": [step.line for step in steps_of(plan, name, folder)],
            }
            for name in chosen
        },
        "differing_settings": _settings(plan, chosen),
        "questions": [question.model_dump(mode="json") for question in plan.questions],
        "hours": total({name: found[name] for name in chosen}),
        "currency": "USD",
        "warnings": row_warnings(plan, chosen),
        "reference": plan.reference,
    }


def plan_text(document: Mapping[str, Any], plan: ExperimentPlan, folder: Path) -> str:
    """The document of a plan for a person."""
    found, chosen = estimates(plan, folder), list(document["cells"])
    given = ", ".join(f"{name}={value}" for name, value in plan.given.items())
    headers = ("cell", "state", "iterations", "attempts", "tokens", "time", "GPU-hours", "cost, USD")
    rows = [(name, document["cells"][name]["state"], *_estimated(found[name])) for name in chosen]
    sources = sorted({found[name].source for name in chosen})
    hours = document["hours"]
    questions = [f"  {question.ask} ({', '.join(question.measures)})" for question in plan.questions]
    cells = document["cells"].values()
    commands = [f"  {line}" for line in (*document["prepare"], *(line for cell in cells for line in cell["commands"]))]
    parts = [
        f"Experiment {plan.name} ({plan.file}): {plural(len(chosen), 'cell')} in {folder}"
        + (f"; set by the environment: {given}" if given else ""),
        plain_table(headers, rows),
        f"One after the other: {_span(hours, _time) if hours else 'time not known'}. "
        f"Rates: {', '.join(_SOURCES[source] for source in sources)}."
        + f"\n{_costs([found[name] for name in chosen])}"
        + (f"\nReference: {plan.reference}" if plan.reference else ""),
        *(["\n".join(f"warning: {line}" for line in document["warnings"])] if document["warnings"] else []),
        "Settings that differ:\n" + _differing(document["differing_settings"], chosen),
        "\n".join(["Questions:", *questions]),
        "\n".join(["Commands:", *commands]),
    ]
    return "\n\n".join(parts)


def in_one_word(pair: tuple[str, str]) -> str:
    """How a cell stands, of which training and evaluation have these states."""
    return pair[0] if pair[0] == pair[1] else "begun"


def _settings(plan: ExperimentPlan, chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Dotted path -> cell -> value, for what is not the same in all cells of the plan."""
    values = differing_settings(plan)
    return {
        path: {name: value for name, value in zip(plan.cells, found, strict=True) if name in chosen}
        for path, found in values.items()
    }


def _differing(settings: Mapping[str, Mapping[str, Any]], chosen: Sequence[str]) -> str:
    return plain_table(
        ("setting", *chosen), [(path, *(found[name] for name in chosen)) for path, found in settings.items()]
    )


def _estimated(one: Estimate) -> tuple[str, ...]:
    return (
        f"{one.iterations:,}",
        f"{one.attempts:,}" + (f" + {one.evaluated:,} evaluated" if one.evaluated else ""),
        f"{one.tokens / 1e6:,.1f} M" if one.tokens is not None else "-",
        _span(one.hours, _time),
        _span(one.gpu_hours, lambda value: f"{value:,.1f}"),
        _span(one.cost, lambda value: f"{value:,.0f}"),
    )


def _costs(found: Sequence[Estimate]) -> str:
    """How costs are calculated, or what is missing for it."""
    prices = sorted({one.gpu_hour_price for one in found if one.gpu_hour_price is not None})
    if not prices:
        return "Cost: not known, for the file gives no gpu_hour_price (USD for one GPU and hour) under [rates]."
    told = " or ".join(f"{price:g}" for price in prices)
    if all(one.cost is None for one in found):
        return f"Cost: not known, for the time is not; a GPU-hour is {told} USD."
    return f"Cost: GPU-hours at {told} USD each, as the file gives it; nothing else is in it."


def _span(pair: tuple[float, float] | None, shown: Callable[[float], str]) -> str:
    if pair is None:
        return "-"
    low, high = shown(pair[0]), shown(pair[1])
    return low if low == high else f"{low} to {high}"


def _time(hours: float) -> str:
    if hours >= 48:
        return f"{hours / 24:.1f} d"
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
