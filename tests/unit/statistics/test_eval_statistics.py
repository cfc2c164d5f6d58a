from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.statistics import (
    clustered_interval,
    clustered_mean,
    describe_cut_replies,
    item_rows,
    summarize,
    t_quantile,
)
from finqa_cli.statistics.evaluation_report import quotes_years
from finqa_cli.statistics.intervals import two_sided
from finqa_cli.statistics.outcomes import answer_of, read_outcome
from finqa_cli.types import Observation, Rewards, Status, Task, ToolCall, ToolSpec, Trajectory, Turn


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
def test_quantiles_are_those_of_the_printed_tables(probability: float, degrees: float, quantile: float) -> None:
    assert t_quantile(probability, degrees) == pytest.approx(quantile, abs=6e-5)


@given(st.floats(0.5, 500), st.floats(-30, 30))
def test_probability_and_quantile_undo_each_other(degrees: float, t: float) -> None:
    outside = two_sided(t, degrees)
    assert two_sided(-t, degrees) == outside
    if 1e-6 < outside < 1:
        assert t_quantile(1 - outside / 2, degrees) == pytest.approx(abs(t), rel=1e-5, abs=1e-6)
        assert t_quantile(outside / 2, degrees) == pytest.approx(-abs(t), rel=1e-5, abs=1e-6)


@given(st.floats(1e-5, 1 - 1e-5))
def test_quantiles_are_those_of_the_closed_forms(probability: float) -> None:
    """The distribution is elementary with 1, 2 and 4 degrees of freedom (Shaw 2006, J. Computational Finance 9)."""
    both = 4 * probability * (1 - probability)
    sign = math.copysign(1, probability - 0.5)
    third = math.cos(math.acos(math.sqrt(both)) / 3) / math.sqrt(both)
    forms = {
        1: math.tan(math.pi * (probability - 0.5)),
        2: (2 * probability - 1) * math.sqrt(2 / both),
        4: sign * 2 * math.sqrt(max(0.0, third - 1)),
    }
    for degrees, quantile in forms.items():
        rounding = 1e-8 if degrees < 4 else 1e-6  # near 1/2 the form for 4 degrees is a small difference of large terms
        assert t_quantile(probability, degrees) == pytest.approx(quantile, rel=1e-9, abs=rounding)


@pytest.mark.parametrize("degrees", [1, 2.5, 59])
def test_probabilities_do_not_jump_where_the_algorithm_changes(degrees: float) -> None:
    a = degrees / 2
    t = math.sqrt(degrees / ((a + 1) / (a + 2.5)) - degrees)
    around = [two_sided(t * (1 + step * 1e-16), degrees) for step in range(-40, 41)]
    assert max(around) - min(around) < 1e-13


def test_probabilities_far_out_in_the_tail_are_precise() -> None:
    # With 2 degrees P(|T| >= t) = 1 - t / sqrt(2 + t^2), which is about 1 / t^2.
    assert two_sided(1e6, 2) == pytest.approx(1e-12, rel=1e-9)


def test_a_quantile_between_whole_degrees() -> None:
    # With 2 degrees the distribution is 1/2 + t / (2 sqrt(2 + t^2)); between 1 and 2 it lies between theirs.
    assert 1 - two_sided(1.5, 2) / 2 == pytest.approx(0.5 + 1.5 / (2 * math.sqrt(2 + 1.5**2)))
    assert t_quantile(0.975, 2) < t_quantile(0.975, 1.5) < t_quantile(0.975, 1)
    for degrees in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match="degrees of freedom"):
            t_quantile(0.975, degrees)


def test_a_hand_computed_clustered_error() -> None:
    # Two clusters of two: residual sums +1 and -1 around 0.5, so SE^2 = 2/1 * (1 + 1) / 16.
    interval = clustered_interval([1, 1, 0, 0], ["a", "a", "b", "b"])
    assert interval.standard_error == pytest.approx(0.5)
    # Wilson for one effective value, m(1-m)/SE^2 = 1, and t = 12.706: 0.5 +- t sqrt(1 + t^2) / (2 (1 + t^2)).
    t = 12.7062
    assert interval.high - 0.5 == pytest.approx(t / (2 * math.sqrt(1 + t * t)), abs=1e-6)
    assert interval.low == pytest.approx(1 - interval.high) and interval.clusters == 2


def test_uneven_clusters_by_hand() -> None:
    # Sizes 3 and 1, values 1 1 0, 0: residual sums +-1/2 around 1/2, so SE^2 = (1/4 / (1/4) + 1/4 / (3/4)) / 16.
    mean = clustered_mean([1, 1, 0, 0], ["a", "a", "a", "b"])
    assert mean.error == pytest.approx(math.sqrt((1 + 1 / 3) / 16))
    assert mean.degrees == pytest.approx(1.0), "two clusters leave one degree of freedom at all sizes"


def test_the_correlation_inside_clusters_by_hand() -> None:
    # 1 1 0 | 0 | 0 0: means 2/3, 0, 0 around 1/3, so MSB = (2/3)/2, MSW = (2/3)/3, n0 = (6 - 14/6)/2.
    mean = clustered_mean([1, 1, 0, 0, 0, 0], ["a", "a", "a", "b", "c", "c"])
    assert mean.correlation == pytest.approx((1 / 3 - 2 / 9) / (1 / 3 + 5 / 6 * 2 / 9))


