"""Optimizers: training methods as pure functions from groups to credit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.types import AdvantageEstimation, Credit, Group, IdleOption, KlPenalty, Loss, Passes


class Optimizer(ABC):
    """Base class of the methods of `finqa train`, constructed as `Optimizer(config)`. No torch, no state, no effects.

    `credit` and `loss` are required; the other methods have defaults.
    """

    @abstractmethod
    def credit(self, group: Group) -> Credit:
        """The advantages [G] of one group, None for faults, or the reason why the group is not informative."""

    @abstractmethod
    def loss(self) -> Loss:
        """The loss of the tokens."""

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """The final credits of a batch, in order, for methods whose advantages also depend on other groups.

        Dropped groups are not part of the batch, and their credits stay unchanged. Default: `credits`.

        Args:
            groups: All groups of the batch.
            credits: Result of `credit` for each group.
        """
        return tuple(credits)

    def kl_penalty(self) -> KlPenalty | None:
        """KL penalty that is subtracted from the rewards before credit. Default: None, no penalty.

        Groups are judged informative by the rewards as they were graded: the penalty needs a forward pass of the
        learner, and groups are judged while they are played. The credit of groups that are used for training is
        computed again with the penalty.
        """
        return None

    def estimation(self) -> AdvantageEstimation | None:
        """How advantages per token are computed from rewards and the learner's values. Default: None, no values.

        With an estimation, `credit` only selects the members that are used for training: those with an advantage that
        is neither None nor 0. The KL penalty is subtracted from the reward of each token, and credit is not computed
        again.
        """
        return None

    def passes(self) -> Passes | None:
        """Passes over an iteration's samples, each epoch in a seeded order, instead of `train.updates_per_iteration`.

        Default: None, one pass in the order of the groups, divided into `train.updates_per_iteration` steps.
        """
        return None

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Options that change no gradient in iterations with this number of optimizer steps; setting one is an error.

        Default: none.
        """
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """Schedule of a method over its pairs.

    Attributes:
        epochs: Passes over the pairs.
        pairs_per_step: Pairs of one optimizer step.
        warmup_share: Share of the steps in which the learning rate rises.
        validate_every: Steps between two validations on held-out pairs, each with a checkpoint.
        validation_samples: Held-out questions that the policy answers at each validation.
    """

    epochs: float
    pairs_per_step: int
    warmup_share: float
    validate_every: int
    validation_samples: int = 0


class PreferenceOptimizer(Optimizer):
    """A method for `finqa dpo`: it trains on recorded pairs of attempts instead of played groups."""

    @abstractmethod
    def pair_loss(self) -> Loss:
        """The loss of the pairs."""

    @abstractmethod
    def plan(self) -> PairPlan:
        """The schedule over the pairs."""

    def loss(self) -> Loss:
        """Raise NotImplementedError: the method learns from pairs. `check_method` refuses it in `finqa train`."""
        raise NotImplementedError

    def credit(self, group: Group) -> Credit:
        """Raise NotImplementedError, as `loss` does."""
        raise NotImplementedError
