from __future__ import annotations

from typing import Any

import pytest

from benchmarks.forecast_calibration import POLICY, judged, row
from finqa_plugins.learners.torch.initial_policy import read_spec


def result(brier: float, ece: float, *, accuracy: float = 0.7) -> dict[str, Any]:
    def moment(accuracy: float, brier: float, ece: float) -> dict[str, Any]:
        stated = {"0.0-0.2": 1.0, "0.4-0.6": 0.7, "0.8-1.0": 0.4}
        return {"accuracy": accuracy, "measures": {"brier": brier, "ece": ece, "confidence_by_uncertainty": stated}}

    return {"before": moment(0.7, 0.24, 0.2), "after": moment(accuracy, brier, ece)}


GOOD = {"plain": result(0.28, 0.27), "rlcr": result(0.15, 0.05), "control": result(0.2, 0.13)}


def test_calibration_that_rlcr_alone_brings_passes() -> None:
    assert all(figure.passed for figure in judged(GOOD))
    assert row(3, "rlcr", GOOD["rlcr"], 9.6).endswith("| 0.240 | 0.150 | 0.200 | 0.050 | 0.40 / 0.70 / 1.00 | 10 |")


@pytest.mark.parametrize(
    ("name", "other", "missed"),
    [
        ("rlcr", result(0.24, 0.05), "RLCR: Brier score"),
        ("rlcr", result(0.15, 0.19), "RLCR: ECE"),
        ("rlcr", result(0.15, 0.05, accuracy=0.5), "RLCR: accuracy"),
        ("plain", result(0.2, 0.2), "plain: Brier score"),
        ("plain", result(0.24, 0.1), "plain: ECE"),
        ("control", result(0.16, 0.06), "plain or control above RLCR: Brier score"),
    ],
)
def test_each_bar_can_be_missed(name: str, other: dict[str, Any], missed: str) -> None:
    assert missed in {figure.name for figure in judged({**GOOD, name: other}) if not figure.passed}


def test_the_policy_has_a_spec_that_is_read() -> None:
    assert read_spec(POLICY) is not None
