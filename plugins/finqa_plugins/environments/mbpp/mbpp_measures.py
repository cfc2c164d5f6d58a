"""What a set of episodes says about solving at once and about repairing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finqa_cli.types import Trajectory


def measures(trajectories: Sequence[Trajectory], max_attempts: int) -> dict[str, Any]:
    """Figures of the graded episodes; none without one.

    | figure                 | meaning                                                                              |
    | ---------------------- | ------------------------------------------------------------------------------------ |
    | `pass_at_1_by_attempt` | share solved by attempt 1, by attempt 2 at the latest, ...: one sampled episode each |
    | `repair_rate`          | share of those that failed at first that were solved later; only where any failed    |
    | `attempts_mean`        | attempts that were made                                                              |
    """
    graded = [each for each in trajectories if each.rewards is not None]
    if not graded:
        return {}
    solved_at = [len(each.turns) if _is_solved(each) else max_attempts + 1 for each in graded]
    failed_first = [at for at in solved_at if at > 1]
    figures: dict[str, Any] = {
        "pass_at_1_by_attempt": {
            str(attempt): sum(at <= attempt for at in solved_at) / len(graded) for attempt in range(1, max_attempts + 1)
        },
        "attempts_mean": sum(len(each.turns) for each in graded) / len(graded),
    }
    if failed_first and max_attempts > 1:
        figures["repair_rate"] = sum(at <= max_attempts for at in failed_first) / len(failed_first)
    return figures


def _is_solved(trajectory: Trajectory) -> bool:
    assert trajectory.rewards is not None, "only graded ones are asked"
    return trajectory.rewards.components.get("correct", 0.0) > 0
