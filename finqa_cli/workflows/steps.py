"""What one step of training, or of rollouts alone, came to, in a line that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.evals import is_right
from finqa_cli.types import Trajectory


def step_line(step: int, trajectories: Sequence[Trajectory], *, seconds: float) -> str:
    """`  Step 0: reward=0.500, success=50.0% (2/4), time=45.2s`: mean reward and share of right answers of those that
    were graded; the faults of the others follow.
    """
    graded = [each for each in trajectories if each.rewards is not None]
    right = sum(map(is_right, graded))
    reward = sum(each.reward or 0.0 for each in graded) / len(graded) if graded else 0.0
    share = right / len(graded) if graded else 0.0
    faults = len(trajectories) - len(graded)
    line = f"  Step {step}: reward={reward:.3f}, success={share:.1%} ({right}/{len(graded)}), time={seconds:.1f}s"
    return f"{line}, faults={faults}" if faults else line
