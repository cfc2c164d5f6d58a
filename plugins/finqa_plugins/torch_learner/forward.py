"""Log-probabilities of the tokens that carry loss, and of no others."""

from __future__ import annotations

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


def collate(samples: Sequence[Sample], device: torch.device, *, share_prefix: bool = False) -> Inputs:
    """Tensors of a micro-batch of samples with loss. The last loss token and what follows it are cut off: they
    predict nothing that is needed.

    Args:
        samples: Each has at least one token with loss; all of them carry proximal log-probabilities, or none.
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
    for row, (sample, chosen) in enumerate(zip(samples, places, strict=True)):
        ids = list(sample.token_ids[shared : chosen[-1]])
        rows.append(ids + [0] * (width - len(ids)))
        positions.extend(row * width + place - 1 - shared for place in chosen)
        targets.extend(sample.token_ids[place] for place in chosen)
        old_logprobs.extend(sample.logprobs[place] for place in chosen)
        advantages.extend(sample.advantages[place] for place in chosen)
        proximal.extend(sample.proximal_logprobs[place] for place in chosen if sample.proximal_logprobs)
    prefix = torch.tensor([samples[0].token_ids[:shared]], dtype=torch.long).to(device) if shared else None
    return Inputs(
        prefix=prefix,
        token_ids=torch.tensor(rows, dtype=torch.long).to(device),
        positions=torch.tensor(positions, dtype=torch.long).to(device),
        targets=torch.tensor(targets, dtype=torch.long).to(device),
        old_logprobs=torch.tensor(old_logprobs, dtype=torch.float32).to(device),
        advantages=torch.tensor(advantages, dtype=torch.float32).to(device),
        proximal_logprobs=torch.tensor(proximal, dtype=torch.float32).to(device) if proximal else None,
        lengths=tuple(map(len, places)),
    )


def token_logprobs(causal: Any, inputs: Inputs, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of each target at the temperature, and entropy [N] of what predicted it (no gradient).

    Rows get no attention mask: with right padding and causal attention it would change nothing, and without it
    PyTorch uses its fastest kernel. The head runs on the N hidden states that predict loss tokens only, so the
    full [B, L, V] logits never exist.
    """
    hidden = _hidden_states(causal, inputs)
    chosen = hidden.flatten(0, 1).index_select(0, inputs.positions)
    head = causal.get_output_embeddings()
    rows = max(1, _LOGITS_PER_CHUNK // head.weight.shape[0])
    if chosen.shape[0] <= rows:
        return _chunk_logprobs(head, chosen, inputs.targets, temperature)
    parts = [
        checkpoint(_chunk_logprobs, head, part, targets, temperature, use_reentrant=False)
        for part, targets in zip(torch.split(chosen, rows), torch.split(inputs.targets, rows), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _chunk_logprobs(
    head: Any, hidden: torch.Tensor, targets: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    normalised = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
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
