"""Log-probabilities of the tokens that carry loss, and of no others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from finqa_cli.types import Sample

_LOGITS_PER_CHUNK = 2**26
"""Logits that may exist at once (256 MiB in float32); more are computed in chunks and again in the backward pass."""

_SHORTEST_PREFIX = 32


@dataclass(frozen=True, slots=True)
class Inputs:
    """A micro-batch of B rows with a common beginning of P ids; N positions carry loss, in row-major order.

    Attributes:
        prefix: [1, P] int64, or None when no beginning is shared.
        token_ids: [B, L] int64, what follows the prefix, padded on the right with id 0: attention is causal, so no
            real position ever sees the padding.
        positions: [N] int64, flat index into B x L of the position that predicts each token.
        targets: [N] int64, the tokens.
        old_logprobs: [N] float32, the sampler's.
        advantages: [N] float32.
        proximal_logprobs: [N] float32, or None when the samples carry none.
        reference_logprobs: [N] float32, or None when the samples carry none.
        values: [N] float32, of the value function before the first step, or None when the samples carry none.
        returns: [N] float32, or None when the samples carry none.
        weights: [N] float32, or None when each is 1.
        lengths: B numbers that add up to N: how many of the tokens are in each row.
    """

    prefix: torch.Tensor | None
    token_ids: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    proximal_logprobs: torch.Tensor | None
    lengths: tuple[int, ...]
    reference_logprobs: torch.Tensor | None = None
    values: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    weights: torch.Tensor | None = None


def collate(samples: Sequence[Sample], device: torch.device, *, share_prefix: bool = False) -> Inputs:
    """Tensors of a micro-batch of samples with loss. The last loss token and what follows it are cut off: they
    predict nothing that is needed.

    Args:
        samples: Each has at least one token with loss; all of them carry proximal log-probabilities, or none, and
            likewise those of the reference, values and returns.
        device: Where the tensors go.
        share_prefix: Take ids that all rows begin with out of the rows, as far as none of them predicts a loss token.
    """
    places = [[place for place, masked in enumerate(sample.loss_mask) if masked] for sample in samples]
    shared = _shared_prefix(samples, min(chosen[0] for chosen in places) - 1) if share_prefix else 0
    width = max(chosen[-1] for chosen in places) - shared
    rows: list[list[int]] = []
    positions: list[int] = []
    targets: list[int] = []
    old_logprobs: list[float] = []
    advantages: list[float] = []
    proximal: list[float] = []
    reference: list[float] = []
    values: list[float] = []
    returns: list[float] = []
    weights: list[float] = []
    for row, (sample, chosen) in enumerate(zip(samples, places, strict=True)):
        ids = list(sample.token_ids[shared : chosen[-1]])
        rows.append(ids + [0] * (width - len(ids)))
        positions.extend(row * width + place - 1 - shared for place in chosen)
        targets.extend(sample.token_ids[place] for place in chosen)
        old_logprobs.extend(sample.logprobs[place] for place in chosen)
        advantages.extend(sample.advantages[place] for place in chosen)
        proximal.extend(sample.proximal_logprobs[place] for place in chosen if sample.proximal_logprobs)
        reference.extend(sample.reference_logprobs[place] for place in chosen if sample.reference_logprobs)
        values.extend(sample.values[place] for place in chosen if sample.values)
        returns.extend(sample.returns[place] for place in chosen if sample.returns)
        weights.extend([sample.weight] * len(chosen))
    numbers = functools.partial(torch.tensor, dtype=torch.float32)
    return Inputs(
        prefix=torch.tensor([samples[0].token_ids[:shared]], dtype=torch.long).to(device) if shared else None,
        token_ids=torch.tensor(rows, dtype=torch.long).to(device),
        positions=torch.tensor(positions, dtype=torch.long).to(device),
        targets=torch.tensor(targets, dtype=torch.long).to(device),
        old_logprobs=numbers(old_logprobs).to(device),
        advantages=numbers(advantages).to(device),
        proximal_logprobs=numbers(proximal).to(device) if proximal else None,
        lengths=tuple(map(len, places)),
        reference_logprobs=numbers(reference).to(device) if reference else None,
        values=numbers(values).to(device) if values else None,
        returns=numbers(returns).to(device) if returns else None,
        weights=numbers(weights).to(device) if any(weight != 1 for weight in weights) else None,
    )


def predicting_states(causal: Any, inputs: Inputs) -> torch.Tensor:
    """[N, H] last hidden states that predict the targets.

    Rows get no attention mask: with right padding and causal attention it would change nothing, and without it
    PyTorch uses its fastest kernel.
    """
    return _hidden_states(causal, inputs).flatten(0, 1).index_select(0, inputs.positions)


def state_logprobs(
    causal: Any, states: torch.Tensor, targets: torch.Tensor, temperature: float, *, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of each target at the temperature, and entropy [N] of the state [N, H] that predicts it.

    The head runs on these states only, so the full [B, L, V] logits never exist; with the entropy's gradient as
    without it.
    """
    head = causal.get_output_embeddings()
    rows = max(1, _LOGITS_PER_CHUNK // head.weight.shape[0])
    if states.shape[0] <= rows:
        return _chunk_logprobs(head, states, targets, temperature, entropy_gradient)
    parts = [
        checkpoint(_chunk_logprobs, head, part, ids, temperature, entropy_gradient, use_reentrant=False)
        for part, ids in zip(torch.split(states, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _chunk_logprobs(
    head: Any, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, entropy_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    normalised = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(normalised.exp() * normalised).sum(dim=-1)
    return normalised.gather(1, targets[:, None])[:, 0], entropy


def _hidden_states(causal: Any, inputs: Inputs) -> torch.Tensor:
    """[B, L, H]. A shared prefix runs once; its keys and values, with their gradients, serve every row."""
    if inputs.prefix is None:
        output = causal.base_model(input_ids=inputs.token_ids, use_cache=False)
    else:
        from transformers import DynamicCache

        cache = DynamicCache(config=causal.config)
        causal.base_model(input_ids=inputs.prefix, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(inputs.token_ids.shape[0])
        output = causal.base_model(input_ids=inputs.token_ids, past_key_values=cache, use_cache=True)
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


def _shared_prefix(samples: Sequence[Sample], limit: int) -> int:
    """How many ids all samples begin with, at most `limit`; 0 when too few to be worth a forward of their own."""
    if len(samples) < 2 or limit < _SHORTEST_PREFIX:
        return 0
    first, last = min(sample.token_ids for sample in samples), max(sample.token_ids for sample in samples)
    shared = 0
    while shared < limit and first[shared] == last[shared]:
        shared += 1
    return shared if shared >= _SHORTEST_PREFIX else 0
