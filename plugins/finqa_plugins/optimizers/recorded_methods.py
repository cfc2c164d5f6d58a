"""Methods that learn from recorded attempts: SFT from demonstrations, DPO from pairs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.pair_batches import PreferenceLoss
from finqa_cli.contracts import Optimizer, PairPlan, PreferenceOptimizer
from finqa_cli.types import Credit, Group


class Sft(Optimizer):
    """Maximum likelihood of demonstrations.

    Rewards are not used: the demonstrations are chosen when they are recorded. Attempts that ended in a fault stop at
    an arbitrary place and are excluded.
    """

    def __init__(self, config: None = None) -> None:
        del config

    def credit(self, group: Group) -> Credit:
        """Advantage 1 for each attempt that did not end in a fault."""
        advantages = tuple(None if trajectory.status.is_fault else 1.0 for trajectory in group.trajectories)
        if all(advantage is None for advantage in advantages):
            return Credit(advantages=advantages, dropped="too_few")
        return Credit(advantages=advantages)

    def loss(self) -> CrossEntropyLoss:
        """Cross entropy over the demonstrated tokens."""
        return CrossEntropyLoss()


class DpoConfig(BaseModel):
    """Options of `dpo`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss_type: Literal["sigmoid", "hinge", "ipo"] = Field(
        default="sigmoid", description="Form of the loss: sigmoid, hinge or ipo."
    )
    beta: float = Field(default=0.1, gt=0, description="Strength of the regularization towards the reference policy.")
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="Assumed share of wrong preferences; sigmoid only."
    )
    reference_free: bool = Field(default=False, description="Ignore the reference policy (reference-free loss).")
    epochs: float = Field(default=1.0, gt=0, description="Passes over the pairs.")
    pairs_per_step: int = Field(default=16, ge=1, description="Pairs of one optimizer step.")
    warmup_share: float = Field(default=0.1, ge=0, lt=1, description="Share of the steps with a rising learning rate.")
    validate_every: int = Field(
        default=50, ge=1, description="Steps between measurements on held-out pairs, each with a checkpoint."
    )
    validation_samples: int = Field(
        default=0, ge=0, description="Held-out questions that the policy answers at each measurement."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label_smoothing and self.loss_type != "sigmoid":
            raise ValueError(f"label_smoothing belongs to loss_type=sigmoid, not to {self.loss_type}")
        return self


class Dpo(PreferenceOptimizer):
    """Direct preference optimization; see `PreferenceLoss`.

    Source: Rafailov et al., arXiv 2305.18290.
    """

    def __init__(self, config: DpoConfig) -> None:
        self._config = config

    def pair_loss(self) -> PreferenceLoss:
        """The loss on pairs."""
        config = self._config
        return PreferenceLoss(
            form=config.loss_type,
            beta=config.beta,
            label_smoothing=config.label_smoothing,
            reference_free=config.reference_free,
        )

    def plan(self) -> PairPlan:
        """The schedule over the pairs."""
        config = self._config
        return PairPlan(
            epochs=config.epochs,
            pairs_per_step=config.pairs_per_step,
            warmup_share=config.warmup_share,
            validate_every=config.validate_every,
            validation_samples=config.validation_samples,
        )
