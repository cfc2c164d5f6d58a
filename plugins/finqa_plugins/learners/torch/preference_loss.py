"""Losses on pairs of attempts: DPO and its variants. See `PreferenceLoss`.

With h = log pi(chosen)/ref(chosen) - log pi(rejected)/ref(rejected), where log pi is the sum over the tokens that carry
loss (so replies of tools count for nothing), and beta the strength of the pull towards the reference:

- `sigmoid`: -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), with the share e of labels that may be wrong as
  `label_smoothing`. Rafailov et al., "Direct Preference Optimization", arXiv 2305.18290, equation 7; e: Mitchell, "A
  note on DPO with noisy preferences" (2023, https://ericmitchell.ai/cdpo.pdf).
- `hinge`: max(0, 1 - beta h), the "hinge-norm" loss of Liu et al., "Statistical Rejection Sampling Improves
  Preference Optimization", arXiv 2309.06657, section 3.
- `ipo`: (h - 1 / (2 beta))^2. Azar et al., "A General Theoretical Paradigm", arXiv 2310.12036, equation 17; on
  sums as there. TRL divides each sum by its number of tokens first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from finqa_cli.algorithms.pair_batches import PreferenceLoss
from finqa_plugins.learners.torch.forward import Inputs
from finqa_plugins.learners.torch.step_metrics import TokenLoss

TIE = 1e-4
"""Nats: a difference within it is rounding of the forward passes, and counts as half right."""


def preference(loss: PreferenceLoss, logprobs: torch.Tensor, entropy: torch.Tensor, inputs: Inputs) -> TokenLoss:
    """The sum of the pairs' losses, each times the weight of its samples, and so weighted sums of what they are.

    Rows of the micro-batch are whole pairs, one after the other: the sequences of the chosen attempt, whose advantages
    are above 0, then those of the rejected one, whose are below.

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


def _form(loss: PreferenceLoss, h: torch.Tensor) -> torch.Tensor:
    """[P] the loss of each pair from h [P]."""
    beta, smoothing = loss.beta, loss.label_smoothing
    if loss.form == "hinge":
        return torch.relu(1.0 - beta * h)
    if loss.form == "ipo":
        return (h - 1.0 / (2.0 * beta)) ** 2
    return -(1.0 - smoothing) * functional.logsigmoid(beta * h) - smoothing * functional.logsigmoid(-beta * h)


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
