from __future__ import annotations

from typing import Any

import pytest

from benchmarks.code_learning import verdict


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
    assert verdict({False: run(*grpo), True: run(*control)}) == missed
