"""Optimizers: training methods as pure functions from groups to credit."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from finqa_cli.types import Credit, Group, LossSpec


@runtime_checkable
class Optimizer(Protocol):
    """Constructed as `Optimizer(config)`. No torch, no state, no effects."""

    def credit(self, group: Group) -> Credit:
        """Advantages of one group, faults excluded, or the reason why it carries no signal."""
        ...

    def loss(self) -> LossSpec:
        """Which per-token loss the learner applies."""
        ...
