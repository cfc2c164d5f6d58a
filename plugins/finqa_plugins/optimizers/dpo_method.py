"""DPO: preferences without a reward model and without rollouts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.contracts.preference_method import PairPlan
from finqa_cli.errors import ConfigError
from finqa_cli.types import Credit, Group, LossSpec

_LOSSES = {"sigmoid": "dpo", "hinge": "dpo_hinge", "ipo": "dpo_ipo"}


class DpoConfig(BaseModel):
    """Options of `dpo`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    loss_type: Literal["sigmoid", "hinge", "ipo"] = Field(
        default="sigmoid", description="What is made of how much likelier the chosen attempt became than the other."
    )
    beta: float = Field(default=0.1, gt=0, description="Strength of the pull towards the reference policy.")
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=0.5, description="Share of preferences that may be the wrong way round; sigmoid only."
    )
    reference_free: bool = Field(default=False, description="Take all attempts as equally likely under the reference.")
    epochs: float = Field(default=1.0, gt=0, description="Passes over the pairs.")
    pairs_per_step: int = Field(default=16, ge=1, description="Pairs of one optimizer step.")
    warmup_share: float = Field(default=0.1, ge=0, lt=1, description="Share of the steps with a rising learning rate.")
    validate_every: int = Field(default=50, ge=1, description="Steps between looks at held-out pairs and checkpoints.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label_smoothing and self.loss_type != "sigmoid":
            raise ValueError(f"label_smoothing is of loss_type=sigmoid, not of {self.loss_type}")
        return self


class Dpo:
    """Direct preference optimization, with the losses that `torch_learner.preferences` defines.

    Source: Rafailov et al., arXiv 2305.18290.
    """

    def __init__(self, config: DpoConfig) -> None:
        self._config = config

    def pair_loss(self) -> LossSpec:
        """The loss on pairs."""
        config = self._config
        parameters = {"beta": config.beta}
        if config.label_smoothing:
            parameters["label_smoothing"] = config.label_smoothing
        if config.reference_free:
            parameters["reference_free"] = 1.0
        return LossSpec(name=_LOSSES[config.loss_type], parameters=parameters)

    def plan(self) -> PairPlan:
        """How to go through the pairs."""
        config = self._config
        return PairPlan(
            epochs=config.epochs,
            pairs_per_step=config.pairs_per_step,
            warmup_share=config.warmup_share,
            validate_every=config.validate_every,
        )

    def loss(self) -> LossSpec:
        """Raises ConfigError: groups that are played are not what it learns from."""
        raise _of_pairs()

    def credit(self, group: Group) -> Credit:
        """Raises ConfigError, as `loss` does before anything is played."""
        raise _of_pairs()


def _of_pairs() -> ConfigError:
    return ConfigError(
        "dpo learns from recorded pairs of attempts, not from groups that `finqa train` plays.",
        remedy="finqa sample TARGET, finqa prefs RUN, finqa dpo PAIRS",
    )
