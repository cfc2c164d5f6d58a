"""Token losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from finqa_cli.errors import ConfigError
from finqa_cli.types import LossSpec, Sample
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.importance import WEIGHTS, WeightFunction, bounded_ratio, build_weights
from finqa_plugins.learners.torch.objectives import ObjectiveFunction, build_objective
from finqa_plugins.learners.torch.pair_losses import PAIR_LOSSES, PairLoss, build_pair_loss, needs_reference
from finqa_plugins.learners.torch.value_model import ValueTerm, build_value_term, check_values

_POLICY_GRADIENT = {"clip_low", "clip_high", "kl_k1", "kl_k3", "entropy_coef", *WEIGHTS}
_PARAMETERS = {
    "policy_gradient": _POLICY_GRADIENT | {"dual_clip", "value_coef", "value_clip"},
    "cross_entropy": set[str](),
    "gspo": _POLICY_GRADIENT,
    "cispo": _POLICY_GRADIENT,
    **PAIR_LOSSES,
}


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Sums over the N tokens of a micro-batch.

    Attributes:
        loss: Scalar with gradient, weighted.
        sums: Scalars without gradient by name; divided by the batch's token count they are metrics.
        maxima: Scalars without gradient by name; their maximum over the micro-batches is a metric.
        sequence_sums: Scalars without gradient by name; divided by the batch's sequences with loss they are metrics.
    """

    loss: torch.Tensor
    sums: dict[str, torch.Tensor]
    maxima: dict[str, torch.Tensor]
    sequence_sums: dict[str, torch.Tensor] = field(default_factory=dict)

    def plus(self, loss: torch.Tensor, sums: dict[str, torch.Tensor]) -> TokenLoss:
        """With another term and its sums."""
        return replace(self, loss=self.loss + loss, sums=self.sums | sums)


LossFunction = Callable[[torch.Tensor, torch.Tensor, Inputs], TokenLoss]
"""From log-probabilities and entropies, both [N], under the current weights, and what the micro-batch carries."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss, and what it wants computed.

    Attributes:
        function: The loss itself.
        of_rollouts: Log-probabilities are those of the rollouts' temperature, else of temperature 1.
        entropy_gradient: Entropies carry a gradient.
        needs_reference: Samples must carry log-probabilities under the reference policy.
        value_term: What the value function adds; None where there is none.
        of_pairs: Rows of a micro-batch are whole pairs.
    """

    function: LossFunction
    of_rollouts: bool
    entropy_gradient: bool = False
    needs_reference: bool = False
    value_term: ValueTerm | None = None
    of_pairs: bool = False

    def check(self, samples: Sequence[Sample]) -> None:
        """Further log-probabilities belong to every token of every sample, or to none.

        Raises:
            ValueError: They are missing from some samples or tokens, or from all and the loss needs them; or values
                or returns are, and the loss has a value term.
        """
        if self.value_term is not None:
            check_values(samples)
        _check_rows("proximal", samples, [sample.proximal_logprobs for sample in samples])
        _check_rows("reference", samples, [sample.reference_logprobs for sample in samples])
        if self.needs_reference and not all(sample.reference_logprobs for sample in samples):
            raise ValueError(
                "the loss compares with the reference policy, but the samples carry no reference log-probabilities"
            )


