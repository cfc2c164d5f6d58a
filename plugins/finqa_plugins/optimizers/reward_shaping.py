"""Rewards of groups and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from finqa_cli.errors import FinqaError
from finqa_cli.types import Credit, Group, Trajectory

ZERO_VARIANCE = 1e-6
"""Rewards that differ by no more than this are equal: graders compute in floating point."""

STD_FLOOR = 1e-8


def scored_rewards(group: Group) -> list[float | None]:
    """[G] the rewards; None for members that faulted or were never graded.

    Raises:
        FinqaError: A reward is not a finite number.
    """
    return [_scored_reward(trajectory) for trajectory in group.trajectories]


def group_credit(
    group: Group, advantages_of: Callable[[list[float]], Sequence[float]], *, minimum_members: int
) -> Credit:
    """Credit from the rewards of the scored members; a group without spread in them, or with too few, is dropped.

    Raises:
        FinqaError: A reward is not a finite number.
    """
    rewards = scored_rewards(group)
    scored = [reward for reward in rewards if reward is not None]
    nothing = tuple(None if reward is None else 0.0 for reward in rewards)
    if len(scored) < minimum_members:
        return Credit(advantages=nothing, dropped="too_few")
    if max(scored) - min(scored) <= ZERO_VARIANCE:
        return Credit(advantages=nothing, dropped="zero_variance")
    advantages = iter(advantages_of(scored))
    return Credit(advantages=tuple(None if reward is None else next(advantages) for reward in rewards))


def batch_rewards(groups: Sequence[Group], credits: Sequence[Credit]) -> list[float]:
    """The rewards of all members with an advantage in the groups that are not dropped."""
    return [
        reward
        for group, credit in zip(groups, credits, strict=True)
        if not credit.dropped
        for reward, advantage in zip(scored_rewards(group), credit.advantages, strict=True)
        if reward is not None and advantage is not None
    ]


def divided_by_batch_std(groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """Every advantage divided by the standard deviation of the rewards of the batch (see `standard_deviation`).

    Advantages that are differences of rewards are then those of whitened rewards, (r - mean) / std over the batch:
    the mean cancels.
    """
    rewards = batch_rewards(groups, credits)
    return mapped(credits, lambda advantage: advantage / standard_deviation(rewards)) if rewards else tuple(credits)


def mapped(credits: Sequence[Credit], change: Callable[[float], float]) -> tuple[Credit, ...]:
    """The credits with every advantage of the groups that are not dropped changed."""
    return tuple(
        credit
        if credit.dropped
        else replace(
            credit,
            advantages=tuple(None if advantage is None else change(advantage) for advantage in credit.advantages),
        )
        for credit in credits
    )


def mean(rewards: Sequence[float]) -> float:
    """Rounded once, so that the order of the members does not matter."""
    return math.fsum(rewards) / len(rewards)


def standard_deviation(rewards: Sequence[float]) -> float:
    """Of the population, plus 1e-8."""
    centre = mean(rewards)
    return math.sqrt(math.fsum((reward - centre) ** 2 for reward in rewards) / len(rewards)) + STD_FLOOR


def _scored_reward(trajectory: Trajectory) -> float | None:
    reward = None if trajectory.status.is_fault else trajectory.reward
    if reward is not None and not math.isfinite(reward):
        raise FinqaError(f"Trajectory {trajectory.id!r} was graded with {reward}, which is not a finite number.")
    return reward
