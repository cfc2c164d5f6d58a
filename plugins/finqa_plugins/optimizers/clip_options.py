"""Options that policy-gradient methods share, and what they say to the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from finqa_cli.types import KlEstimator, KlPenalty, LossSpec, Normalization

_USUAL_LENGTH = 512

MORE_STEPS = "--set train.updates_per_iteration=2"
"""What brings several steps, for methods without passes of their own."""


class PolicyGradientOptions(BaseModel):
    """Regularization and normalization of a policy gradient."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    normalization: Normalization | None = Field(
        default=None,
        description="What the loss is a mean over: trained (tokens with an advantage), token (those without one "
        "counted as well), sequence (each episode's mean), constant (token sums over normalization_length).",
    )
    normalization_length: float | None = Field(
        default=None, gt=0, description=f"Of normalization=constant, in tokens; unset: {_USUAL_LENGTH}."
    )
    kl: Literal["off", "reward", "loss"] = Field(
        default="off", description="Where the divergence from the policy that training began from is taken off."
    )
    kl_coef: float = Field(default=0.05, gt=0, description="Its coefficient.")
    kl_estimator: KlEstimator | None = Field(default=None, description="unset: k1 in the reward, k3 in the loss.")
    entropy_coef: float = Field(default=0.0, ge=0, description="Of the policy's entropy, which is raised; 0: off.")

    @model_validator(mode="after")
    def _check_shared(self) -> Self:
        given = self.model_fields_set
        if useless := sorted({"kl_coef", "kl_estimator"} & given) if self.kl == "off" and "kl" not in given else []:
            raise ValueError(f"{useless[0]} has no effect without kl=reward or kl=loss")
        if self.normalization_length is not None and self.mean_over() != "constant":
            raise ValueError("normalization_length has no effect without normalization=constant")
        return self

    def mean_over(self) -> Normalization:
        """The normalization that applies."""
        return self.normalization or "trained"

    def kl_penalty(self) -> KlPenalty | None:
        """What is taken from each reward."""
        if self.kl != "reward":
            return None
        return KlPenalty(coefficient=self.kl_coef, estimator=self.kl_estimator or "k1")

    def loss_spec(self, name: str, **numbers: float) -> LossSpec:
        """The loss of this name with the clips and other numbers given, those that are 0 and optional left out."""
        parameters = {each: number for each, number in numbers.items() if number or each.startswith("clip_")}
        normalization = self.mean_over()
        length = (self.normalization_length or _USUAL_LENGTH) if normalization == "constant" else 0.0
        return LossSpec(
            name=name,
            parameters={**parameters, **self._regularizers()},
            normalization=normalization,
            normalization_length=length,
        )

    def _regularizers(self) -> Mapping[str, float]:
        kl = {f"kl_{self.kl_estimator or 'k3'}": self.kl_coef} if self.kl == "loss" else {}
        return {**kl, **({"entropy_coef": self.entropy_coef} if self.entropy_coef else {})}
