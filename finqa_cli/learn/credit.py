"""Groups -> credit -> samples."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.contracts import Optimizer
from finqa_cli.errors import FinqaError
from finqa_cli.learn.samples import trajectory_samples
from finqa_cli.types import Credit, Group, Sample


def assign_credit(optimizer: Optimizer, groups: Sequence[Group]) -> tuple[Credit, ...]:
    """The optimizer's credit of every group, in order.

    Raises:
        FinqaError: The optimizer did not give one advantage per trajectory.
    """
    credits = tuple(optimizer.credit(group) for group in groups)
    for group, credit in zip(groups, credits, strict=True):
        if len(credit.advantages) != len(group.trajectories):
            raise FinqaError(
                f"Optimizer {type(optimizer).__name__} gave {len(credit.advantages)} advantages for the "
                f"{len(group.trajectories)} attempts at task {group.task.id!r}."
            )
    return credits


def credited_samples(groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Sample, ...]:
    """The samples that can change the policy, by group and member.

    Left out: dropped groups, excluded members, members whose advantage is 0 (they would cost a forward and backward
    for a zero gradient), and episodes in which nothing was sampled.
    """
    samples: list[Sample] = []
    for group, credit in zip(groups, credits, strict=True):
        if credit.dropped:
            continue
        for trajectory, advantage in zip(group.trajectories, credit.advantages, strict=True):
            samples += trajectory_samples(trajectory, advantage) if advantage else ()
    return tuple(samples)
