from __future__ import annotations

from fixtures.report_runs import attempt

from finqa_cli.statistics import clustered_interval
from finqa_cli.training.rl.iteration_records import _reward_interval
from finqa_cli.types import Group


def group(question: str, *rewards: float | None) -> Group:
    attempts = tuple(attempt(question, member, reward=reward) for member, reward in enumerate(rewards))
    return Group(task=attempts[0].task, trajectories=attempts)


def test_the_interval_of_the_mean_reward_is_clustered_by_question_and_leaves_faults_out() -> None:
    groups = [group("a_1", 1.0, 1.0, None), group("a_2", 0.0, 1.0), group("b_1", 0.0)]
    wanted = clustered_interval([1.0, 1.0, 0.0, 1.0, 0.0], ["a_1", "a_1", "a_2", "a_2", "b_1"])
    assert _reward_interval(groups) == {"reward_interval": [wanted.low, wanted.high]}
    assert 0 <= wanted.low < wanted.mean < wanted.high <= 1


def test_one_question_or_faults_alone_have_no_interval() -> None:
    assert _reward_interval([group("a_1", 1.0, 0.0)]) == {}
    assert _reward_interval([group("a_1", None), group("b_1", None)]) == {}
