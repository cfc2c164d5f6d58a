"""Types between graded groups and an updated policy: credit, samples, batches, losses, reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

IdRow: TypeAlias = "npt.NDArray[np.int32]"
MaskRow: TypeAlias = "npt.NDArray[np.bool_]"
FloatRow: TypeAlias = "npt.NDArray[np.float32]"
"""[L] numbers of a sample, one per token."""
RowLike: TypeAlias = "Sequence[float] | npt.NDArray[Any]"
"""Numbers that become a row of a sample."""

Normalization = Literal["trained", "token", "sequence", "constant"]
"""How the losses of tokens are averaged, see `Loss.normalization`."""
KlEstimator = Literal["k1", "k3"]
"""Estimator of the KL divergence, see `KlPenalty`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """A version of the policy, published by a learner and loaded by an engine.

    Attributes:
        number: 0 is the base model; each published update adds one.
        model: Folder or hub id of the base model.
        adapter: Folder of a PEFT adapter on top of it, or None.
    """

    number: int
    model: str
    adapter: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Credit of one group, computed by an optimizer.

    Attributes:
        advantages: [G] one number per trajectory; None excludes it (a fault).
        dropped: Why the whole group is not used (`zero_variance`, `too_few`, `over_age`, or an optimizer's own word);
            empty when it is informative.
    """

    advantages: tuple[float | None, ...]
    dropped: str = ""

    def map_advantages(self, change: Callable[[float], float]) -> Self:
        """Return the credit with `change` applied to every advantage; members that are excluded stay excluded."""
        changed = tuple(None if advantage is None else change(advantage) for advantage in self.advantages)
        return replace(self, advantages=changed)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Sample:
    """One token sequence to train on, in numpy rows of the same length L.

    Rows are shared between samples: do not write to them.

    Attributes:
        token_ids: [L] int32: prompt, sampled and tool tokens in the order of the episode.
        loss_mask: [L] bool: True where the id was sampled by the policy (or demonstrated); position 0 is always False.
        logprobs: [L] float32: sampler log-probabilities; 0.0 where the mask is False.
        advantages: [L] float32: advantage of each masked token; 0.0 elsewhere.
        proximal_logprobs: [L] float32: log-probabilities under the weights before the first step of the iteration, the
            anchor of the loss's ratio; 0.0 where the mask is False. None: the current weights are the anchor.
        reference_logprobs: [L] float32: log-probabilities under the reference policy, 0.0 where the mask is False.
            None: the update does not need them.
        values: [L] float32: value of each masked token's state before the first step of the iteration, 0.0 elsewhere.
            None: the method has no value function.
        returns: [L] float32: targets of the values, 0.0 where the mask is False. None: as for `values`.
        weight: Factor on the loss of each of its tokens; see `Loss.normalization`.
        episode: Which episode it belongs to; one that forks has several samples. Empty: an episode of its own.
    """

    token_ids: IdRow
    loss_mask: MaskRow
    logprobs: FloatRow
    advantages: FloatRow
    proximal_logprobs: FloatRow | None
    reference_logprobs: FloatRow | None
    values: FloatRow | None
    returns: FloatRow | None
    weight: float
    episode: str

    def __init__(
        self,
        *,
        token_ids: RowLike,
        loss_mask: RowLike,
        logprobs: RowLike,
        advantages: RowLike,
        proximal_logprobs: RowLike | None = None,
        reference_logprobs: RowLike | None = None,
        values: RowLike | None = None,
        returns: RowLike | None = None,
        weight: float = 1.0,
        episode: str = "",
    ) -> None:
        """Convert the rows to numpy arrays; arrays of the right type are not copied."""
        import numpy as np  # not at the top: only training needs numpy

        rows = {"logprobs": logprobs, "advantages": advantages, "proximal_logprobs": proximal_logprobs}
        rows |= {"reference_logprobs": reference_logprobs, "values": values, "returns": returns}
        fields = {name: None if row is None else np.asarray(row, dtype=np.float32) for name, row in rows.items()}
        fields["token_ids"] = np.asarray(token_ids, dtype=np.int32)
        fields["loss_mask"] = np.asarray(loss_mask, dtype=np.bool_)
        for name, value in {**fields, "weight": weight, "episode": episode}.items():
            object.__setattr__(self, name, value)

    @property
    def loss_tokens(self) -> int:
        """Number of tokens with loss."""
        return int(self.loss_mask.sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        import numpy as np

        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__slots__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One optimizer step.

    Attributes:
        samples: All sequences of the step.
        microbatches: Indices into `samples`. Each inner tuple fits the token budget and is one forward and backward
            pass.
        loss_tokens: Tokens with loss over all samples. The sum of all weighted token losses is divided by this number,
            so that the gradient does not depend on the division into micro-batches.
    """

    samples: tuple[Sample, ...]
    microbatches: tuple[tuple[int, ...], ...]
    loss_tokens: int


class Loss(BaseModel):
    """Loss of the tokens of a batch: one subclass per loss function, with its parameters as fields.

    The losses that come with finqa are in `finqa_cli.algorithms.losses` and `pair_batches`. A learner maps the class to
    its own function, or uses the function that the class names in `functions`. The other class attributes and
    properties describe the inputs that the function needs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    functions: ClassVar[Mapping[str, str]] = {}
    """Name of a learner -> `package.module:function`, for losses for which the learner has no function of its own."""
    at_rollout_temperature: ClassVar[bool] = False
    """Log-probabilities are computed at the temperature of the rollouts; if False, at temperature 1."""
    has_ratio: ClassVar[bool] = False
    """The loss has a ratio of the current policy to the policy before the first step of an iteration."""
    idle_in_one_step: ClassVar[tuple[str, ...]] = ()
    """Fields that change no gradient in iterations of one optimizer step; the default of each field means off."""
    of_pairs: ClassVar[bool] = False
    """Rows of a micro-batch are whole pairs of a chosen and a rejected attempt."""

    normalization: Normalization = "trained"
    """How the token losses of a batch are averaged. `trained`: their mean over the tokens whose loss can move the
    policy. `token`: their mean over the tokens of all scored members of the groups that are used for training,
    including members whose advantage is 0. `sequence`: the mean over these members of the mean over their tokens.
    `constant`: the mean over these members of the sum over their tokens, divided by `normalization_length`."""
    normalization_length: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Divisor of `constant`, in tokens; 0 with any other normalization."""

    @model_validator(mode="after")
    def _check_normalization(self) -> Self:
        if (self.normalization == "constant") != (self.normalization_length > 0):
            raise ValueError("normalization_length must be above 0 with normalization=constant, and 0 with any other")
        return self

    @property
    def needs_reference(self) -> bool:
        """Samples must carry log-probabilities under the reference policy."""
        return False

    @property
    def needs_values(self) -> bool:
        """Samples must carry values and returns, and the learner has a value function to train."""
        return False

    @property
    def needs_entropy_gradient(self) -> bool:
        """The entropies that the function receives must have a gradient."""
        return False

    @property
    def moves_neutral(self) -> bool:
        """The loss has a term without the advantage, so that members whose advantage is 0 move the policy as well."""
        return self.needs_reference or self.needs_values or self.needs_entropy_gradient

    def idle_fields(self, steps: int) -> list[str]:
        """Names of fields that are set but change no gradient in iterations with this number of optimizer steps."""
        idle = () if steps > 1 else self.idle_in_one_step
        return [name for name in idle if getattr(self, name) != type(self).model_fields[name].default]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOption:
    """An option of an optimizer that has no effect with the current settings.

    Attributes:
        name: Name of the option.
        reason: Why it has no effect, as the end of a sentence.
        remedy: Flags with which it has an effect.
    """

    name: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """KL penalty that is subtracted from each reward before credit.

    It is the coefficient times the estimated KL divergence, in nats, of the sampler from the reference policy, summed
    over the sampled tokens of the episode. The estimate `k1` is logp - reference logp, `k3` is exp(-k1) - 1 + k1
    (Schulman, "Approximating KL divergence", 2020).
    """

    coefficient: float
    estimator: KlEstimator


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageEstimation:
    """Generalized advantage estimation over the sampled tokens of an episode.

    Attributes:
        gamma: Discount per sampled token.
        lam: Lambda, 0 to 1. 0 bootstraps from the next value; 1 uses the discounted sum of the rewards.
        whiten: Scale advantages to mean 0 and standard deviation 1 over the sampled tokens of the batch.
    """

    gamma: float
    lam: float
    whiten: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Division of an iteration's samples into steps.

    Attributes:
        epochs: Number of passes over each sample.
        minibatches: Optimizer steps of an epoch; each uses its share of the samples.
        target_kl: Mean KL divergence per token, in nats, from the anchor of the loss's ratio. When it is reached, the
            remaining steps are skipped. 0: never.
    """

    epochs: int
    minibatches: int
    target_kl: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """Report of one optimizer step.

    Attributes:
        loss: The normalized loss.
        grad_norm: Global gradient norm before clipping.
        learning_rate: Learning rate of the step.
        tokens: Tokens of the forward pass, without padding.
        loss_tokens: Tokens with loss.
        seconds: Wall-clock seconds.
        metrics: Further numbers by name (`logprob_difference_max`, `clip_fraction`, `entropy`, ...).
    """

    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    loss_tokens: int
    seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)
