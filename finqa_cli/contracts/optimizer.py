"""Optimizers: training methods as pure functions from groups to credit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.types import AdvantageEstimation, Credit, Group, IdleOption, KlPenalty, Loss, Passes


class Optimizer(ABC):
    """A method for `finqa train`, constructed as `Optimizer(config)`. No torch, no state, no effects.

    `credit` and `loss` make a method; the other methods have defaults.
    """

    @abstractmethod
    def credit(self, group: Group) -> Credit:
        """Advantages of one group, excluding faults, or the reason why the group is not informative."""

    @abstractmethod
    def loss(self) -> Loss:
        """Which loss the tokens get."""

    def batch_credit(self, groups: Sequence[Group], credits: Sequence[Credit]) -> tuple[Credit, ...]:
        """The final credits of a batch, in order, for advantages that also depend on other groups.

        Dropped groups are not part of the batch and stay as they are.

        Args:
            groups: All groups of the batch.
            credits: Result of `credit` for each group.
        """
        return tuple(credits)

    def kl_penalty(self) -> KlPenalty | None:
        """KL penalty that is subtracted from the rewards before credit; None: no penalty.

        Which groups carry signal is still judged by the rewards as they were graded: the penalty needs a forward pass
        of the learner, and groups are judged while they are played. Groups that are used for training get their credit
        again.
        """
        return None

    def estimation(self) -> AdvantageEstimation | None:
        """How advantages per token are computed from rewards and the learner's values; None for methods without values.

        With it, `credit` only selects which members are used for training: those with an advantage that is neither None
        nor 0.
        The KL penalty is taken from the reward of each token, and credit is not assigned again.
        """
        return None

    def passes(self) -> Passes | None:
        """Passes over an iteration's samples, each epoch in a seeded order, in place of `train.updates_per_iteration`.

        None for one pass in the order of the groups, in as many steps as the settings ask for.
        """
        return None

    def idle_options(self, steps: int) -> tuple[IdleOption, ...]:
        """Options, including defaults, that change no gradient in iterations with this number of optimizer steps.

        Setting one of them is an error.
        """
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairPlan:
    """Schedule of a method over its pairs.

    Attributes:
        epochs: Passes over the pairs.
        pairs_per_step: Pairs of one optimizer step.
        warmup_share: Share of the steps over which the learning rate rises.
        validate_every: Steps between two measurements on held-out pairs, each with a checkpoint.
        validation_samples: Held-out questions that the policy answers at each of them.
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
        """Which loss on pairs the learner applies."""

    @abstractmethod
    def plan(self) -> PairPlan:
        """The schedule over the pairs."""

    def loss(self) -> Loss:
        """Raises NotImplementedError: the method learns from pairs, and `check_method` refuses to play for it."""
        raise NotImplementedError

    def credit(self, group: Group) -> Credit:
        """Raises NotImplementedError, as `loss` does."""
        raise NotImplementedError
