"""How many groups an iteration plays until enough of them carry signal. Pure; does not depend on time."""

from __future__ import annotations

import math
from collections.abc import Sequence

_WEIGHT_OF_A_GUESS = 8
_WEIGHT_OF_EXPERIENCE = 32
_LEAST_SHARE = 0.05


def admitted_groups(uninformative: Sequence[int], *, target: int, most: int, expected: float | None) -> int:
    """How many groups may start, given which of them turned out to carry no signal.

    Groups are numbered in the order in which they start. After the first j groups, i of them informative, their share
    is estimated (see `informative_share`), and as many more are wanted as at that share make up what is missing to
    `target`. The largest number that any prefix asks for may start. A group that is not judged yet counts as
    informative. So the result grows as groups are judged, never beyond what it is once all of them are, and what it
    ends at does not depend on the order in which they were: it is a function of the groups alone, never of timing.
    It ends with at least `target` informative groups, or at `most`.

    Args:
        uninformative: Numbers of the groups known to carry no signal.
        target: Informative groups that are wanted; 0 for no target, then `most` start.
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
    """The share of informative groups, from what was counted and what was expected: a mean with a prior weight.

    Without experience the guess is that every group is informative, which never starts one too many, and gives way
    quickly; the share of the iteration before counts as 32 groups. Never below 0.05.
    """
    weight = _WEIGHT_OF_A_GUESS if expected is None else _WEIGHT_OF_EXPERIENCE
    prior = 1.0 if expected is None else expected
    return max(_LEAST_SHARE, (informative + weight * prior) / (groups + weight))
