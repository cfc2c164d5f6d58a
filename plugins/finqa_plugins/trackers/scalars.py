"""From a line of metrics to named numbers at a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any


def scalars(metrics: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The step and the finite numbers, nested names joined by `/` under the record's kind: `train/timing/update_s`.

    The step is the record's `iteration`, or else its `step`, or else 0.
    """
    step = metrics.get("iteration", metrics.get("step", 0))
    rest = {name: value for name, value in metrics.items() if name not in ("kind", "iteration", "step")}
    kind = str(metrics.get("kind", ""))
    return int(step), dict(_flat(rest, f"{kind}/" if kind else ""))


def _flat(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield prefix + name, float(value)
