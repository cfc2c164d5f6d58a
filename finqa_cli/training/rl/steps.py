"""What the steps of training, or of rollouts alone, came to: figures, and lines that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.statistics import is_right
from finqa_cli.types import Trajectory


def success(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`successful`: right answers; `success_rate`: their share of those that were graded."""
    graded = [each for each in trajectories if each.rewards is not None]
    right = sum(map(is_right, graded))
    return {"successful": right, "success_rate": right / len(graded) if graded else 0.0}


def step_line(step: int, trajectories: Sequence[Trajectory], *, seconds: float) -> str:
    """`  Step 0: reward=0.500, success=50.0% (2/4), time=45.2s`: mean reward and share of right answers of those that
    were graded; the faults of the others follow.
    """
    graded = [each for each in trajectories if each.rewards is not None]
    found = success(graded)
    reward = sum(each.reward or 0.0 for each in graded) / len(graded) if graded else 0.0
    faults = len(trajectories) - len(graded)
    share = f"{found['success_rate']:.1%} ({found['successful']}/{len(graded)})"
    line = f"  Step {step}: reward={reward:.3f}, success={share}, time={seconds:.1f}s"
    return f"{line}, faults={faults}" if faults else line


def summary(steps: Sequence[Mapping[str, Any]]) -> str:
    """The summary of a training, from its records of iterations; what earlier versions recorded has no successes."""
    counted = [step for step in steps if "successful" in step]
    played = sum(step["episodes"] for step in counted)
    right = sum(step["successful"] for step in counted)
    graded = played - sum(step["faults"] for step in counted)
    share = f" ({right / graded:.1%})" if graded else ""
    lines = [f"Total trajectories: {played}", f"Successful: {right}{share}", f"Steps completed: {len(steps)}"]
    return "\n".join(["Training complete!", *(f"  {line}" for line in lines)])
