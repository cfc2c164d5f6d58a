"""Figures of environments, and the line of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.toy_environment import ToyEnvironment

from finqa_cli.commands.train import training_text
from finqa_cli.rollout.measures import flat, measured
from finqa_cli.statistics import summarize
from finqa_cli.training.rl.iteration_records import iteration_line, success, summary
from finqa_cli.training.rl.rl_run import TrainResult
from finqa_cli.types import Rewards, Status, Task, Trajectory

TASK = Task(id="q", prompt="?", split="train", cluster="q")


class Measuring:
    def __init__(self, found: Mapping[str, Any]) -> None:
        self._found = found

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        return {**self._found, "episodes": len(trajectories)}


def attempt(total: float | None, **components: float) -> Trajectory:
    rewards = None if total is None else Rewards(total=total, components=components)
    status = Status.SANDBOX_ERROR if total is None else Status.COMPLETED
    return Trajectory(id="t", task=TASK, member=0, seed=0, status=status, turns=(), rewards=rewards)


def test_figures_of_an_environment_are_in_its_report() -> None:
    environment: Any = Measuring({"brier": 0.25, "by": {"a": 1, "b": {"c": 2.0}}, "note": "x"})
    found = measured(environment, [attempt(1.0), attempt(None)])
    assert found == {"brier": 0.25, "by": {"a": 1, "b": {"c": 2.0}}, "note": "x", "episodes": 2}
    assert flat(found) == {"brier": 0.25, "by.a": 1, "by.b.c": 2.0, "episodes": 2}
    assert summarize([attempt(1.0)], found).to_dict()["measures"] == found
    assert measured(ToyEnvironment(), []) == {} and summarize([attempt(1.0)]).to_dict()["measures"] == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_figures_that_cannot_be_written_are_left_out(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    environment: Any = Measuring({"broken": value})
    assert measured(environment, []) == {}
    assert "Measuring.measure does not return numbers for JSON:" in capsys.readouterr().out


def test_the_line_of_a_step() -> None:
    right, wrong = attempt(1.0), attempt(0.5, correct=0.0)
    assert (
        iteration_line(1, [right, wrong], seconds=45.21)
        == "  Iteration 1: reward=0.750, success=50.0% (1/2), time=45.2s"
    )
    assert iteration_line(3, [right, attempt(None)], seconds=0.0).endswith("success=100.0% (1/1), time=0.0s, faults=1")
    shown = {"informative": 13, "groups": 20, "loss": -0.012471}
    assert iteration_line(1, [right], seconds=1.0, metrics=shown).endswith(", informative=13/20, loss=-0.01247")
    assert "reward=0.000, success=0.0% (0/0)" in iteration_line(1, [], seconds=1.0)


def test_the_summary_of_a_training() -> None:
    records = [{"episodes": 4, "faults": 0, **success([attempt(1.0), attempt(0.5, correct=0.0)])}] * 2
    assert records[0] == {"episodes": 4, "faults": 0, "successful": 1, "success_rate": 0.5}
    older = {"episodes": 9, "faults": 0}
    said = "Training complete!\n  Total trajectories: 8\n  Successful: 2 (25.0%)\n  Iterations completed: 3"
    assert summary([older, *records]) == said
    assert summary([]).endswith("Total trajectories: 0\n  Successful: 0\n  Iterations completed: 0")


def test_the_table_of_a_training_leaves_large_groups_to_the_report() -> None:
    facts = {"accuracy": 0.5, "accuracy_interval": [0.4, 0.6], "turns_mean": 1.0, "clusters": 8, "episodes": 8}
    facts |= {"temperature": 0.0, "quoted_years": None, "sql_error_rate": None}
    buckets = {str(bucket): 0.1 for bucket in range(5)}
    measures = {"brier": 0.25, "by_attempt": {"1": 0.5, "2": 0.75}, "by_bucket": buckets}
    moment = {**facts, "measures": measures}
    shown = training_text(TrainResult(run=Path("run"), iterations=1, before=moment, after=moment, seconds=1.0))
    assert "brier" in shown and "by_attempt.2" in shown and "by_bucket" not in shown
