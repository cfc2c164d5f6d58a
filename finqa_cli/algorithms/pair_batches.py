"""Pairs of attempts -> batches, and what a policy makes of pairs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from finqa_cli.types import Batch, Sample

_LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSamples:
    """A pair as token sequences; an attempt that forks has several.

    Attributes:
        id: The pair's.
        cluster: The task's.
        chosen: Sequences of the preferred attempt; advantages are +1 where loss is.
        rejected: Those of the other; advantages are -1.
    """

    id: str
    cluster: str
    chosen: tuple[Sample, ...]
    rejected: tuple[Sample, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Of both, in the order that losses on pairs take them in."""
        return (*self.chosen, *self.rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOutcome:
    """What a policy makes of a pair.

    Attributes:
        cluster: The task's.
        difference: Nats by which the chosen attempt gained more on the reference than the rejected one:
            log pi/ref(chosen) - log pi/ref(rejected).
        ranking: log pi(chosen) - log pi(rejected), whatever the reference says.
        kl: Sum over tokens of the k3 estimate of the divergence from the reference, and how many tokens.
    """

    cluster: str
    difference: float
    ranking: float
    kl: tuple[float, int]


def pair_batch(pairs: Sequence[PairSamples], *, token_budget: int, padded: bool = True) -> Batch:
    """One optimizer step on the mean loss of the pairs.

    Micro-batches hold whole pairs, longest first; rows times the longest, or without padding their tokens, stay within
    `token_budget`, but for a pair that is longer by itself. Every sample weighs loss tokens / pairs, so that the sum of
    the pairs' losses divided by the loss tokens of the batch is their mean, however it was cut.

    Raises:
        ValueError: The budget is below 1, there is no pair, or one has a side without a token that carries loss.
    """
    if token_budget < 1 or not pairs:
        raise ValueError(f"token_budget must be at least 1, not {token_budget}, and there must be a pair")
    for pair in pairs:
        if not all(side and all(sample.loss_tokens for sample in side) for side in (pair.chosen, pair.rejected)):
            raise ValueError(f"pair {pair.id!r} has a sequence without a token that carries loss")
    tokens = sum(sample.loss_tokens for pair in pairs for sample in pair.samples)
    samples: list[Sample] = []
    microbatches: list[tuple[int, ...]] = []
    for part in _cut(pairs, token_budget, padded=padded):
        first = len(samples)
        samples += [replace(sample, weight=tokens / len(pairs)) for pair in part for sample in pair.samples]
        microbatches.append(tuple(range(first, len(samples))))
    return Batch(samples=tuple(samples), microbatches=tuple(microbatches), loss_tokens=tokens)


def with_pair_references(pairs: Sequence[PairSamples], rows: Sequence[tuple[float, ...]]) -> tuple[PairSamples, ...]:
    """The pairs with what a learner's `reference_logprobs` gave for their samples one after the other.

    Raises:
        ValueError: There is not one row per sample.
    """
    _count(pairs, rows)
    left = iter(rows)

    def referred(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        return tuple(replace(sample, reference_logprobs=next(left)) for sample in samples)

    return tuple(replace(pair, chosen=referred(pair.chosen), rejected=referred(pair.rejected)) for pair in pairs)


def pair_outcomes(pairs: Sequence[PairSamples], rows: Sequence[tuple[float, ...]]) -> tuple[PairOutcome, ...]:
    """What the policy whose log-probabilities `rows` are makes of the pairs, their samples one after the other.

    Pairs without reference log-probabilities are compared with a reference under which all is equally likely.

    Raises:
        ValueError: There is not one row per sample.
    """
    _count(pairs, rows)
    left = iter(rows)
    return tuple(_outcome(pair, [next(left) for _ in pair.samples]) for pair in pairs)


def _outcome(pair: PairSamples, rows: Sequence[tuple[float, ...]]) -> PairOutcome:
    difference = ranking = kl = 0.0
    tokens = 0
    signs = [1.0] * len(pair.chosen) + [-1.0] * len(pair.rejected)
    for sign, sample, row in zip(signs, pair.samples, rows, strict=True):
        reference = sample.reference_logprobs or (0.0,) * len(row)
        own = math.fsum(logp for logp, masked in zip(row, sample.loss_mask, strict=True) if masked)
        theirs = math.fsum(logp for logp, masked in zip(reference, sample.loss_mask, strict=True) if masked)
        ranking += sign * own
        difference += sign * (own - theirs)
        if sample.reference_logprobs:
            kl += math.fsum(
                _k3(other - logp)
                for logp, other, masked in zip(row, reference, sample.loss_mask, strict=True)
                if masked
            )
            tokens += sample.loss_tokens
    return PairOutcome(cluster=pair.cluster, difference=difference, ranking=ranking, kl=(kl, tokens))


def _k3(difference: float) -> float:
    return math.exp(max(-_LARGEST_LOG_RATIO, min(_LARGEST_LOG_RATIO, difference))) - 1.0 - difference


def _cut(pairs: Sequence[PairSamples], token_budget: int, *, padded: bool) -> Iterator[list[PairSamples]]:
    part: list[PairSamples] = []
    for pair in sorted(pairs, key=lambda pair: (-_length(pair), pair.id)):
        if part and _cost([*part, pair], padded=padded) > token_budget:
            yield part
            part = []
        part.append(pair)
    yield part


def _cost(pairs: Sequence[PairSamples], *, padded: bool) -> int:
    lengths = [len(sample.token_ids) for pair in pairs for sample in pair.samples]
    return len(lengths) * max(lengths) if padded else sum(lengths)


def _length(pair: PairSamples) -> int:
    return max(len(sample.token_ids) for sample in pair.samples)


def _count(pairs: Sequence[PairSamples], rows: Sequence[tuple[float, ...]]) -> None:
    wanted = sum(len(pair.samples) for pair in pairs)
    if len(rows) != wanted:
        raise ValueError(f"{len(rows)} rows of log-probabilities for {wanted} samples")
