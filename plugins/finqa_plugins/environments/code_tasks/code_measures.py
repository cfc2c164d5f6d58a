"""Figures about a set of episodes, beside accuracy."""

from __future__ import annotations

import builtins
import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from finqa_cli.types import Rewards, Trajectory
from finqa_plugins.environments.code_tasks.code_verdict import ENDED, ERROR, NO_CODE

OTHER = "Other"
_KIND = re.compile(re.escape(ERROR) + r"(\w+)")
_NAMED = {NO_CODE, ENDED} | {name for name, value in vars(builtins).items() if isinstance(value, type)}


def measure(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Shares of the episodes that have a verdict; none when there is none.

    `test_pass_rate` is the mean share of tests passed, with 0 for errors and bans; `error_kinds` are counts by
    exception, where exceptions that code names itself are `Other`.
    """
    graded = [each.rewards for each in trajectories if each.rewards is not None]
    if not graded:
        return {}
    kinds = Counter(_kind(rewards) for rewards in graded if rewards.components.get("error"))
    return {
        "test_pass_rate": _mean(graded, "passed"),
        "ban_rate": _mean(graded, "banned"),
        "error_rate": _mean(graded, "error"),
        "error_kinds": dict(sorted(kinds.items())),
    }


def _mean(graded: Sequence[Rewards], name: str) -> float:
    return fmean(rewards.components.get(name, 0.0) for rewards in graded)


def _kind(rewards: Rewards) -> str:
    found = _KIND.match(rewards.explanation)
    return found[1] if found and found[1] in _NAMED else OTHER
