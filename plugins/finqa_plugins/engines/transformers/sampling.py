"""Samples tokens such that the samples of a request depend on its own seed and logits alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from finqa_cli.types import Sampling

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniforms(seeds: Sequence[int], count: int, begins: Sequence[int] | None = None) -> numpy.ndarray:
    """[N, count] numbers in [0, 1): element (n, t) is a pure function of (seeds[n], begins[n] + t).

    SplitMix64 (Steele, Lea and Flood, 2014) as a counter-based generator. 48 bits are kept so that `u * mass` can
    never round up to `mass`.

    Args:
        seeds: [N] of any size and sign; they count modulo 2^64.
        count: How many numbers of each seed.
        begins: [N] at least 0, place of the first number of each seed; None: all begin at 0.
    """
    starts = _mix(numpy.array([(seed + _GOLDEN) & _MASK for seed in seeds], dtype=numpy.uint64))
    places = numpy.arange(1, count + 1, dtype=numpy.uint64)
    if begins is not None:
        places = places + numpy.array(begins, dtype=numpy.uint64)[:, None]
    bits = _mix(places * numpy.uint64(_GOLDEN) + starts[:, None]) >> numpy.uint64(16)
    drawn: numpy.ndarray = bits.astype(numpy.float64) / float(1 << 48)
    return drawn


def _mix(state: numpy.ndarray) -> numpy.ndarray:
    state = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    mixed: numpy.ndarray = state ^ (state >> numpy.uint64(31))
    return mixed


@dataclass(frozen=True, slots=True)
class Sampler:
    """The sampling settings of N rows.

    Attributes:
        temperature: [N] 1 where the row is greedy.
        greedy: [N] bool, or None when no row is.
        sampled: [S] indices of the rows that are not greedy, or None when no row is greedy.
        top_p: [N] or None when every row keeps the whole distribution.
        uniforms: [N, steps] float64.
    """

    temperature: Tensor
    greedy: Tensor | None
    sampled: Tensor | None
    top_p: Tensor | None
    uniforms: Tensor

    @classmethod
    def of(cls, settings: list[Sampling], steps: int, device: torch.device, drawn: list[int] | None = None) -> Sampler:
        """Makes the sampler of rows that each draw at most `steps` tokens, after `drawn` [N] tokens so far."""
        cold = [sampling.temperature <= 0 for sampling in settings]
        top_p = [1.0 if still else sampling.top_p for still, sampling in zip(cold, settings, strict=True)]
        warmth = [1.0 if still else sampling.temperature for still, sampling in zip(cold, settings, strict=True)]
        table = uniforms([sampling.seed for sampling in settings], steps, drawn)
        greedy = torch.tensor(cold, device=device) if any(cold) else None
        return cls(
            temperature=torch.tensor(warmth, dtype=torch.float32, device=device),
            greedy=greedy,
            sampled=_others(greedy),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device) if min(top_p) < 1 else None,
            uniforms=torch.from_numpy(table).to(device),
        )

    def select(self, rows: Tensor) -> Sampler:
        """The settings of some rows, in that order."""
        greedy = None if self.greedy is None else self.greedy[rows]
        return Sampler(
            temperature=self.temperature[rows],
            greedy=greedy,
            sampled=_others(greedy),
            top_p=None if self.top_p is None else self.top_p[rows],
            uniforms=self.uniforms[rows],
        )

    def draw(self, logits: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Token `step` of every row: the most likely one of greedy rows, that of the inverse CDF of the others.

        Args:
            logits: [N, V].
            step: Index of the column of `uniforms`.

        Returns:
            ids [N] and their log-probabilities [N] in fp32 under the distribution that was drawn from; untempered
            for greedy rows.
        """
        drawn = self.uniforms[:, step]
        if self.sampled is None:
            return _draw(logits, self.temperature, self.top_p, drawn)
        ids = logits.argmax(-1)
        logprobs = torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[:, None])[:, 0]
        if len(rows := self.sampled):
            top_p = None if self.top_p is None else self.top_p[rows]
            ids[rows], logprobs[rows] = _draw(logits[rows], self.temperature[rows], top_p, drawn[rows])
        return ids, logprobs


def _others(greedy: Tensor | None) -> Tensor | None:
    return None if greedy is None else (~greedy).nonzero()[:, 0]


def _draw(logits: Tensor, temperature: Tensor, top_p: Tensor | None, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """[N] ids by inverse CDF at `drawn` [N] in [0, 1), and their log-probabilities [N]."""
    logprobs = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    probs = logprobs.exp()
    if top_p is not None:
        probs = _nucleus(probs, top_p)
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    mass = cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, drawn[:, None] * mass, right=True).clamp_(max=logits.shape[-1] - 1)
    chosen = logprobs.gather(-1, ids)
    if top_p is not None:
        chosen = torch.where(top_p[:, None] < 1, chosen - mass.log().to(chosen.dtype), chosen)
    return ids[:, 0], chosen[:, 0]


def _nucleus(probs: Tensor, top_p: Tensor) -> Tensor:
    """Zeroes all but the smallest set of most likely tokens whose mass reaches top_p [N] (Holtzman et al., 2020)."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill((before >= top_p[:, None]) & (top_p[:, None] < 1), 0.0)
    return torch.zeros_like(probs).scatter_(-1, order, kept)
