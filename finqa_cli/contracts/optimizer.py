"""Optimizers: training methods as pure functions from groups to credit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from finqa_cli.types import AdvantageEstimation, Credit, Group, IdleOption, KlPenalty, LossSpec, Passes


@runtime_checkable
class Optimizer(Protocol):
    """Constructed as `Optimizer(config)`. No torch, no state, no effects."""

    def credit(self, group: Group) -> Credit:
        """Advantages of one group, faults excluded, or the reason why it carries no signal."""
        ...

    def loss(self) -> LossSpec:
        """Which per-token loss the learner applies."""
        ...


@runtime_checkable
class PenalizesReward(Protocol):
    """An optimizer that may want the divergence from the reference policy taken from the rewards before credit.

    Which groups carry signal is still judged by the rewards as they were graded: the penalty needs a forward pass of
    the learner, and groups are judged while they are played. Groups that are trained on get their credit again.
    """

    def kl_penalty(self) -> KlPenalty | None:
        """What is taken from each reward; None for nothing."""
        ...


@runtime_checkable
class EstimatesAdvantages(Protocol):
    """An optimizer whose advantages are of each token, estimated with the learner's value function.

    Its `credit` only says which members are trained on: any advantage but None and 0 does. What `kl_penalty` asks for
    is taken from the reward of each token instead of the episode's, and credit is not assigned again.
    """

    def estimation(self) -> AdvantageEstimation:
        """How rewards and values become advantages."""
        ...


@runtime_checkable
class RepeatsPasses(Protocol):
    """An optimizer that takes several passes over an iteration's samples, each epoch in a seeded order of its own."""

    def passes(self) -> Passes:
        """How many, in how many steps; they take the place of `train.updates_per_iteration`."""
        ...


@runtime_checkable
class KnowsIdleOptions(Protocol):
    """An optimizer that knows which of its options have no effect: what the user names is refused then."""

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Options, defaults among them, that change no gradient where iterations take so many optimizer steps."""
        ...


@runtime_checkable
class CreditsBatch(Protocol):
    """An optimizer whose advantages also depend on the other groups of a batch."""

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """The final credits of a batch, in order, given what `credit` made of each group by itself.

        Dropped groups are not part of the batch and stay as they are.
        """
        ...
