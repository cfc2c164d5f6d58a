"""A figure with its limit, and how all of them are printed."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, and what it must be. A figure without a limit is printed for context and always passes.

    Attributes:
        timed: Depends on the size of the run and on what else the machine does, as counts do not.
    """

    name: str
    value: float
    limit: str = ""
    passed: bool = True
    detail: str = ""
    timed: bool = False


def at_most(name: str, value: float, limit: float, detail: str = "", *, timed: bool = False) -> Figure:
    """Passes up to the limit."""
    return Figure(name=name, value=value, limit=f"<= {limit:g}", passed=value <= limit, detail=detail, timed=timed)


def at_least(name: str, value: float, limit: float, detail: str = "", *, timed: bool = False) -> Figure:
    """Passes from the limit on."""
    return Figure(name=name, value=value, limit=f">= {limit:g}", passed=value >= limit, detail=detail, timed=timed)


def exactly(name: str, value: float, limit: float, detail: str = "") -> Figure:
    """Passes at the limit alone: for counts."""
    return Figure(name=name, value=value, limit=f"= {limit:g}", passed=value == limit, detail=detail)


def note(name: str, value: float, detail: str = "") -> Figure:
    """Has no limit."""
    return Figure(name=name, value=value, detail=detail)


def without_times(figures: Sequence[Figure]) -> list[Figure]:
    """The same, but figures that depend on time are printed without being judged."""
    return [replace(figure, limit="", passed=True) if figure.timed else figure for figure in figures]


def as_table(parts: Mapping[str, Sequence[Figure]]) -> str:
    """Markdown, one row a figure."""
    rows = ["| part | figure | value | limit | | how |", "| --- | --- | --- | --- | --- | --- |"]
    for part, figures in parts.items():
        for figure in figures:
            verdict = ("pass" if figure.passed else "FAIL") if figure.limit else ""
            whole = math.isfinite(figure.value) and figure.value == int(figure.value)
            value = f"{figure.value:.0f}" if whole else f"{figure.value:.4g}"
            cells = (part, figure.name, value, figure.limit, verdict, figure.detail)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def as_json(parts: Mapping[str, Sequence[Figure]], facts: Mapping[str, Any]) -> str:
    """One line with the facts of the run and every figure."""
    figures = [{"part": part, **asdict(figure)} for part, members in parts.items() for figure in members]
    return json.dumps({**facts, "passed": all(figure["passed"] for figure in figures), "figures": figures})


def report(parts: Mapping[str, Sequence[Figure]], facts: Mapping[str, Any]) -> int:
    """Prints both forms; the exit status: 1 when a figure failed."""
    print(as_table(parts))
    print(as_json(parts, facts))
    return 0 if all(figure.passed for part in parts.values() for figure in part) else 1


def machine() -> dict[str, Any]:
    """Where this was measured."""
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
    }