def test_equal_clusters_have_all_degrees_and_one_large_one_has_few() -> None:
    values = [float(number % 3 == 0) for number in range(60)]
    equal = clustered_mean(values, [str(number % 12) for number in range(60)])
    uneven = clustered_mean(values, ["large" if number < 40 else str(number) for number in range(60)])
    assert equal.degrees == pytest.approx(11) and uneven.clusters == 21 and uneven.degrees < 3


def test_the_degrees_are_those_of_the_whole_matrix() -> None:
    sizes = [1, 1, 2, 5, 9]
    names = [str(cluster) for cluster, size in enumerate(sizes) for _ in range(size)]
    mean = clustered_mean([float(number * 7 % 5 < 2) for number in range(len(names))], names)
    count = len(names)
    rows = [
        [(float(name == str(g)) - size / count) / math.sqrt(1 - size / count) for name in names]
        for g, size in enumerate(sizes)
    ]
    omega = [
        [1.0 if i == j else mean.correlation if names[i] == names[j] else 0.0 for j in range(count)]
        for i in range(count)
    ]
    middle = [[sum(row[i] * omega[i][j] for i in range(count)) for j in range(count)] for row in rows]
    matrix = [[sum(a * b for a, b in zip(left, row, strict=True)) for row in rows] for left in middle]
    trace = sum(matrix[g][g] for g in range(len(sizes)))
    assert mean.degrees == pytest.approx(trace**2 / sum(entry**2 for row in matrix for entry in row))


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
    cut = replace(trajectory(3, None), turns=trajectory(0, 1.0, query="SELECT bad FROM t WHERE a").turns)
    assert summarize([*episodes[:3], cut]).sql_queries == 3, "what a fault cut short is in no figure"
    report = summarize(episodes)
    assert (report.episodes, report.faults, report.clusters) == (4, 1, 2)
    assert report.accuracy == pytest.approx(1 / 3) and report.reward_mean == pytest.approx(0.5)
    assert (report.quoted_years, report.sql_error_rate) == (0.5, pytest.approx(1 / 3))
    assert report.by_kind["lookup"].accuracy == 0.5 and report.by_kind["growth"].accuracy == 0.0
    assert report.statuses["engine_error"] == 1 and report.sampled_tokens_mean == 2.0
    rows = item_rows(list(map(trajectory_record, episodes)))
    assert rows[0]["answer"] == "7" and rows[3]["explanation"] == "engine down"


def test_cut_replies_are_counted_by_type_and_named_worst_first() -> None:
    def cut(one: Trajectory, text: str = "SELECT") -> Trajectory:
        return replace(one, turns=(*one.turns, Turn(text=text, stop="length")))

    played = [
        cut(trajectory(1, 0.0, kind="ratio")),
        cut(trajectory(2, 1.0, kind="lookup")),
        trajectory(3, 1.0, kind="lookup"),
        cut(trajectory(4, None, kind="margin")),  # a fault
        cut(trajectory(5, 0.0, kind="margin"), text=""),  # the context was full
    ]
    report = summarize(played)
    assert report.cut_replies == {"lookup": 1, "ratio": 1}
    episodes = {kind: facts.episodes for kind, facts in report.by_kind.items()}
    assert describe_cut_replies(report.cut_replies, episodes, 128) == (
        "Replies of 2 of 4 episodes were cut at --max-gen-tokens 128 (ratio 1 of 1, lookup 1 of 2); "
        "--max-gen-tokens 256 would let them end"
    )
    assert describe_cut_replies({}, episodes, 128) == ""


def test_without_tools_the_answer_is_what_the_last_text_states() -> None:
    rewards = Rewards(total=0.0, components={"correct": 1.0, "format": 0.5})
    texts = ('{"answer": 7}', "so")
    spoken = [replace(trajectory(0, 0.0), turns=(Turn(text=text),), rewards=rewards) for text in texts]
    assert [row["answer"] for row in item_rows(list(map(trajectory_record, spoken)))] == ["7", "so"]
    second = replace(spoken[0], turns=(Turn(text='{"answer": 6}'), Turn(text='{"answer": 8}')))
    told = {"truth": "7.0", "values": {"answer": "8", "truth": "7"}}
    (row,) = item_rows([{**trajectory_record(second), **told}])
    assert row["answer"] == "8", "the last text is the answer"
    assert (row["truth"], row["answer_read_as"], row["truth_read_as"]) == ("7.0", "8", "7")
    report = summarize(spoken)
    assert report.accuracy == 1.0, "accuracy follows the part `correct`"
    assert report.components == {"correct": 1.0, "format": 0.5} and report.reward_mean == 0.0


def test_nothing_graded_is_no_division_by_zero() -> None:
    report = summarize([trajectory(0, None)])
    assert (report.accuracy, report.accuracy_interval, report.sql_error_rate) == (0.0, (0.0, 1.0), 0.0 or None)


def test_the_answer_is_what_the_call_that_ends_the_episode_was_given() -> None:
    def answered(arguments: dict[str, object], *, done: bool) -> str:
        call = ToolCall(name="submit", arguments=arguments)
        turn = Turn(tool_call=call, observation=Observation(text="ok", done=done))
        ended = replace(
            trajectory(0, 1.0), turns=(turn,), tools=(ToolSpec(name="submit", description="Submit.", parameters={}),)
        )
        found = read_outcome(trajectory_record(ended)).answer
        assert found == answer_of(ended)
        return found

    assert answered({"value": 180}, done=True) == "180"
    assert answered({"low": 1, "high": 2}, done=True) == "low=1, high=2"
    assert answered({"value": 180}, done=False) == answered({}, done=True) == ""