def build_loss(spec: LossSpec) -> Loss:
    """The loss that a spec names.

    Raises:
        ConfigError: The name or a parameter is unknown, a number is out of its range, or two exclude each other.
    """
    if spec.name not in _PARAMETERS:
        raise ConfigError(f"Learner 'torch' has no loss {spec.name!r}; it has {', '.join(_PARAMETERS)}.")
    if unknown := sorted(set(spec.parameters) - _PARAMETERS[spec.name]):
        names = ", ".join(sorted(_PARAMETERS[spec.name])) or "none"
        raise ConfigError(f"Loss {spec.name!r} has no parameter {', '.join(unknown)}; it has {names}.")
    if spec.name == "cross_entropy":
        return Loss(_cross_entropy, of_rollouts=False)
    if spec.name in PAIR_LOSSES:
        return _of_pairs(build_pair_loss(spec.name, spec.parameters), referred=needs_reference(spec.parameters))
    k1, k3, entropy_coef = _regularizers(spec.parameters)
    objective, weigh = build_objective(spec.name, spec.parameters), build_weights(spec.parameters)
    value_term = build_value_term(spec.parameters)

    def function(logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
        return _policy_loss(logprobs, entropy, inputs, objective, weigh, (k1, k3), entropy_coef)

    return Loss(
        function,
        of_rollouts=True,
        entropy_gradient=entropy_coef > 0,
        needs_reference=k1 > 0 or k3 > 0,
        value_term=value_term,
    )


def _regularizers(parameters: Mapping[str, float]) -> tuple[float, float, float]:
    k1, k3, entropy = numbers = tuple(parameters.get(name, 0.0) for name in ("kl_k1", "kl_k3", "entropy_coef"))
    for name, number in zip(("kl_k1", "kl_k3", "entropy_coef"), numbers, strict=True):
        if not number >= 0:
            raise ConfigError(f"{name} must be 0 (off) or more, not {number}.")
    if k1 and k3:
        raise ConfigError("Of kl_k1 and kl_k3 only one may be above 0.")
    return k1, k3, entropy


def _cross_entropy(logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
    del entropy
    values = logprobs if inputs.weights is None else inputs.weights * logprobs
    return TokenLoss(loss=-values.sum(), sums={}, maxima={})


def _of_pairs(pair_loss: PairLoss, *, referred: bool) -> Loss:
    def function(logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
        del entropy
        loss, sums = pair_loss(logprobs, inputs)
        return TokenLoss(loss=loss, sums=sums, maxima={})

    return Loss(function, of_rollouts=False, needs_reference=referred, of_pairs=True)


def _policy_loss(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    inputs: Inputs,
    objective_of: ObjectiveFunction,
    weigh: WeightFunction | None,
    kl_coefs: tuple[float, float],
    entropy_coef: float,
) -> TokenLoss:
    """-(w (objective - kl_coef KL) + entropy_coef H), each token times its weight in the batch.

    Three policies: the sampler, from which w corrects (see `importance`; 1 without `weigh`); the anchor, around which
    steps are clipped; the current one. Decoupled PPO: AReaL, arXiv 2505.24298, section 5.2, after Hilton et al., arXiv
    2110.00641. The anchor is computed by the learner: an engine's log-probabilities differ by rounding, which alone is
    more than the narrow clips of GSPO. Where the samples carry no proximal log-probabilities, the current weights are
    the anchor: the ratio is 1, and its gradient that of logp.

    w also weighs the KL term, an expectation over what was sampled; the entropy is exact wherever a token was sampled.
    """
    current = logprobs.detach()
    anchor = current if inputs.proximal_logprobs is None else inputs.proximal_logprobs
    importance = None if weigh is None else weigh(anchor, inputs)
    weights = None if importance is None else importance.weights
    values, sums = objective_of(logprobs, anchor, inputs, weights)
    mismatch, maxima = _mismatch(current, inputs.old_logprobs)
    sums = mismatch | sums
    if inputs.proximal_logprobs is not None:
        sums["kl_proximal"] = _k3(anchor, current).sum()
    if inputs.reference_logprobs is not None:
        sums["kl_reference"] = _k3(current, inputs.reference_logprobs).sum()
        if any(kl_coefs):
            kl = _kl_term(logprobs, anchor, inputs.reference_logprobs, kl_coefs)
            values = values - (kl if weights is None else weights * kl)
    sequence_sums: dict[str, torch.Tensor] = {}
    if importance is not None:
        sums, sequence_sums = sums | importance.sums, importance.sequence_sums
    if entropy_coef:
        values = values + entropy_coef * entropy
    if inputs.weights is not None:
        values = inputs.weights * values
    return TokenLoss(loss=-values.sum(), sums=sums, maxima=maxima, sequence_sums=sequence_sums)


def _kl_term(
    logprobs: torch.Tensor, anchor: torch.Tensor, reference: torch.Tensor, coefs: tuple[float, float]
) -> torch.Tensor:
    """[N] coefficient times an estimate of KL(current || reference), whose gradient is that of a divergence.

    k3 is GRPO's term: exp(reference - logp) - 1 - (reference - logp) (DeepSeekMath, arXiv 2402.03300, equation 4).
    Differentiated as it stands, its expected gradient on policy is that of KL(reference || current), which has the
    same minimum. k1 = logp - reference is multiplied by the ratio r to the anchor, because the expected gradient of k1
    by itself is 0; that of r k1 is the gradient of KL(current || reference), also off policy (arXiv 2505.17508 and
    2510.01555).
    """
    k1, k3 = coefs
    return k1 * bounded_ratio(logprobs - anchor) * (logprobs - reference) if k1 else k3 * _k3(logprobs, reference)


def _k3(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    difference = reference - logprobs
    return bounded_ratio(difference) - 1.0 - difference


@torch.no_grad()
def _mismatch(logprobs: torch.Tensor, sampler: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Sums and maxima of how far the current policy is from the one that sampled.

    The KL estimate is k3 of Schulman, "Approximating KL divergence" (2020), for KL(sampler || current): r - 1 - log r.
    """
    difference = logprobs - sampler
    apart = difference.abs()
    kl = bounded_ratio(difference) - 1.0 - difference
    maxima = {"logprob_difference_max": apart.max()} if apart.numel() else {}
    return {"logprob_difference_mean": apart.sum(), "kl": kl.sum()}, maxima


def _check_rows(kind: str, samples: Sequence[Sample], rows: Sequence[Sequence[float]]) -> None:
    carrying = sum(map(bool, rows))
    if 0 < carrying < len(samples):
        raise ValueError(f"only {carrying} of {len(samples)} samples carry {kind} log-probabilities")
    for sample, row in zip(samples, rows, strict=True):
        if row and len(row) != len(sample.token_ids):
            raise ValueError(f"a sample has {len(row)} {kind} log-probabilities for {len(sample.token_ids)} tokens")
