"""Credit of groups by an optimizer, and the samples that an update is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from finqa_cli.algorithms.penalties import References
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import FinqaError
from finqa_cli.types import Credit, Group, Sample, Trajectory

RewardChange = Callable[[Sequence[Group]], Sequence[Group]]
"""Groups with other rewards; the rest of them is as it was."""


def assign_credit(optimizer: Optimizer, groups: Sequence[Group]) -> tuple[Credit, ...]:
    """The optimizer's credit of every group, in order.

    Raises:
        FinqaError: The optimizer did not give one advantage per trajectory.
    """
    return _check_counts(optimizer, groups, [optimizer.credit(group) for group in groups])


def final_credit(
    optimizer: Optimizer, groups: Sequence[Group], admitted: Sequence[Credit], changes: Sequence[RewardChange]
) -> tuple[Sequence[Group], tuple[Credit, ...]]:
    """Groups with the rewards that they are trained with, and their credit: each group's once, then the batch's.

    Args:
        optimizer: Gives the credit.
        groups: Groups of an iteration.
        admitted: Their credit by the rewards that decided which groups are played. A group that was dropped stays so.
        changes: What is subtracted from rewards before credit, in order; see `finqa_cli.algorithms.penalties`.

    Raises:
        FinqaError: See `assign_credit`.
    """
    for change in changes:
        groups = change(groups)
    credits = list(admitted)
    if changes:
        credits = [
            credit if credit.dropped else optimizer.credit(group)
            for group, credit in zip(groups, admitted, strict=True)
        ]
    return groups, batch_credit(optimizer, groups, _check_counts(optimizer, groups, credits))


def batch_credit(optimizer: Optimizer, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """The final credit of all groups of a batch; see `Optimizer.batch_credit`.

    Raises:
        FinqaError: See `assign_credit`.
    """
    return _check_counts(optimizer, groups, optimizer.batch_credit(groups, credits))


def credited_samples(
    groups: Sequence[Group], credits: Sequence[Credit], *, neutral: bool = False, references: References | None = None
) -> tuple[Sample, ...]:
    """The samples that an update is made of, by group and member. Advantages are multiplied by the attempts' weights.

    Dropped groups, excluded members and episodes in which nothing was sampled are left out. Members whose weighted
    advantage is 0 are left out too, because they would cost a forward and backward pass for a zero gradient.

    Args:
        groups: Groups with one credit each.
        credits: Credits in the same order.
        neutral: Keep members whose advantage is 0; see `counts_neutral`.
        references: Log-probabilities under the reference policy that the samples are to carry, for all members that
            are not left out. None: the samples carry none.

    Raises:
        FinqaError: See `attempt_weight`.
        DataError: See `trajectory_samples`.
    """
    samples: list[Sample] = []
    for group, credit in zip(groups, credits, strict=True):
        if credit.dropped:
            continue
        for trajectory, advantage in zip(group.trajectories, credit.advantages, strict=True):
            weighted = None if advantage is None else advantage * attempt_weight(trajectory)
            if weighted or (neutral and weighted is not None):
                samples += _referenced(trajectory, weighted, references)
    return tuple(samples)


def attempt_weight(trajectory: Trajectory) -> float:
    """The environment's `Rewards.weight` of the attempt; 1.0 for one that was never graded.

    The weight is applied to the final advantage, after baselines and divisions by a deviation. If it were applied to
    the reward, a factor that is the same for a whole group would cancel in (r - mean) / std. Losses that are means
    still count the attempt once.

    Raises:
        FinqaError: The weight is negative or not a finite number.
    """
    weight = 1.0 if trajectory.rewards is None else trajectory.rewards.weight
    if not 0.0 <= weight < math.inf:
        raise FinqaError(f"Trajectory {trajectory.id!r} has the weight {weight}, which is not a number from 0 on.")
    return weight


def _referenced(trajectory: Trajectory, advantage: float, references: References | None) -> tuple[Sample, ...]:
    samples = trajectory_samples(trajectory, advantage)
    if references is None:
        return samples
    rows = references[trajectory.id]
    return tuple(replace(sample, reference_logprobs=row) for sample, row in zip(samples, rows, strict=True))


def _check_counts(optimizer: Optimizer, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
    """The credits, once there is one for each group, with one advantage for each trajectory."""
    name = optimizer.__class__.__name__
    if len(credits) != len(groups):
        raise FinqaError(f"Optimizer {name} gave {len(credits)} credits for {len(groups)} groups.")
    for group, credit in zip(groups, credits, strict=True):
        if len(credit.advantages) != len(group.trajectories):
            raise FinqaError(
                f"Optimizer {name} gave {len(credit.advantages)} advantages for the "
                f"{len(group.trajectories)} attempts at task {group.task.id!r}."
            )
    return tuple(credits)
