"""Figures of an iteration's groups for logs and reports, and the ages of their tokens in policy versions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from finqa_cli.algorithms.credit import attempt_weight
from finqa_cli.types import Credit, Group, Trajectory

OVER_AGE = "over_age"
"""`Credit.dropped` of a group with a token that is too old to be trained on."""

_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Counts over groups and episodes. A zero-variance group counts once: under all_0, all_1 or zero_variance_other.

    Attributes:
        groups: All groups.
        informative: Groups that carry signal.
        zero_variance_all_0: Dropped because every scored member got 0: too hard for this policy.
        zero_variance_all_1: Dropped because every scored member got 1: learned already.
        zero_variance_other: Dropped because every scored member got the same other reward.
        over_age: Dropped because a token was sampled by too old a version.
        too_few: Dropped because faults left too few members.
        dropped_other: Dropped for a reason that only the optimizer knows.
        episodes: All members.
        faults: Members that ended in an infrastructure fault or were never graded.
        episodes_in_groups: Scored members.
        episodes_trained: Members whose weighted advantage is neither excluded nor 0, in informative groups.
        reward_mean: Mean over scored members; 0.0 when there is none.
        reward_std: Population standard deviation over them.
        length_bias: Mean number of turns of the scored members, divided by that of all members, minus 1.
    """

    groups: int
    informative: int
    zero_variance_all_0: int
    zero_variance_all_1: int
    zero_variance_other: int
    over_age: int
    too_few: int
    dropped_other: int
    episodes: int
    faults: int
    episodes_in_groups: int
    episodes_trained: int
    reward_mean: float
    reward_std: float
    length_bias: float

    def as_metrics(self) -> dict[str, float]:
        """The numbers by name."""
        return asdict(self)


def group_statistics(groups: Sequence[Group], credits: Sequence[Credit]) -> GroupStatistics:
    """Count how many groups and members are used for training, and why the others are not.

    Args:
        groups: Groups with one credit each.
        credits: Credits in the same order.
    """
    kinds = [_kind(group, credit) for group, credit in zip(groups, credits, strict=True)]
    trained = [member for pair in zip(groups, credits, strict=True) for member in _trained(*pair)]
    rewards = [reward for group in groups for reward in _scored(group)]
    episodes = sum(len(group.trajectories) for group in groups)
    return GroupStatistics(
        groups=len(groups),
        informative=kinds.count("informative"),
        zero_variance_all_0=kinds.count("all_0"),
        zero_variance_all_1=kinds.count("all_1"),
        zero_variance_other=kinds.count("same"),
        over_age=kinds.count(OVER_AGE),
        too_few=kinds.count("too_few"),
        dropped_other=kinds.count("dropped_other"),
        episodes=episodes,
        faults=episodes - len(rewards),
        episodes_in_groups=len(rewards),
        episodes_trained=sum(attempt_weight(member) > 0 for member in trained),
        reward_mean=sum(rewards) / len(rewards) if rewards else 0.0,
        reward_std=statistics.pstdev(rewards) if rewards else 0.0,
        length_bias=length_bias(groups),
    )


def length_bias(
    groups: Sequence[Group], length: Callable[[Trajectory], float] = lambda trajectory: len(trajectory.turns)
) -> float:
    """Mean length of the scored members divided by the mean length of all started members, minus 1; 0.0 without any.

    Below 0, long episodes are missing from what is used for training. Schedulers that cancel stragglers cause that.
    Here no episode is cancelled, so only faults can cause it. The length of a faulted member is what it had played
    before the fault, so the real bias may be larger than this figure. `length` may also return seconds.
    """
    started = [trajectory for group in groups for trajectory in group.trajectories]
    used = [each for each in started if not each.status.is_fault and each.reward is not None]
    total = sum(map(length, started))
    if len(used) in (0, len(started)) or not total:
        return 0.0
    return sum(map(length, used)) / len(used) * len(started) / total - 1


def without_over_age(
    groups: Sequence[Group], credits: Sequence[Credit], *, version: int, most: int
) -> tuple[Credit, ...]:
    """The credits, with each informative group that has a token older than `most` versions dropped as a whole.

    The whole group is dropped because the advantages of its members are relative to each other. The oldest tokens are
    those of the longest episodes: a group without them would favour short episodes.

    Args:
        groups: Groups with one credit each.
        credits: Credits in the same order.
        version: Version of the weights that are about to be updated. The age of a token is this number minus the
            version that sampled the token.
        most: Oldest age that is used for training.
    """
    return tuple(
        replace(credit, dropped=OVER_AGE)
        if max(token_ages([group], [credit], version=version), default=0) > most
        else credit
        for group, credit in zip(groups, credits, strict=True)
    )


def token_ages(groups: Sequence[Group], credits: Sequence[Credit], *, version: int) -> Counter[int]:
    """How many trained tokens there are of each age, in versions."""
    ages: Counter[int] = Counter()
    for group, credit in zip(groups, credits, strict=True):
        for member in _trained(group, credit):
            for turn in member.turns:
                if turn.completion_ids:
                    ages[version - turn.policy_version] += len(turn.completion_ids)
    return ages


def staleness_metrics(ages: Counter[int]) -> dict[str, float]:
    """The histogram as metrics: `staleness_mean`, `staleness_max`, and `staleness_tokens_N` of each age N."""
    tokens = ages.total()
    if not tokens:
        return {}
    mean = sum(age * count for age, count in ages.items()) / tokens
    histogram = {f"staleness_tokens_{age}": float(count) for age, count in sorted(ages.items())}
    return {"staleness_mean": mean, "staleness_max": float(max(ages)), **histogram}


def _scored(group: Group) -> list[float]:
    """The rewards of the members that have no fault and were graded."""
    rewards = [trajectory.reward for trajectory in group.trajectories if not trajectory.status.is_fault]
    return [reward for reward in rewards if reward is not None]


def _trained(group: Group, credit: Credit) -> list[Trajectory]:
    """The members with an advantage that is neither None nor 0; no member of a dropped group."""
    members = zip(group.trajectories, credit.advantages, strict=True)
    return [] if credit.dropped else [trajectory for trajectory, advantage in members if advantage]


def _kind(group: Group, credit: Credit) -> str:
    if not credit.dropped:
        return "informative"
    if credit.dropped in ("too_few", OVER_AGE):
        return credit.dropped
    if credit.dropped != "zero_variance":
        return "dropped_other"
    rewards = _scored(group)
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    for value, kind in ((0, "all_0"), (1, "all_1")):
        if abs(lowest - value) <= _TOLERANCE and abs(highest - value) <= _TOLERANCE:
            return kind
    return "same"
