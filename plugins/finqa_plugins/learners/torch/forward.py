"""Log-probabilities of the tokens that carry loss, and of no others."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from finqa_cli.types import Sample
from finqa_plugins.learners.torch.head import wide_logits
from finqa_plugins.learners.torch.packed_row import Segments, pack_row

_LOGITS_PER_CHUNK = 2**26
"""Logits that may exist at once (256 MiB in float32); more are computed in chunks and again in the backward pass."""

_TOKENS_PER_SCORING_FORWARD = 16_384


@dataclass(frozen=True, slots=True)
class Inputs:
    """A micro-batch of B sequences; N positions carry loss, sequence by sequence.

    Attributes:
        token_ids: [R, L] int64. Packed: all sequences in one row, R = 1. Otherwise one each, R = B, padded on the right
            with id 0: attention is causal, so no real position ever sees the padding.
        positions: [N] int64, flat index into R x L of the position that predicts each token; sequences that begin
            alike may have some in common.
        targets: [N] int64, the tokens.
        old_logprobs: [N] float32, the sampler's.
        advantages: [N] float32.
        proximal_logprobs: [N] float32, or None when the samples carry none.
        reference_logprobs: [N] float32, or None when the samples carry none.
        values: [N] float32, of the value function before the first step, or None when the samples carry none.
        returns: [N] float32, or None when the samples carry none.
        weights: [N] float32, or None when each is 1.
        lengths: B numbers that add up to N: how many of the tokens are in each sequence.
        position_ids: [1, L] int64 of a packed row, else None.
        segments: What sees what in a packed row, else None.
    """

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
    position_ids: torch.Tensor | None = None
    segments: Segments | None = None


def collate(samples: Sequence[Sample], device: torch.device, *, packed: bool = False) -> Inputs:
    """Tensors of a micro-batch of samples with loss. The last loss token and what follows it are cut off: they
    predict nothing that is needed.

    Args:
        samples: Each has at least one token with loss; all of them carry proximal log-probabilities, or none, and
            likewise those of the reference, values and returns.
        device: Where the tensors go.
        packed: All in one row without padding, and what they begin with alike only once; for models that
            `use_packed_rows` found to take it.
    """
    chosen = [[place for place, masked in enumerate(sample.loss_mask) if masked] for sample in samples]
    sequences = [sample.token_ids[: places[-1]] for sample, places in zip(samples, chosen, strict=True)]
    row = pack_row(sequences) if packed else None
    width = max(map(len, sequences))
    where = row.places if row else [range(number * width, (number + 1) * width) for number in range(len(sequences))]
    tensor = functools.partial(torch.tensor, device=device)

    def carried(name: str) -> torch.Tensor:
        """[N] of what the samples carry by this name; empty when they do not."""
        rows = zip((getattr(sample, name) for sample in samples), chosen, strict=True)
        return tensor([numbers[place] for numbers, places in rows if numbers for place in places], dtype=torch.float32)

    def optional(name: str) -> torch.Tensor | None:
        found = carried(name)
        return found if len(found) else None

    weights = [sample.weight for sample, places in zip(samples, chosen, strict=True) for _ in places]
    ids = [row.token_ids] if row else [[*sequence, *[0] * (width - len(sequence))] for sequence in sequences]
    pairs = list(zip(samples, where, chosen, strict=True))
    return Inputs(
        token_ids=tensor(ids, dtype=torch.long),
        positions=tensor([indices[place - 1] for _, indices, places in pairs for place in places], dtype=torch.long),
        targets=tensor([sample.token_ids[place] for sample, _, places in pairs for place in places], dtype=torch.long),
        old_logprobs=carried("logprobs"),
        advantages=carried("advantages"),
        proximal_logprobs=optional("proximal_logprobs"),
        lengths=tuple(map(len, chosen)),
        reference_logprobs=optional("reference_logprobs"),
        values=optional("values"),
        returns=optional("returns"),
        weights=tensor(weights, dtype=torch.float32) if any(weight != 1 for weight in weights) else None,
        position_ids=tensor([row.position_ids], dtype=torch.long) if row else None,
        segments=row.segments if row else None,
    )


def scoring_batches(samples: Sequence[Sample], *, packed: bool, most: int = 0) -> Iterator[list[int]]:
    """Indices of the samples with loss, in forwards of at most 16,384 tokens with padding, but for a longer sample.

    Packed, sequences that begin alike are neighbours; padded, sequences of like length. `most` above 0: a lower limit.
    """
    largest = min(most or _TOKENS_PER_SCORING_FORWARD, _TOKENS_PER_SCORING_FORWARD)
    bearing = [index for index, sample in enumerate(samples) if any(sample.loss_mask)]
    order = sorted(bearing, key=lambda index: samples[index].token_ids if packed else -len(samples[index].token_ids))
    part: list[int] = []
    used = 0
    for index in order:
        length = len(samples[index].token_ids)
        # padded, the first sample of a part is its longest
        cost = length if packed or not part else len(samples[part[0]].token_ids)
        if part and used + cost > largest:
            yield part
            part, used, cost = [], 0, length
        part.append(index)
        used += cost
    if part:
        yield part


def predicting_states(causal: Any, inputs: Inputs) -> torch.Tensor:
    """[N, H] last hidden states that predict the targets.

    Padded rows get no attention mask: with right padding and causal attention it would change nothing, and without it
    PyTorch uses its fastest kernel.
    """
    packed = {} if inputs.segments is None else {"position_ids": inputs.position_ids, "segments": inputs.segments}
    hidden: torch.Tensor = causal.base_model(input_ids=inputs.token_ids, use_cache=False, **packed).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, inputs.positions)


def state_logprobs(
    causal: Any,
    states: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    wide: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of each target at the temperature, and entropy [N] of the state [N, H] that predicts it.

    The head runs on these states only, so the full [B, L, V] logits never exist; with the entropy's gradient as
    without it. `wide` logits are float32 whatever the head computes in (see `head`).
    """
    head = causal.get_output_embeddings()
    rows = max(1, _LOGITS_PER_CHUNK // head.weight.shape[0])
    if states.shape[0] <= rows:
        return _chunk_logprobs(head, states, targets, temperature, entropy_gradient, wide)
    parts = [
        checkpoint(_chunk_logprobs, head, part, ids, temperature, entropy_gradient, wide, use_reentrant=False)
        for part, ids in zip(torch.split(states, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _chunk_logprobs(
    head: Any, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, entropy_gradient: bool, wide: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = wide_logits(head, hidden) if wide else head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        logits = logits / temperature
    normalised = torch.log_softmax(logits, dim=-1)
    del logits  # so that no more than two tensors of this size exist at once where nothing carries a gradient
    if entropy_gradient and torch.is_grad_enabled():
        entropy = -(normalised.exp() * normalised).sum(dim=-1)
    else:
        with torch.no_grad():
            entropy = -normalised.exp().mul_(normalised).sum(dim=-1)
    return normalised.gather(1, targets[:, None])[:, 0], entropy
