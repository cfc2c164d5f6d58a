"""Pairs as batches, and what log-probabilities say about them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.pair_batches import PairSamples, pair_batch, pair_outcomes, with_pair_references
from finqa_cli.types import Sample


def sample(length: int, loss: int, sign: float) -> Sample:
    mask = (False,) * (length - loss) + (True,) * loss
    return Sample(
        token_ids=tuple(range(length)),
        loss_mask=mask,
        logprobs=(0.0,) * length,
        advantages=tuple(sign if masked else 0.0 for masked in mask),
    )


def pair(name: str, chosen: list[tuple[int, int]], rejected: list[tuple[int, int]]) -> PairSamples:
    return PairSamples(
        id=name,
        cluster=name,
        chosen=tuple(sample(length, loss, 1.0) for length, loss in chosen),
        rejected=tuple(sample(length, loss, -1.0) for length, loss in rejected),
    )


SIDES = st.lists(
    st.tuples(st.integers(2, 40), st.integers(1, 12)).map(lambda t: (max(t), min(t))), min_size=1, max_size=3
)


@given(
    sides=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=6), budget=st.integers(1, 300), padded=st.booleans()
)
def test_microbatches_hold_whole_pairs_within_the_budget(
    sides: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]], budget: int, padded: bool
) -> None:
    sides = [([(a + 1, b) for a, b in left], [(a + 1, b) for a, b in right]) for left, right in sides]
    pairs = [pair(str(n), chosen, rejected) for n, (chosen, rejected) in enumerate(sides)]
    batch = pair_batch(pairs, token_budget=budget, padded=padded)
    assert [row for rows in batch.microbatches for row in rows] == list(range(len(batch.samples)))
    assert batch.loss_tokens == sum(each.loss_tokens for each in batch.samples)
    assert {each.weight for each in batch.samples} == {batch.loss_tokens / len(pairs)}
    assert len(batch.samples) == sum(len(each.samples) for each in pairs)
    for rows in batch.microbatches:
        signs = "".join("+" if max(batch.samples[row].advantages) > 0 else "-" for row in rows)
        assert signs[0] == "+" and signs[-1] == "-"
        lengths = [len(batch.samples[row].token_ids) for row in rows]
        cost = len(rows) * max(lengths) if padded else sum(lengths)
        assert cost <= budget or signs.count("-+") == 0


def test_a_side_without_loss_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'empty' has a sequence without"):
        pair_batch([pair("empty", [(3, 1)], [(3, 0)])], token_budget=10)
    with pytest.raises(ValueError, match="there must be a pair"):
        pair_batch([], token_budget=10)


def test_outcomes_are_what_a_hand_computes() -> None:
    one = pair("a", [(3, 2)], [(2, 1), (2, 1)])
    (referred,) = with_pair_references([one], [(0.0, -2.0, -2.0), (0.0, -1.0), (0.0, -1.0)])
    # the policy: chosen -1 -2 (gain 1), rejected -3 and -1 (gain -2); a value where no loss is counts for nothing
    (found,) = pair_outcomes([referred], [(9.0, -1.0, -2.0), (7.0, -3.0), (0.0, -1.0)])
    assert found.difference == pytest.approx(3.0) and found.ranking == pytest.approx(1.0)
    k3 = [math.exp(-1) - 1 + 1, 0.0, math.exp(2) - 1 - 2, 0.0]
    assert found.kl == (pytest.approx(sum(k3)), 4)
    (free,) = pair_outcomes([one], [(9.0, -1.0, -2.0), (7.0, -3.0), (0.0, -1.0)])
    assert free.difference == free.ranking == pytest.approx(1.0) and free.kl == (0.0, 0)


def test_rows_must_be_as_many_as_samples() -> None:
    pairs = [pair("a", [(3, 2)], [(3, 2)])]
    rows = [tuple(random.Random(0).random() for _ in range(3))]
    with pytest.raises(ValueError, match="1 rows of reference_logprobs for 2 samples"):
        with_pair_references(pairs, rows)
    with pytest.raises(ValueError, match="1 rows"):
        pair_outcomes(pairs, rows)
