"""Losses on pairs of attempts: DPO and its variants.

With h = log pi(chosen)/ref(chosen) - log pi(rejected)/ref(rejected), where log pi is the sum over the tokens that carry
loss (so replies of tools count for nothing), and beta the strength of the pull towards the reference:

- `dpo`: -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), with the share e of labels that may be wrong as
  `label_smoothing`. Rafailov et al., "Direct Preference Optimization", arXiv 2305.18290, equation 7; e: Mitchell, "A
  note on DPO with noisy preferences" (2023, https://ericmitchell.ai/cdpo.pdf).
- `dpo_hinge`: max(0, 1 - beta h), the "hinge-norm" loss of Liu et al., "Statistical Rejection Sampling Improves
  Preference Optimization", arXiv 2309.06657, section 3.
- `dpo_ipo`: (h - 1 / (2 beta))^2. Azar et al., "A General Theoretical Paradigm", arXiv 2310.12036, equation 17; on
  sums as there. TRL divides each sum by its number of tokens first.

`reference_free` 1 takes every sequence as equally likely under the reference, so its log-probabilities are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
import torch.nn.functional as functional

from finqa_cli.errors import ConfigError
from finqa_plugins.learners.torch.forward import Inputs

_SHARED = {"beta", "reference_free"}

PAIR_LOSSES: Mapping[str, set[str]] = MappingProxyType(
    {"dpo": _SHARED | {"label_smoothing"}, "dpo_hinge": _SHARED, "dpo_ipo": _SHARED}
)
"""Names of the losses on pairs, and the parameters of each."""

TIE = 1e-4
"""Nats: a difference within it is rounding of the forward passes, and counts as half right."""

PairLoss = Callable[[torch.Tensor, Inputs], tuple[torch.Tensor, dict[str, torch.Tensor]]]
"""From log-probabilities [N] under the current weights: the sum of the pairs' losses, each times the weight of its
samples, with gradient; and so weighted sums of what is to be known about pairs, by name, without."""


def build_pair_loss(name: str, parameters: Mapping[str, float]) -> PairLoss:
    """The loss of this name. Rows of a micro-batch are whole pairs, one after the other: the sequences of the chosen
    attempt, whose advantages are above 0, then those of the rejected one, whose are below.

    Raises:
        ConfigError: A number is out of its range.
    """
    beta, smoothing = parameters.get("beta", 0.0), parameters.get("label_smoothing", 0.0)
    if not beta > 0:
        raise ConfigError(f"beta must be above 0, not {beta}.")
    if not 0 <= smoothing < 0.5:
        raise ConfigError(f"label_smoothing must lie in [0, 0.5), not {smoothing}: at 0.5 nothing is preferred.")
    form = _forms(beta, smoothing)[name]
    free = bool(parameters.get("reference_free"))

    def function(logprobs: torch.Tensor, inputs: Inputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return _pair_loss(logprobs, inputs, form, beta, free)

    return function


def needs_reference(parameters: Mapping[str, float]) -> bool:
    """Whether samples must carry log-probabilities under the reference policy."""
    return not parameters.get("reference_free")


def _forms(beta: float, smoothing: float) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """[P] to [P]: from h to the loss."""
    return {
        "dpo": lambda h: (
            -(1.0 - smoothing) * functional.logsigmoid(beta * h) - smoothing * functional.logsigmoid(-beta * h)
        ),
        "dpo_hinge": lambda h: torch.relu(1.0 - beta * h),
        "dpo_ipo": lambda h: (h - 1.0 / (2.0 * beta)) ** 2,
    }


def _pair_loss(
    logprobs: torch.Tensor,
    inputs: Inputs,
    form: Callable[[torch.Tensor], torch.Tensor],
    beta: float,
    free: bool,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    ratios = logprobs if free or inputs.reference_logprobs is None else logprobs - inputs.reference_logprobs
    lengths = torch.tensor(inputs.lengths, device=logprobs.device)
    starts = lengths.cumsum(0) - lengths
    chosen_rows = inputs.advantages[starts] > 0
    pair_of_row, pairs = _pairs(chosen_rows)
    rows = torch.stack([part.sum() for part in torch.split(ratios, list(inputs.lengths))])
    nothing = rows.new_zeros(pairs)
    chosen = nothing.index_add(0, pair_of_row[chosen_rows], rows[chosen_rows])
    rejected = nothing.index_add(0, pair_of_row[~chosen_rows], rows[~chosen_rows])
    losses = form(chosen - rejected)
    weights = torch.ones_like(losses)
    if inputs.weights is not None:
        weights = weights.index_copy(0, pair_of_row, inputs.weights[starts])
    with torch.no_grad():
        difference = chosen - rejected
        tie = difference.abs() <= TIE
        about = {
            "preference_accuracy": torch.where(tie, 0.5, (difference > 0).to(difference.dtype)),
            "reward_margin": beta * difference,
            "reward_chosen": beta * chosen,
            "reward_rejected": beta * rejected,
        }
        sums = {name: (weights * values).sum() for name, values in about.items()}
    return (weights * losses).sum(), sums


def _pairs(chosen_rows: torch.Tensor) -> tuple[torch.Tensor, int]:
    """[B] which pair each row is of, and how many there are.

    Raises:
        ValueError: The rows are not whole pairs.
    """
    if not bool(chosen_rows[0]) or bool(chosen_rows[-1]):
        raise ValueError("the rows of a micro-batch are not whole pairs, each with its chosen rows first")
    opens = chosen_rows.clone()
    opens[1:] &= ~chosen_rows[:-1]
    numbers = opens.long().cumsum(0) - 1
    return numbers, int(numbers[-1]) + 1
