"""Figures that an environment reports about its own episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from finqa_cli.contracts import Environment
from finqa_cli.errors import PluginError
from finqa_cli.extend.plugin_calls import describe
from finqa_cli.types import Trajectory

log = structlog.get_logger(__name__)


def measured(environment: Environment, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Its own figures about them; empty if it has none.

    Figures that cannot be computed or written as JSON are left out with a warning: the episodes are worth more.
    """
    try:
        found = dict(environment.measure(trajectories))
        json.dumps(found, allow_nan=False)
    except (PluginError, TypeError, ValueError) as error:
        name, reason = f"{type(environment).__name__}.measure", getattr(error, "message", describe(error))
        log.warning(f"The environment's measures are ignored: {name} does not return numbers for JSON: {reason}")
        return {}
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
