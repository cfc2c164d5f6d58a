"""Computes log-probabilities and entropies of the tokens with loss, and only of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from finqa_cli.algorithms.packing import pack
from finqa_cli.errors import ConfigError
from finqa_cli.placement.memory_formulas import LOGITS_AT_ONCE
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.packed_rows import Segments, pack_row
from finqa_plugins.precision import gradient_of_states, wide_logits

_LOGITS_PER_CHUNK = LOGITS_AT_ONCE
"""Logits that may exist at once (256 MiB in float32); more are computed in chunks and again in the backward pass."""

_CPU_LOGITS_PER_CHUNK = 2**24
"""The same on a CPU (64 MiB), where larger products are not faster, for vocabularies from `_LARGE_VOCABULARY` on."""

_LARGE_VOCABULARY = 2**15

_TOKENS_PER_SCORING_FORWARD = 16_384


@dataclass(frozen=True, slots=True)
class Inputs:
    """A micro-batch of B sequences; N positions carry loss, sequence by sequence.

    Attributes:
        token_ids: [R, L] int64. Packed: all sequences in one row, R = 1. Otherwise one sequence per row, R = B, padded
            on the right with id 0: attention is causal, so no token attends to the padding.
        positions: [N] int64, flat index into R x L of the position that predicts each token; sequences with a
            common beginning may share some.
        targets: [N] int64, the tokens.
        old_logprobs: [N] float32, the sampler's.
        advantages: [N] float32.
        proximal_logprobs: [N] float32, or None if the samples carry none.
        reference_logprobs: [N] float32, or None if the samples carry none.
        values: [N] float32, of the value function before the first step, or None if the samples carry none.
        returns: [N] float32, or None if the samples carry none.
        weights: [N] float32, or 1.0 if all are 1.
        lengths: B numbers with sum N: the number of tokens with loss of each sequence.
        position_ids: [1, L] int64 of a packed row, else None.
        segments: Segments of a packed row, else None.
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
    weights: torch.Tensor | float = 1.0
    position_ids: torch.Tensor | None = None
    segments: Segments | None = None

    def by_sequence(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Splits numbers [N] by sequence into B tensors."""
        return torch.split(tokens, list(self.lengths))

    def spread(self, sequences: torch.Tensor) -> torch.Tensor:
        """[N] for each token the number [B] of its sequence."""
        lengths = torch.tensor(self.lengths, device=sequences.device)
        return sequences.repeat_interleave(lengths, output_size=sum(self.lengths))


def collate(samples: Sequence[Sample], device: torch.device, *, packed: bool = False) -> Inputs:
    """Tensors of a micro-batch of samples with loss. The last token with loss and those after it are cut off:
    they predict nothing that is needed.

    Args:
        samples: Each has at least one token with loss. Either all or none carry proximal log-probabilities; the same
            holds for those of the reference, values and returns.
        device: Device of the tensors.
        packed: Whether all sequences are in one row without padding, with common beginnings only once; for models
            that `use_packed_rows` accepted.
    """
    chosen = [np.flatnonzero(sample.loss_mask) for sample in samples]
    sequences = [sample.token_ids[: places[-1]] for sample, places in zip(samples, chosen, strict=True)]
    row = pack_row([sequence.tolist() for sequence in sequences]) if packed else None
    width = max(map(len, sequences))
    if row is None:
        ids = np.zeros((len(sequences), width), dtype=np.int64)
        for number, sequence in enumerate(sequences):
            ids[number, : len(sequence)] = sequence
        positions = np.concatenate([number * width + places - 1 for number, places in enumerate(chosen)])
    else:
        ids = np.array([row.token_ids], dtype=np.int64)
        positions = np.concatenate(
            [np.array(where)[places - 1] for where, places in zip(row.places, chosen, strict=True)]
        )

    def tensor(array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    def carried(name: str) -> torch.Tensor | None:
        """[N] float32 of the rows that the samples carry by this name; None when they carry none."""
        rows = [getattr(sample, name) for sample in samples]
        if any(row is None for row in rows):
            return None
        return tensor(np.concatenate([numbers[places] for numbers, places in zip(rows, chosen, strict=True)]))

    lengths = tuple(map(len, chosen))
    weights = np.array([sample.weight for sample in samples], dtype=np.float32)
    old_logprobs, advantages = carried("logprobs"), carried("advantages")
    assert old_logprobs is not None and advantages is not None, "every sample has them"
    return Inputs(
        token_ids=tensor(ids),
        positions=tensor(positions.astype(np.int64)),
        targets=tensor(
            np.concatenate([sample.token_ids[places] for sample, places in zip(samples, chosen, strict=True)]).astype(
                np.int64
            )
        ),
        old_logprobs=old_logprobs,
        advantages=advantages,
        proximal_logprobs=carried("proximal_logprobs"),
        lengths=lengths,
        reference_logprobs=carried("reference_logprobs"),
        values=carried("values"),
        returns=carried("returns"),
        weights=tensor(np.repeat(weights, lengths)) if (weights != 1).any() else 1.0,
        position_ids=tensor(np.array([row.position_ids], dtype=np.int64)) if row else None,
        segments=row.segments if row else None,
    )


def scoring_batches(samples: Sequence[Sample], *, packed: bool, most: int = 0) -> list[list[int]]:
    """Indices of the samples with loss, in batches of at most 16,384 tokens with padding, except for longer samples.

    They are formed like micro-batches of steps; see `pack`. `most` is a smaller limit of tokens; 0: none.
    """
    bearing = [index for index, sample in enumerate(samples) if sample.loss_mask.any()]
    budget = min(most or _TOKENS_PER_SCORING_FORWARD, _TOKENS_PER_SCORING_FORWARD)
    chosen = [samples[index] for index in bearing]
    batch = pack(chosen, token_budget=budget, max_rows=max(1, len(chosen)), padded=not packed)
    return [[bearing[row] for row in rows] for rows in batch.microbatches]


def state_logprobs(
    causal: Any,
    states: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    wide: bool = False,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability [N] of each target at the temperature, and entropy [N] of the state [N, H] that predicts it.

    The head runs on these states only, in chunks, so the full [B, L, V] logits never exist. With `wide` the logits are
    float32 even if the head computes in 16 bits; see `wide_logits`. With `softcap` c they are c tanh(logit / c), as in
    Gemma 2.
    """
    head = causal.get_output_embeddings()
    rows = _rows_per_chunk(head.weight.shape[0], states.device)
    if torch.is_grad_enabled() and states.requires_grad and _is_frozen(head) and not (entropy_gradient or softcap):
        found: tuple[torch.Tensor, torch.Tensor] = _FrozenHead.apply(  # type: ignore[no-untyped-call]
            states, head, targets, temperature, wide, rows
        )
        return found
    if states.shape[0] <= rows:
        return _chunk_logprobs(head, states, targets, temperature, entropy_gradient, wide, softcap)
    parts = [
        checkpoint(_chunk_logprobs, head, part, ids, temperature, entropy_gradient, wide, softcap, use_reentrant=False)
        for part, ids in zip(torch.split(states, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _rows_per_chunk(vocabulary: int, device: torch.device) -> int:
    smaller = device.type == "cpu" and vocabulary >= _LARGE_VOCABULARY
    return max(1, min(_LOGITS_PER_CHUNK, _CPU_LOGITS_PER_CHUNK if smaller else _LOGITS_PER_CHUNK) // vocabulary)


def _chunk_logprobs(
    head: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
    wide: bool,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = wide_logits(head, hidden) if wide else head(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap:
        logits = (logits / softcap).tanh() * softcap
    if temperature != 1.0:
        logits = logits / temperature
    normalised = torch.log_softmax(logits, dim=-1)
    del logits  # so that at most two tensors of this size exist at once without gradients
    if entropy_gradient and torch.is_grad_enabled():
        entropy = -(normalised.exp() * normalised).sum(dim=-1)
    else:
        with torch.no_grad():
            entropy = -normalised.exp().mul_(normalised).sum(dim=-1)
    return normalised.gather(1, targets[:, None])[:, 0], entropy


def _is_frozen(head: Any) -> bool:
    return type(head) is nn.Linear and not any(part.requires_grad for part in head.parameters())


class _FrozenHead(torch.autograd.Function):
    """Log-probabilities and entropies of `state_logprobs` by a head that is not trained, with each chunk computed once.

    A loss needs one number of each token, log p of its target, whose gradient with respect to the state is
    (onehot - p) @ W / temperature, [H] a token. It is computed beside the log-probability while the chunk's logits
    exist, and the backward pass scales it: two products in all, and no logits are kept or computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        head: nn.Linear,
        targets: torch.Tensor,
        temperature: float,
        wide: bool,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, entropies, slopes = [], [], []
        for part, ids in zip(torch.split(states, rows), torch.split(targets, rows), strict=True):
            logits = wide_logits(head, part) if wide else head(part)
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            if temperature != 1.0:
                logits = logits / temperature
            normalised = torch.log_softmax(logits, dim=-1)
            logprobs.append(normalised.gather(1, ids[:, None])[:, 0])
            odds = torch.exp(normalised, out=logits)
            entropies.append(-normalised.mul_(odds).sum(dim=-1))
            slope = odds.neg_().scatter_add_(1, ids[:, None], torch.ones_like(odds[:, :1]))
            slopes.append(_slope(slope, head.weight, wide) / temperature)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(torch.cat(slopes))
        ctx.dtype = states.dtype
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _entropy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (gradient[:, None] * slopes).to(ctx.dtype), None, None, None, None, None


def _slope(gradient: torch.Tensor, weight: torch.Tensor, wide: bool) -> torch.Tensor:
    """Gradient [N, V] of the logits @ weight [V, H], with operands in the dtype of the weight."""
    narrow = gradient.to(weight.dtype)
    return gradient_of_states(narrow, weight) if wide and weight.dtype != torch.float32 else narrow @ weight


def widens_head(config: TorchLearnerConfig, causal: Any, dtype: torch.dtype) -> bool:
    """Whether logits must be float32 although the model computes in another dtype.

    Raises:
        ConfigError: The options require it, and the head is not a plain linear layer, because it has an adapter.
    """
    if dtype == torch.float32 or config.head_dtype == "model":
        return False
    plain = type(causal.get_output_embeddings()) is nn.Linear
    if not plain and config.head_dtype == "float32":
        raise ConfigError(
            "learner.options.head_dtype=float32 needs a head without an adapter, but "
            "lora.target_modules contains the head.",
            remedy="--set learner.options.head_dtype=model",
        )
    return plain
