"""Methods that learn from recorded pairs of attempts instead of groups that are played."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from finqa_cli.types import LossSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """How a method goes through its pairs.

    Attributes:
        epochs: Passes over the pairs.
        pairs_per_step: Pairs of one optimizer step.
        warmup_share: Share of the steps over which the learning rate rises.
        validate_every: Steps between two looks at held-out pairs, each with a checkpoint.
    """

    epochs: float
    pairs_per_step: int
    warmup_share: float
    validate_every: int


@runtime_checkable
class PreferenceOptimizer(Protocol):
    """An optimizer of the kind `optimizer`, constructed as `Optimizer(config)`, that `finqa dpo` trains with."""

    def pair_loss(self) -> LossSpec:
        """Which loss on pairs the learner applies; its parameter `reference_free` 1 needs no reference policy."""
        ...

    def plan(self) -> PairPlan:
        """How to go through the pairs."""
        ...
