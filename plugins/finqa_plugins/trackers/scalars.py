"""From a line of metrics to named numbers at a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def scalars(metrics: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """The step and the finite numbers, nested names joined by `/` under the record's kind: `train/timing/update_s`.

    Members of lists go by their place: `eval/accuracy_interval/0`. The step is the record's `iteration`, or else its
    `step`, or else 0.
    """
    step = metrics.get("iteration", metrics.get("step", 0))
    rest = [item for item in metrics.items() if item[0] not in ("schema_version", "kind", "iteration", "step")]
    kind = str(metrics.get("kind", ""))
    return int(step), dict(_flat(rest, f"{kind}/" if kind else ""))


def _flat(items: Iterable[tuple[object, Any]], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in items:
        if isinstance(value, Mapping):
            yield from _flat(value.items(), f"{prefix}{name}/")
        elif isinstance(value, list | tuple):
            yield from _flat(enumerate(value), f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)
