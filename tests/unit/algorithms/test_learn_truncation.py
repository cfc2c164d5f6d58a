"""Episodes that a limit ended: which they are, and what becomes of them in the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.graded_groups import graded_group
from pydantic import ValidationError

from finqa_cli.algorithms.penalties import (
    LengthLimit,
    count_truncated,
    is_truncated,
    length_penalty,
    mask_truncated,
    penalize_length,
)
from finqa_cli.errors import ConfigError
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import length_limit
from finqa_cli.types import Credit, Group, Status, Trajectory, Turn

LIMIT = LengthLimit(longest=100, buffer=20)


def member(*lengths: int, stop: str = "stop", status: Status = Status.COMPLETED) -> Trajectory:
    """Of completions of these lengths, of which the last ended so."""
    turns = [Turn(completion_ids=(7,) * length, logprobs=(-1.0,) * length) for length in lengths]
    if turns:
        turns[-1] = replace(turns[-1], stop=stop)
    return replace(graded_group(1.0).trajectories[0], turns=tuple(turns), status=status)


def group_of(*members: Trajectory) -> Group:
    return Group(task=members[0].task, trajectories=members)


@pytest.mark.parametrize("status", list(Status))
def test_limits_of_turns_context_and_time_truncate(status: Status) -> None:
    limits = (Status.MAX_TURNS, Status.MAX_TOKENS, Status.TIMEOUT)
    assert is_truncated(member(3, status=status)) is (status in limits)
    assert is_truncated(member(3, stop="length", status=status)) is not status.is_fault, "a fault is no limit"


def test_only_the_last_completion_ends_an_episode() -> None:
    cut = member(100, 3)
    assert not is_truncated(replace(cut, turns=(replace(cut.turns[0], stop="length"), cut.turns[1])))
    assert not is_truncated(member())


def test_masked_members_have_no_advantage_and_the_others_keep_theirs() -> None:
    group = group_of(member(3), member(3, stop="length"), member(3, status=Status.TIMEOUT), member(3))
    credit = Credit(advantages=(0.5, -0.25, None, -0.25))
    assert mask_truncated([group], [credit]) == (Credit(advantages=(0.5, None, None, -0.25)),)
    assert count_truncated([group], [credit]) == 1, "one has no advantage anyway"
    assert count_truncated([group], [replace(credit, dropped="zero_variance")]) == 0


@pytest.mark.parametrize(("tokens", "penalty"), [(0, 0), (79, 0), (80, 0), (81, 0.05), (90, 0.5), (100, 1), (130, 1)])
def test_the_penalty_is_the_published_one(tokens: int, penalty: float) -> None:
    """Equation 13: 0 up to longest - buffer, then linear to -1 at the longest, and -1 beyond."""
    assert length_penalty(member(5, tokens, 7), LIMIT) == pytest.approx(penalty, abs=1e-12)


def test_the_penalty_is_taken_from_the_reward_of_what_was_graded() -> None:
    ungraded = replace(member(90, status=Status.ENGINE_ERROR), rewards=None)
    group = group_of(member(90), member(3), member(3, status=Status.MAX_TURNS), ungraded)
    (fined,) = penalize_length([group], LIMIT)
    assert [one.reward for one in fined.trajectories] == [0.5, 1.0, 0.0, None]


def test_the_buffer_is_a_fifth_unless_it_is_set_and_no_longer_than_a_completion() -> None:
    assert length_limit(TrainSettings(), 512) is None is length_limit(TrainSettings(truncated="mask"), 512)
    assert length_limit(TrainSettings(truncated="penalize"), 512) == LengthLimit(longest=512, buffer=102)
    fined = TrainSettings(truncated="penalize", overlong_buffer=600)
    with pytest.raises(ConfigError, match="overlong_buffer=600 is more than the longest completion") as error:
        length_limit(fined, 512)
    assert error.value.remedy == "--set train.overlong_buffer=102"
    with pytest.raises(ValidationError, match="overlong_buffer has no effect with truncated=mask"):
        TrainSettings(truncated="mask", overlong_buffer=3)
