from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.group_report import group_statistics, staleness_metrics, token_ages, without_over_age
from finqa_cli.types import Credit, Group, Rewards, Status, Task, Trajectory, Turn

TASK = Task(id="q", prompt="?", split="train", cluster="c")


def member(*versions: int, tokens: int = 3) -> Trajectory:
    turns = tuple(
        Turn(completion_ids=(7,) * tokens, logprobs=(-1.0,) * tokens, policy_version=version) for version in versions
    )
    return Trajectory(
        id="t", task=TASK, member=0, seed=0, status=Status.COMPLETED, turns=turns, rewards=Rewards(total=1.0)
    )


def group(*members: Trajectory) -> Group:
    return Group(task=TASK, trajectories=members)


def signal(count: int) -> Credit:
    return Credit(advantages=(0.5,) * count)


@given(
    ages=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6), most=st.integers(0, 5)
)
def test_no_token_older_than_the_bound_is_trained_on_and_no_group_is_dropped_for_less(
    ages: list[list[int]], most: int
) -> None:
    groups = [group(member(*(9 - age for age in each)), member(9)) for each in ages]
    credits = without_over_age(groups, [signal(2)] * len(groups), version=9, most=most)
    trained = token_ages(groups, credits, version=9)
    assert max(trained, default=0) <= most
    assert [bool(credit.dropped) for credit in credits] == [max(each) > most for each in ages]
    assert group_statistics(groups, credits).over_age == sum(max(each) > most for each in ages)
    expected = Counter(age for each in ages if max(each) <= most for age in [*each, 0])
    assert trained == Counter({age: 3 * count for age, count in expected.items()})


def test_only_what_would_be_trained_on_counts() -> None:
    old, new = member(0), member(4)
    cut = member(4)
    empty = Turn(completion_ids=(), policy_version=0)  # nothing was sampled in it
    cut = Trajectory(id="c", task=TASK, member=2, seed=0, status=Status.MAX_TOKENS, turns=(*cut.turns, empty))
    credits = [Credit(advantages=(None, 0.5, 0.0)), Credit(advantages=(0.5, 0.0, -0.5))]
    groups = [group(old, new, old), group(new, old, cut)]
    assert without_over_age(groups, credits, version=4, most=1) == tuple(credits)
    assert token_ages(groups, credits, version=4) == {0: 9}


def test_a_group_that_was_dropped_already_keeps_its_reason() -> None:
    credit = Credit(advantages=(0.0, 0.0), dropped="zero_variance")
    assert without_over_age([group(member(0), member(0))], [credit], version=9, most=0) == (credit,)


def test_the_histogram_is_told_by_age() -> None:
    assert staleness_metrics(Counter({0: 30, 2: 10})) == {
        "staleness_mean": 0.5,
        "staleness_max": 2.0,
        "staleness_tokens_0": 30.0,
        "staleness_tokens_2": 10.0,
    }
    assert staleness_metrics(Counter()) == {}
