"""How old the tokens are that an update is made of, in policy versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from finqa_cli.types import Credit, Group, Trajectory, Turn

OVER_AGE = "over_age"
"""`Credit.dropped` of a group with a token that is too old to be trained on."""


def without_over_age(
    groups: Sequence[Group], credits: Sequence[Credit], *, version: int, most: int
) -> tuple[Credit, ...]:
    """The credits, where each informative group with a token older than `most` versions is dropped as a whole.

    As a whole, because the advantages of its members are relative to each other, and the oldest tokens are those of
    the longest episodes: without them the group would favour short ones.

    Args:
        groups: With one credit each.
        credits: In the same order.
        version: Of the weights that are about to be updated; the age of a token is this less the version that
            sampled it.
        most: Oldest age that is trained on.
    """
    return tuple(
        replace(credit, dropped=OVER_AGE) if _oldest(group, credit, version) > most else credit
        for group, credit in zip(groups, credits, strict=True)
    )


def token_ages(groups: Sequence[Group], credits: Sequence[Credit], *, version: int) -> Counter[int]:
    """How many trained tokens there are of each age, in versions."""
    ages: Counter[int] = Counter()
    for group, credit in zip(groups, credits, strict=True):
        for turn in _trained_turns(group, credit):
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


def _oldest(group: Group, credit: Credit, version: int) -> int:
    return max((version - turn.policy_version for turn in _trained_turns(group, credit)), default=0)


def _trained_turns(group: Group, credit: Credit) -> Iterator[Turn]:
    if credit.dropped:
        return
    for trajectory, advantage in zip(group.trajectories, credit.advantages, strict=True):
        if advantage:
            yield from _sampled(trajectory)


def _sampled(trajectory: Trajectory) -> Iterator[Turn]:
    return (turn for turn in trajectory.turns if turn.completion_ids)
