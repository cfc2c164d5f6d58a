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
    """Return the environment's own figures about some episodes; empty if it has none.

    If they cannot be computed or written as JSON, a warning is logged and the result is empty: the episodes are valid
    without them.
    """
    try:
        found = dict(environment.measure(trajectories))
        json.dumps(found, allow_nan=False)
    except (PluginError, TypeError, ValueError) as error:
        name, reason = f"{environment.__class__.__name__}.measure", getattr(error, "message", describe(error))
        # Log: `Environment.measure` failed; the episodes stay valid.
        log.warning(f"The environment's measures are ignored: {name} does not return numbers for JSON: {reason}")
        return {}
    return found


def flat(measures: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers by dotted name, such as `pass_at_1_by_attempt.2`."""
    numbers: dict[str, float] = {}
    for name, value in measures.items():
        if isinstance(value, Mapping):
            numbers |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            numbers[f"{prefix}{name}"] = value
    return numbers
