"""The function of each loss, and the functions of imitation and of preference pairs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as functional

from finqa_cli.algorithms.losses import CrossEntropyLoss, PolicyGradientLoss
from finqa_cli.algorithms.pair_batches import PreferenceLoss
from finqa_cli.errors import ConfigError
from finqa_cli.types import Loss, Sample
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.policy_loss import policy_gradient
from finqa_plugins.learners.torch.step_metrics import TokenLoss

LossFunction = Callable[[Any, torch.Tensor, torch.Tensor, Inputs], TokenLoss]
"""Computes the sum of the token losses, each times its weight in `Inputs.weights`, from the loss, the log-probabilities
[N] and entropies [N] under the current weights, and the micro-batch."""

TIE = 1e-4
"""Nats: a smaller difference is rounding of the forward passes, and counts as half right."""


def cross_entropy(loss: CrossEntropyLoss, logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
    """The weighted sum of -log p over the tokens (nats)."""
    return TokenLoss(loss=-(inputs.weights * logprobs).sum())


def preference(loss: PreferenceLoss, logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
    """The sum of the losses of pairs, each times the weight of its samples, with weighted sums of their measures.

    Rows of the micro-batch are whole pairs, one after the other: the sequences of the chosen attempt, whose advantages
    are above 0, then those of the rejected one, whose are below.

    With h = log pi(chosen)/ref(chosen) - log pi(rejected)/ref(rejected), where log pi is the sum over the tokens with
    loss (so not over replies of tools), and beta the strength of the regularization towards the reference:

    - `sigmoid`: -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), with the share e of labels that may be wrong as
      `label_smoothing`. Rafailov et al., "Direct Preference Optimization", arXiv 2305.18290, equation 7; e: Mitchell,
      "A note on DPO with noisy preferences" (2023, https://ericmitchell.ai/cdpo.pdf).
    - `hinge`: max(0, 1 - beta h), the "hinge-norm" loss of Liu et al., "Statistical Rejection Sampling Improves
      Preference Optimization", arXiv 2309.06657, section 3.
    - `ipo`: (h - 1 / (2 beta))^2. Azar et al., "A General Theoretical Paradigm", arXiv 2310.12036, equation 17; with
      sums over tokens as there. TRL divides each sum by its number of tokens first.

    Raises:
        ValueError: The rows are not whole pairs.
    """
    reference = None if loss.reference_free else inputs.reference_logprobs
    ratios = logprobs if reference is None else logprobs - reference
    lengths = torch.tensor(inputs.lengths, device=logprobs.device)
    starts = lengths.cumsum(0) - lengths
    chosen_rows = inputs.advantages[starts] > 0
    pair_of_row, pairs = _pairs(chosen_rows)
    rows = torch.stack([part.sum() for part in inputs.by_sequence(ratios)])
    nothing = rows.new_zeros(pairs)
    chosen = nothing.index_add(0, pair_of_row[chosen_rows], rows[chosen_rows])
    rejected = nothing.index_add(0, pair_of_row[~chosen_rows], rows[~chosen_rows])
    losses = _form(loss, chosen - rejected)
    token_weights = torch.as_tensor(inputs.weights, dtype=losses.dtype, device=losses.device).expand(len(logprobs))
    weights = torch.ones_like(losses).index_copy(0, pair_of_row, token_weights[starts])
    with torch.no_grad():
        difference = chosen - rejected
        tie = difference.abs() <= TIE
        about = {
            "preference_accuracy": torch.where(tie, 0.5, (difference > 0).to(difference.dtype)),
            "reward_margin": loss.beta * difference,
            "reward_chosen": loss.beta * chosen,
            "reward_rejected": loss.beta * rejected,
        }
        sums = {name: (weights * values).sum() for name, values in about.items()}
    return TokenLoss(loss=(weights * losses).sum(), sums=sums)


FUNCTIONS: Mapping[type[Loss], LossFunction] = MappingProxyType(
    {CrossEntropyLoss: cross_entropy, PolicyGradientLoss: policy_gradient, PreferenceLoss: preference}
)


def find_function(loss: Loss) -> LossFunction:
    """The function of a loss: the one that its class names for `torch`, else the learner's own.

    Raises:
        ConfigError: There is no function, or the class names one that cannot be imported.
    """
    kind = type(loss)
    if loss.needs_values and not isinstance(loss, PolicyGradientLoss):
        raise ConfigError(f"{kind.__name__} needs values, whose loss learner 'torch' has for PolicyGradientLoss only.")
    if target := kind.functions.get("torch"):
        module, _, name = target.partition(":")
        try:
            found: LossFunction = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{kind.__name__} names {target!r} as its function, which fails: {error}.") from error
        return found
    if kind not in FUNCTIONS:
        known = ", ".join(one.__name__ for one in FUNCTIONS)
        raise ConfigError(
            f"Learner 'torch' has no function for {kind.__name__}; it has those for {known}, and takes the one that "
            "the class names as functions['torch']."
        )
    return FUNCTIONS[kind]


def check_samples(loss: Loss, samples: Sequence[Sample]) -> None:
    """Checks that all samples or none carry each optional row, and that rows are as long as their sample.

    Raises:
        ValueError: Rows are missing from some samples, of another length, or missing from all although the loss needs
            them.
    """
    if loss.needs_values:
        for sample in samples:
            for kind, row in (("values", sample.values), ("returns", sample.returns)):
                if row is None or len(row) != len(sample.token_ids):
                    found = 0 if row is None else len(row)
                    raise ValueError(f"the loss has a value term, but a sample has {found} {kind} for its tokens")
    for kind in ("proximal", "reference"):
        rows = [getattr(sample, f"{kind}_logprobs") for sample in samples]
        carrying = sum(row is not None for row in rows)
        if 0 < carrying < len(samples):
            raise ValueError(f"only {carrying} of {len(samples)} samples carry {kind} log-probabilities")
        for sample, row in zip(samples, rows, strict=True):
            if row is not None and len(row) != len(sample.token_ids):
                raise ValueError(f"a sample has {len(row)} {kind} log-probabilities for {len(sample.token_ids)} tokens")
    if loss.needs_reference and not all(sample.reference_logprobs is not None for sample in samples):
        raise ValueError(
            "the loss compares with the reference policy, but the samples carry no reference log-probabilities"
        )


def _form(loss: PreferenceLoss, h: torch.Tensor) -> torch.Tensor:
    """[P] the loss of each pair from h [P]."""
    beta, smoothing = loss.beta, loss.label_smoothing
    if loss.form == "hinge":
        return torch.relu(1.0 - beta * h)
    if loss.form == "ipo":
        return (h - 1.0 / (2.0 * beta)) ** 2
    return -(1.0 - smoothing) * functional.logsigmoid(beta * h) - smoothing * functional.logsigmoid(-beta * h)


def _pairs(chosen_rows: torch.Tensor) -> tuple[torch.Tensor, int]:
    """[B] the pair of each row, and the number of pairs.

    Raises:
        ValueError: The rows are not whole pairs.
    """
    if not bool(chosen_rows[0]) or bool(chosen_rows[-1]):
        raise ValueError("the rows of a micro-batch are not whole pairs, each with its chosen rows first")
    opens = chosen_rows.clone()
    opens[1:] &= ~chosen_rows[:-1]
    numbers = opens.long().cumsum(0) - 1
    return numbers, int(numbers[-1]) + 1
