"""Questions answered from attempts: intervals, verdicts, and when nothing can be said."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.toy_environment import ToyEnvironment
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import Environment
from finqa_cli.errors import DataError
from finqa_cli.experiments.experiment_file import Measure, Question
from finqa_cli.experiments.experiment_plan import ExperimentPlan, PlannedCell
from finqa_cli.experiments.research_questions import (
    Answer,
    answers,
    conclusion,
    crossed,
    figure,
    jackknifed,
    read_attempts,
)
from finqa_cli.runs.jsonl import JsonlWriter
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.statistics import crossed_difference, t_quantile
from finqa_cli.statistics.intervals import clustered_mean
from finqa_cli.types import Observation, Rewards, Status, Task, ToolCall, Trajectory, Turn


def attempt(name: str, cluster: str, total: float, **parts: float) -> Trajectory:
    task = Task(id=name, prompt="Will it rise?", split="test", cluster=cluster, kind="event")
    call = ToolCall(name="submit_answer", arguments={"answer": "yes"})
    turn = Turn(text="yes", stop="stop", tool_call=call, observation=Observation(text="ok", done=True))
    rewards = Rewards(total=total, components={"correct": float(total > 0.5), **parts})
    return Trajectory(
        id=f"eval/{name}/0", task=task, member=0, seed=1, status=Status.COMPLETED, turns=(turn,), rewards=rewards
    )


def no_environment() -> Environment:
    raise AssertionError("the measure needs none")


def plan_of(*labels: str, better: Any = "higher") -> ExperimentPlan:
    cells = {
        label: PlannedCell(
            label=label,
            group="",
            choices={"variant": label, "model": "4b"},
            settings={},
            evaluation={},
            rates=None,
        )
        for label in labels
    }
    question = Question(name="q", ask="?", axis="variant", pairs=(("b", "a"),), measures=("m",))
    measures = {"m": Measure(better=better, of="accuracy")}
    return ExperimentPlan(
        name="e", file="f", given={}, prepare=(), cells=cells, measures=measures, questions=(question,), reference=""
    )


def answered(plan: ExperimentPlan, arms: dict[str, list[list[Trajectory]]], of: str = "accuracy") -> Answer:
    (one,) = answers(plan, plan.questions[0], arms, {"m": figure(of, no_environment)})
    return one


def arm(rights: Sequence[float], clusters: int = 10) -> list[list[Trajectory]]:
    return [[attempt(f"q{place}", f"c{place % clusters}", right) for place, right in enumerate(rights)]]


def test_attempts_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    fault = Trajectory(
        id="eval/x/0",
        task=Task(id="x", prompt="?", split="test", cluster="c"),
        member=0,
        seed=3,
        status=Status.SANDBOX_ERROR,
        turns=(),
        error="sandbox lost",
    )
    written = [attempt("q", "c", 0.25, confidence=0.5), fault]
    writer = JsonlWriter(tmp_path / "trajectories.jsonl")
    for one in written:
        writer.append({"phase": "eval", "iteration": 0, **trajectory_record(one)})
    writer.close()
    assert read_attempts(tmp_path) == written
    (tmp_path / "trajectories.jsonl").write_text('{"id": "x"}\n')
    with pytest.raises(DataError, match="does not have the format of this version of finqa:"):
        read_attempts(tmp_path)


def test_figures_leave_faults_out_and_are_none_without_anything_to_say() -> None:
    attempts = [attempt("q", "c", 1.0, sure=0.5), attempt("r", "c", 0.25), attempt("s", "c", 0.0, sure=1.0)]
    assert figure("accuracy", no_environment)(attempts) == pytest.approx(1 / 3)
    assert figure("reward", no_environment)(attempts) == pytest.approx(1.25 / 3)
    assert figure("components.sure", no_environment)(attempts) == 0.75
    assert figure("components.none", no_environment)(attempts) is None
    assert figure("accuracy", no_environment)([]) is None


def test_figures_of_an_environment_go_by_their_dotted_names() -> None:
    class Measuring:
        def measure(self, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
            return {"brier": len(trajectories) / 10, "by": {"low": 0.5}, "note": "text"}

    attempts = [attempt("q", "c", 1.0)]
    assert figure("brier", lambda: Measuring())(attempts) == 0.1  # type: ignore[arg-type,return-value]
    assert figure("by.low", lambda: Measuring())(attempts) == 0.5  # type: ignore[arg-type,return-value]
    assert figure("note", lambda: Measuring())(attempts) is None  # type: ignore[arg-type,return-value]
    assert figure("brier", ToyEnvironment)(attempts) is None


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=40), st.integers(1, 3))
def test_the_jackknife_of_a_mean_over_equal_clusters_is_the_clustered_standard_error(
    values: list[float], size: int
) -> None:
    clusters = [f"c{place:02d}" for place in range(len(values)) for _ in range(size)]
    spread = [value + 0.01 * member for value in values for member in range(size)]
    expected = clustered_mean(spread, clusters)

    def mean(kept: frozenset[str]) -> float:
        chosen = [value for value, cluster in zip(spread, clusters, strict=True) if cluster in kept]
        return math.fsum(chosen) / len(chosen)

    found = jackknifed(mean, clusters)
    assert found is not None and found.value == pytest.approx(expected.mean, abs=1e-12)
    if expected.error > 1e-6:
        zero = found.p_value < 0.05
        assert zero == (found.low > 0 or found.high < 0)
        half = (found.high - found.low) / 2
        assert half == pytest.approx(t_quantile(0.975, len(values) - 1) * expected.error, rel=1e-6)


def test_more_clusters_than_parts_are_left_out_together() -> None:
    seen: list[int] = []

    def count(kept: frozenset[str]) -> float:
        seen.append(len(kept))
        return float(len(kept))

    assert jackknifed(count, [f"c{place:04d}" for place in range(600)]) is not None
    assert seen[0] == 600 and set(seen[1:]) == {590} and len(seen) == 61


def test_nothing_is_estimated_from_one_cluster_or_an_unknown_figure() -> None:
    assert jackknifed(lambda kept: 1.0, ["a", "a"]) is None
    assert jackknifed(lambda kept: None, ["a", "b"]) is None
    assert jackknifed(lambda kept: 1.0 if len(kept) > 1 else None, ["a", "b"]) is None


def test_a_large_difference_is_shown_and_its_direction_is_judged_by_the_measure() -> None:
    chance = random.Random(5)
    worse = arm([float(chance.random() < 0.2) for _ in range(80)])
    better = arm([float(chance.random() < 0.9) for _ in range(80)])
    arms = {"a": worse * 3, "b": better * 3}
    one = answered(plan_of("a", "b"), arms)
    assert one.verdict == "better" and one.difference is not None and one.difference.value > 0.5
    assert (one.first, one.second, one.questions, one.clusters, one.seeds) == ("b", "a", 80, 10, (3, 3))
    assert answered(plan_of("a", "b", better="lower"), arms).verdict == "worse"
    assert conclusion([one]) == "Shown to be better: m of b against a."


@pytest.mark.parametrize("runs", [(1, 1), (3, 1), (1, 3)])
@pytest.mark.parametrize("better", ["higher", "lower"])
def test_of_one_run_no_cell_is_called_better(runs: tuple[int, int], better: str) -> None:
    arms = {"a": arm([0.0] * 60) * runs[0], "b": arm([1.0] * 57 + [0.0] * 3) * runs[1]}
    one = answered(plan_of("a", "b", better=better), arms)
    assert one.verdict == "policies differ" and one.adjusted is not None and one.adjusted < 0.01
    words = conclusion([one])
    assert words == "These two policies differ; one run each says nothing about the methods: m of b against a."


def test_runs_that_spread_widely_show_less_than_each_of_them() -> None:
    """Seeds end at 0.2, 0.5 and 0.8 against 0.1, 0.3 and 0.6: each pair differs, the cells are not shown to."""

    def ended(*shares: float) -> list[list[Trajectory]]:
        chance = random.Random(2)
        return [run for share in shares for run in arm([float(chance.random() < share) for _ in range(200)], 20)]

    first, second = ended(0.2, 0.5, 0.8), ended(0.1, 0.3, 0.6)
    for one, other in zip(first, second, strict=True):
        assert answered(plan_of("a", "b"), {"a": [other], "b": [one]}).verdict == "policies differ"
    assert answered(plan_of("a", "b"), {"a": second, "b": first}).verdict == "not shown"


def test_a_mean_over_equal_clusters_has_the_crossed_error_of_comparisons() -> None:
    chance = random.Random(3)
    runs = [[[float(chance.random() < 0.3 + 0.2 * seed) for _ in range(40)] for seed in range(3)] for _ in range(2)]
    arms = [[arm(values)[0] for values in side] for side in runs]
    found = crossed(figure("accuracy", no_environment), arms)
    expected = crossed_difference(*runs, [f"c{place % 10}" for place in range(40)])
    assert found is not None and expected.runs_error > 0
    assert (found.value, found.low, found.high, found.p_value) == pytest.approx(
        (expected.difference, expected.low, expected.high, expected.p_value)
    )


def test_a_question_that_one_cell_has_a_fault_on_is_compared_in_none() -> None:
    (first, *others), full = arm([1.0, 0.0] * 10)[0], arm([1.0, 0.0] * 10)
    fault = replace(first, rewards=None, status=Status.ENGINE_ERROR)
    one = answered(plan_of("a", "b"), {"a": full, "b": [[fault, *others]]})
    assert one.questions == 19 and one.values == (9 / 19, 9 / 19)
    assert one.difference is not None and one.difference.value == 0


def test_alike_cells_show_nothing_and_two_clusters_prove_nothing() -> None:
    same = arm([1.0, 0.0] * 20)
    one = answered(plan_of("a", "b"), {"a": same, "b": same})
    assert one.verdict == "not shown" and one.adjusted == 1.0
    one = answered(plan_of("a", "b"), {"a": arm([0.0] * 8, clusters=2), "b": arm([1.0] * 8, clusters=2)})
    assert one.verdict == "not shown" and one.difference is not None and one.difference.p_value == 0.5
    assert conclusion([one]) == "No difference is shown: m of b against a."


def test_seeds_of_a_cell_are_averaged() -> None:
    plan = plan_of("a", "b")
    seeds = [*arm([1.0, 0.0] * 10), *arm([0.0, 0.0] * 10)]
    one = answered(plan, {"a": arm([0.0] * 20), "b": seeds})
    assert one.values == (0.25, 0.0) and one.seeds == (2, 1)


@pytest.mark.parametrize(
    ("arms", "of", "reason"),
    [
        ({"a": arm([1.0] * 4)}, "accuracy", "not enough runs: b is not done"),
        ({}, "accuracy", "not enough runs: b and a is not done"),
        ({"a": arm([1.0] * 4), "b": [[attempt("z", "c", 1.0)]]}, "accuracy", "they have no graded question in common"),
        ({"a": arm([1.0] * 4), "b": arm([1.0] * 4)}, "components.sure", "not measured in b and a"),
        ({"a": arm([1.0], 1), "b": arm([0.0], 1)}, "accuracy", "too few questions for an interval"),
    ],
)
def test_what_is_not_known_is_told_with_its_reason(
    arms: dict[str, list[list[Trajectory]]], of: str, reason: str
) -> None:
    one = answered(plan_of("a", "b"), arms, of)
    assert one.verdict == "not known" and one.reason == reason and one.difference is None and one.adjusted is None
    assert conclusion([one]) == "Not known yet: m of b against a."


def test_p_values_are_corrected_for_the_answers_to_one_question() -> None:
    plan = plan_of("a", "b", "c")
    question = Question(name="q", ask="?", axis="variant", pairs=(("b", "a"), ("c", "a")), measures=("m",))
    chance = random.Random(1)
    arms = {
        name: arm([float(chance.random() < share) for _ in range(60)])
        for name, share in zip("abc", (0.3, 0.6, 0.5), strict=True)
    }
    found = answers(plan, question, arms, {"m": figure("accuracy", no_environment)})
    plain = sorted(one.difference.p_value for one in found if one.difference)
    assert sorted(one.adjusted or 0 for one in found) == pytest.approx([2 * plain[0], max(2 * plain[0], plain[1])])
