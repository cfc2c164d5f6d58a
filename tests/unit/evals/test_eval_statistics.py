from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.evals import clustered_interval, item_rows, summarize, t_quantile
from finqa_cli.evals.report import quotes_years
from finqa_cli.types import Observation, Rewards, Status, Task, ToolCall, Trajectory, Turn


@pytest.mark.parametrize(
    ("probability", "degrees", "quantile"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 10, 2.2281),
        (0.975, 19, 2.0930),
        (0.95, 5, 2.0150),
        (0.995, 30, 2.7500),
        (0.975, 1000, 1.9623),
        (0.5, 7, 0.0),
        (0.025, 10, -2.2281),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(probability: float, degrees: int, quantile: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(quantile, abs=6e-5)


def test_a_hand_computed_clustered_error() -> None:
    # Two clusters of two: residual sums +1 and -1 around 0.5, so SE^2 = 2/1 * (1 + 1) / 16.
    interval = clustered_interval([1, 1, 0, 0], ["a", "a", "b", "b"])
    assert interval.standard_error == pytest.approx(0.5)
    assert (interval.low, interval.high, interval.clusters) == (0.0, 1.0, 2)


def test_without_spread_the_interval_still_admits_ignorance() -> None:
    assert clustered_interval([1.0] * 9, list("aabbccddd")).low == pytest.approx(1 - (1 - 0.025 ** (1 / 4)))
    one = clustered_interval([1, 0, 1], ["a"] * 3)
    assert math.isnan(one.standard_error) and (one.low, one.high) == (0.0, 1.0)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from("abcdef")), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_interval_holds_the_mean_and_ignores_order(rows: list[tuple[float, str]], rng: random.Random) -> None:
    first = clustered_interval(*zip(*rows, strict=True))
    assert 0.0 <= first.low <= first.mean + 1e-12 and first.mean - 1e-12 <= first.high <= 1.0
    rng.shuffle(rows)
    again = clustered_interval(*zip(*rows, strict=True))
    assert (again.low, again.high) == (pytest.approx(first.low), pytest.approx(first.high))


@pytest.mark.parametrize(("clusters", "per_cluster"), [(12, 10), (30, 8), (60, 1)])
def test_the_interval_covers_the_truth_as_often_as_it_says(clusters: int, per_cluster: int) -> None:
    rng = random.Random(1)
    draws, covered = 1500, 0
    for _ in range(draws):
        values, names = [], []
        for cluster in range(clusters):
            level = rng.betavariate(3, 3)  # questions about one company are right or wrong together
            values += [float(rng.random() < level) for _ in range(per_cluster)]
            names += [str(cluster)] * per_cluster
        interval = clustered_interval(values, names)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.93 <= covered / draws <= 0.97


@pytest.mark.parametrize(
    ("query", "verdict"),
    [
        ('SELECT "2024" - "2023" AS value FROM t WHERE a = 1', True),
        ("SELECT 2024 - 2023 FROM t WHERE a = 1", False),
        ('SELECT "2024" - 2023 FROM t WHERE a = 1', False),
        ("SELECT `2024`, [2023] FROM t WHERE a = 1", True),
        ("SELECT total FROM t WHERE name = '2024'", None),
        ("SELECT \"year_ended_june_30_2022\" FROM t WHERE x = '2023'", None),
        ('SELECT "year ended 2008 (restated)" FROM t WHERE a = 1 LIMIT 2000', None),
        ("SELECT SUM(CASE WHEN l='a' THEN 2024 END) FROM t WHERE l IN ('a')", False),
    ],
)
def test_quoted_years(query: str, verdict: bool | None) -> None:
    assert quotes_years(query) is verdict


def trajectory(number: int, reward: float | None, kind: str = "lookup", query: str = "") -> Trajectory:
    turns = []
    if query:
        call = ToolCall(name="sql_query", arguments={"query": query})
        turns.append(Turn(tool_call=call, observation=Observation(text="[]", is_error="bad" in query)))
    call = ToolCall(name="submit_answer", arguments={"answer": "7"})
    turns.append(Turn(tool_call=call, completion_ids=(1, 2), observation=Observation(text="ok", done=True)))
    return Trajectory(
        id=f"e/{number}",
        task=Task(id=f"q{number}", prompt="?", split="dev", cluster=f"c{number % 2}", kind=kind),
        member=0,
        seed=0,
        status=Status.ENGINE_ERROR if reward is None else Status.COMPLETED,
        turns=tuple(turns),
        rewards=None if reward is None else Rewards(total=reward, explanation="why"),
        error="engine down" if reward is None else "",
    )


def test_a_report_counts_faults_apart_and_breaks_down_by_type() -> None:
    episodes = [
        trajectory(0, 1.0, query='SELECT "2024" FROM t WHERE a'),
        trajectory(1, 0.0, query="SELECT 2024 FROM t WHERE a"),
        trajectory(2, 0.5, "growth", query="SELECT bad FROM t WHERE a"),
        trajectory(3, None),
    ]
    report = summarize(episodes)
    assert (report.episodes, report.faults, report.clusters) == (4, 1, 2)
    assert report.accuracy == pytest.approx(1 / 3) and report.reward_mean == pytest.approx(0.5)
    assert (report.quoted_years, report.sql_error_rate) == (0.5, pytest.approx(1 / 3))
    assert report.by_kind["lookup"].accuracy == 0.5 and report.by_kind["growth"].accuracy == 0.0
    assert report.statuses["engine_error"] == 1 and report.sampled_tokens_mean == 2.0
    rows = item_rows(episodes)
    assert rows[0]["answer"] == "7" and rows[3]["explanation"] == "engine down"


def test_without_tools_the_answer_is_what_the_last_text_states() -> None:
    rewards = Rewards(total=0.0, components={"correct": 1.0, "format": 0.5})
    texts = ('{"answer": 7}', "so")
    spoken = [replace(trajectory(0, 0.0), turns=(Turn(text=text),), rewards=rewards) for text in texts]
    assert [row["answer"] for row in item_rows(spoken)] == ["7", "so"]
    report = summarize(spoken)
    assert report.accuracy == 1.0, "accuracy follows the part `correct`"
    assert report.components == {"correct": 1.0, "format": 0.5} and report.reward_mean == 0.0


def test_nothing_graded_is_no_division_by_zero() -> None:
    report = summarize([trajectory(0, None)])
    assert (report.accuracy, report.accuracy_interval, report.sql_error_rate) == (0.0, (0.0, 1.0), 0.0 or None)
