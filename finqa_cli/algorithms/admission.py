"""How many groups an iteration plays until enough of them carry signal. Pure; does not depend on time."""

from __future__ import annotations

import math
from collections.abc import Sequence

_WEIGHT_OF_A_GUESS = 8
_WEIGHT_OF_EXPERIENCE = 32
_LEAST_SHARE = 0.05


def admitted_groups(uninformative: Sequence[int], *, target: int, most: int, expected: float | None) -> int:
    """Return how many groups may start, given which of them turned out to carry no signal.

    Groups are numbered in the order in which they start. After the first j groups, of which i are informative, the
    share of informative groups is estimated (see `informative_share`). From that share follows how many groups in all
    give `target` informative ones. The result is the largest number over all prefixes j. A group that is not judged
    yet counts as informative, so the result only grows while groups are judged. The final result does not depend on
    the order in which groups are judged: it is a function of the groups alone, never of timing. It ends with at least
    `target` informative groups, or at `most`.

    Args:
        uninformative: Numbers of the groups known to carry no signal, from 0.
        target: Informative groups that are wanted; 0: no target, and `most` groups start.
        most: Groups of the iteration at most.
        expected: Share of informative groups in the iteration before; None when there was none.
    """
    if not target:
        return most
    wanted = math.ceil(target / informative_share(0, 0, expected))
    for count, number in enumerate(sorted(uninformative), start=1):
        judged = number + 1
        missing = target - (judged - count)
        if missing > 0:
            wanted = max(wanted, judged + math.ceil(missing / informative_share(judged - count, judged, expected)))
    return min(wanted, most)


def informative_share(informative: int, groups: int, expected: float | None) -> float:
    """Estimate the share of informative groups: the mean of the counted groups and a prior, weighted by their numbers.

    Without an iteration before, the prior is that every group is informative. It never starts a group too many, and
    counts as 8 groups only. The share of the iteration before counts as 32 groups. The estimate is never below 0.05.

    Args:
        informative: Informative groups among those counted.
        groups: Groups counted.
        expected: Share in the iteration before; None when there was none.
    """
    weight = _WEIGHT_OF_A_GUESS if expected is None else _WEIGHT_OF_EXPERIENCE
    prior = 1.0 if expected is None else expected
    return max(_LEAST_SHARE, (informative + weight * prior) / (groups + weight))
