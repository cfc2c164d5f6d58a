"""Figures that an environment reports about its own episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.errors import FinqaError
from finqa_cli.types import Trajectory


def measured(environment: Environment, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What it says about them, nothing where it has no figures of its own.

    Raises:
        FinqaError: They cannot be written down: a number that is not finite, or no number at all.
    """
    found = dict(environment.measure(trajectories))
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        name = type(environment).__name__
        raise FinqaError(f"{name}.measure gives what is no JSON: {error}. This is a fault of its plugin.") from error
    return found


def flat(measures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers by their dotted names: `pass_at_1_by_attempt.2`."""
    numbers: dict[str, float] = {}
    for name, value in measures.items():
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            numbers[f"{prefix}{name}"] = value
    return numbers
