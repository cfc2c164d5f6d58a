"""Supervised fine-tuning: every demonstration counts alike."""

from __future__ import annotations

from finqa_cli.types import Credit, Group, LossSpec


class Sft:
    """Maximum likelihood of demonstrations.

    Rewards play no part: whoever records the demonstrations decides what is worth imitating. Attempts that ended in a
    fault are broken off at an arbitrary place and are excluded.
    """

    def __init__(self, config: None = None) -> None:
        del config

    def credit(self, group: Group) -> Credit:
        """Advantage 1 for each attempt that did not end in a fault."""
        advantages = tuple(None if trajectory.status.is_fault else 1.0 for trajectory in group.trajectories)
        if all(advantage is None for advantage in advantages):
            return Credit(advantages=advantages, dropped="too_few")
        return Credit(advantages=advantages)

    def loss(self) -> LossSpec:
        """Cross entropy over the demonstrated tokens."""
        return LossSpec(name="cross_entropy")
