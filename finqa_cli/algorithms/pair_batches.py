"""Pairs of attempts: their loss, their batches, and how a policy ranks them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from finqa_cli.algorithms.penalties import estimate_kl
from finqa_cli.algorithms.samples import attach_rows, masked
from finqa_cli.types import Batch, Loss, RowLike, Sample


class PreferenceLoss(Loss):
    """A loss of h = log pi/ref(chosen) - log pi/ref(rejected) for each pair; log pi/ref is a sum over loss tokens.

    Sources: `sigmoid` DPO, arXiv 2305.18290, equation 7; `hinge` SLiC, arXiv 2305.10425; `ipo` arXiv 2310.12036.
    """

    of_pairs: ClassVar[bool] = True

    form: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """DPO's -log sigmoid(beta h), max(0, 1 - beta h), or (h - 1 / (2 beta))^2."""
    beta: float = Field(default=0.1, gt=0)
    """Strength of the regularization towards the reference policy."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of preferences that may be the wrong way round, for `sigmoid`; at 0.5 nothing would be preferred."""
    reference_free: bool = False
    """Treat all sequences as equally likely under the reference, so that its log-probabilities are not needed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.label_smoothing and self.form != "sigmoid":
            raise ValueError(f"label_smoothing belongs to form sigmoid, not to {self.form}")
        return self

    @property
    def needs_reference(self) -> bool:
        """Whether samples need reference log-probabilities: not if the loss is `reference_free`."""
        return not self.reference_free


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSamples:
    """A pair as token sequences; an attempt that forks has several.

    Attributes:
        id: Name of the pair.
        cluster: Cluster of its task.
        chosen: Sequences of the preferred attempt; advantages are +1 at tokens with loss.
        rejected: Sequences of the other attempt; advantages are -1 at tokens with loss.
    """

    id: str
    cluster: str
    chosen: tuple[Sample, ...]
    rejected: tuple[Sample, ...]

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The sequences of both attempts, chosen ones first, which is the order that losses on pairs expect."""
        return (*self.chosen, *self.rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOutcome:
    """How a policy ranks a pair.

    Attributes:
        cluster: Cluster of the pair's task.
        difference: log pi/ref(chosen) - log pi/ref(rejected), in nats.
        ranking: log pi(chosen) - log pi(rejected), in nats, without the reference.
        kl: Sum over tokens of the k3 estimate of the divergence from the reference in nats, and the number of tokens.
    """

    cluster: str
    difference: float
    ranking: float
    kl: tuple[float, int]


def pair_batch(pairs: Sequence[PairSamples], *, token_budget: int, padded: bool = True) -> Batch:
    """One optimizer step on the mean loss of the pairs.

    Micro-batches contain whole pairs, longest first. Rows times the longest row, or without padding the sum of the
    tokens, stays within `token_budget`; a single pair may exceed it. Every sample weighs loss tokens / pairs: the sum
    of the pairs' losses divided by the loss tokens of the batch is then their mean, for any division.

    Raises:
        ValueError: The budget is below 1, there is no pair, or a pair has a sequence without a token that carries loss.
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


def with_pair_references(pairs: Sequence[PairSamples], rows: Sequence[RowLike]) -> tuple[PairSamples, ...]:
    """The pairs with the rows [L] that a learner's `reference_logprobs` returned for all their samples in order.

    Raises:
        ValueError: There is not one row per sample.
    """
    found = iter(attach_rows([sample for pair in pairs for sample in pair.samples], reference_logprobs=rows))
    return tuple(
        replace(
            pair, chosen=tuple(next(found) for _ in pair.chosen), rejected=tuple(next(found) for _ in pair.rejected)
        )
        for pair in pairs
    )


def pair_outcomes(pairs: Sequence[PairSamples], rows: Sequence[RowLike]) -> tuple[PairOutcome, ...]:
    """How a policy ranks the pairs.

    Pairs without reference log-probabilities are compared with a reference under which all sequences are equally
    likely.

    Args:
        pairs: The pairs.
        rows: [L] log-probabilities under the policy, for all samples of the pairs in order.

    Raises:
        ValueError: There is not one row per sample.
    """
    if len(rows) != (wanted := sum(len(pair.samples) for pair in pairs)):
        raise ValueError(f"{len(rows)} rows of log-probabilities for {wanted} samples")
    left = iter(rows)
    return tuple(_outcome(pair, [next(left) for _ in pair.samples]) for pair in pairs)


def _outcome(pair: PairSamples, rows: Sequence[RowLike]) -> PairOutcome:
    difference = ranking = kl = 0.0
    tokens = 0
    signs = [1.0] * len(pair.chosen) + [-1.0] * len(pair.rejected)
    for sign, sample, row in zip(signs, pair.samples, rows, strict=True):
        own = np.asarray(row, dtype=np.float64)[sample.loss_mask]
        ranking += sign * float(own.sum())
        if sample.reference_logprobs is None:
            difference += sign * float(own.sum())
        else:
            gap = own - masked(sample, "reference_logprobs")
            difference += sign * float(gap.sum())
            kl += float(estimate_kl(gap, "k3").sum())
            tokens += sample.loss_tokens
    return PairOutcome(cluster=pair.cluster, difference=difference, ranking=ranking, kl=(kl, tokens))


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
