from __future__ import annotations

from typing import Any

import pytest

from benchmarks.controlled import verdict
from benchmarks.small_policies import row


def run(before: float, after: float) -> dict[str, Any]:
    return {
        name: {"accuracy": value, "accuracy_interval": [value - 0.1, value + 0.1]}
        for name, value in (("before", before), ("after", after))
    }


@pytest.mark.parametrize(
    ("grpo", "control", "missed"),
    [
        ((0.3, 0.9), (0.3, 0.3), []),
        ((0.3, 0.9), (0.3, 0.1), []),
        ((0.3, 0.9), (0.3, 0.45), []),
        ((0.3, 0.6), (0.3, 0.3), ["GRPO gained 30 points, at least 40 are wanted"]),
        ((0.3, 0.9), (0.3, 0.6), ["the control rose from 0.30 to 0.60"]),
    ],
)
def test_what_counts_as_learned(grpo: tuple[float, float], control: tuple[float, float], missed: list[str]) -> None:
    assert verdict({False: run(*grpo), True: run(*control)}, wanted_gain=0.4) == missed


def test_a_row_has_attempts_and_repairs_where_there_are_several() -> None:
    plain = run(0.3, 0.9)
    assert (
        row("code", "grpo", 0, plain, 61.4) == "| code | grpo | 0 | 0.300 | 0.900 [0.800, 1.000] | -, - | -, - | 61 |"
    )
    before = {**plain["before"], "measures": {"pass_at_1_by_attempt": {"1": 0.1, "2": 0.3}, "repair_rate": 0.25}}
    after = {**plain["after"], "measures": {"pass_at_1_by_attempt": {"1": 1.0, "2": 1.0}}}
    told = row("mbpp", "grpo", 1, {"before": before, "after": after}, 61.4)
    assert "| 0.100, 1.000 | 0.250, - |" in told, "nothing failed, so nothing was repaired"
