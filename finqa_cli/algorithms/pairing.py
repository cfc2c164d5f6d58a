"""Choice of preference pairs among the attempts at a question. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Rule = Literal["best-worst", "all", "right-wrong"]

_EQUAL = 1e-9
"""Rewards that differ by at most this are equal, because graders compute in floating point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A graded attempt.

    Attributes:
        reward: Its total reward.
        right: Whether its answer is right.
        said: All text that the policy generated. Candidates with the same text are the same answer, even if their
            rewards differ.
    """

    reward: float
    right: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The pairs of one question.

    Attributes:
        pairs: Indices of the chosen and the rejected candidate. The chosen reward is higher by at least the margin.
        equal_texts: Pairs that were left out because both texts are the same.
    """

    pairs: tuple[tuple[int, int], ...]
    equal_texts: int


def choose_pairs(candidates: Sequence[Candidate], *, rule: Rule, margin: float, most: int, seed: int) -> Pairing:
    """Choose pairs by one of three rules.

    `best-worst`: the best with the worst, the second best with the second worst, ..., each candidate in one pair.
    `all`: every pair whose rewards differ enough; of more than `most`, a seeded choice. `right-wrong`: like `all`, but
    only pairs of a right and a wrong candidate. Ties are broken by the seed. Each pair of texts is used at most once,
    and in one direction only.

    Args:
        candidates: Attempts at one question.
        rule: One of the three rules.
        margin: Smallest difference of rewards, 0 or more; equal rewards never form a pair.
        most: Most pairs, 1 or more.
        seed: Seed of ties and choices.

    Raises:
        ValueError: The margin is negative or NaN, or `most` is below 1.
    """
    if not margin >= 0 or most < 1:
        raise ValueError(f"margin must be 0 or more and most at least 1, not {margin} and {most}")
    order = list(range(len(candidates)))
    random.Random(seed).shuffle(order)
    proposed = _best_worst(candidates, order) if rule == "best-worst" else _ordered(candidates, order)
    chosen: dict[tuple[str, str], tuple[int, int]] = {}
    equal_texts = 0
    for first, second in proposed:
        better, worse = candidates[first], candidates[second]
        difference = better.reward - worse.reward
        if difference <= _EQUAL or difference < margin - _EQUAL:
            continue
        if rule == "right-wrong" and not (better.right and not worse.right):
            continue
        if better.said == worse.said:
            equal_texts += 1
            continue
        if (worse.said, better.said) not in chosen:
            chosen.setdefault((better.said, worse.said), (first, second))
    return Pairing(pairs=tuple(chosen.values())[:most], equal_texts=equal_texts)


def _best_worst(candidates: Sequence[Candidate], order: Sequence[int]) -> Iterator[tuple[int, int]]:
    ranked = sorted(order, key=lambda index: -candidates[index].reward)
    return zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)


def _ordered(candidates: Sequence[Candidate], order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Every ordered pair, in an order that favours no candidate: by distance in the shuffled order, taken as a ring."""
    count = len(order)
    return ((order[start], order[(start + step) % count]) for step in range(1, count) for start in range(count))
