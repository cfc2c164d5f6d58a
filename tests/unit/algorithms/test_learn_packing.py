from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.algorithms.packing import pack
from finqa_cli.types import Sample


def sample(length: int) -> Sample:
    mask = tuple(place % 3 == 1 for place in range(length))
    return Sample(
        token_ids=tuple(range(length)), loss_mask=mask, logprobs=(0.0,) * length, advantages=tuple(map(float, mask))
    )


@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(1, 200), rows=st.integers(1, 9))
def test_every_sample_once_within_budget_and_rows(lengths: list[int], budget: int, rows: int) -> None:
    samples = [sample(length) for length in lengths]
    batch = pack(samples, token_budget=budget, max_rows=rows)
    assert sorted(row for microbatch in batch.microbatches for row in microbatch) == list(range(len(lengths)))
    for microbatch in batch.microbatches:
        longest = max(lengths[row] for row in microbatch)
        assert len(microbatch) <= rows
        assert longest * len(microbatch) <= budget or len(microbatch) == 1
    assert batch.loss_tokens == sum(sum(entry.loss_mask) for entry in samples)
    assert batch.samples == tuple(samples)
    assert batch == pack(samples, token_budget=budget, max_rows=rows)


@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(1, 200), rows=st.integers(1, 9))
def test_without_padding_the_budget_counts_tokens(lengths: list[int], budget: int, rows: int) -> None:
    samples = [sample(length) for length in lengths]
    batch = pack(samples, token_budget=budget, max_rows=rows, padded=False)
    assert sorted(row for microbatch in batch.microbatches for row in microbatch) == list(range(len(lengths)))
    sizes = [sum(lengths[row] for row in microbatch) for microbatch in batch.microbatches]
    for microbatch, size in zip(batch.microbatches, sizes, strict=True):
        assert 1 <= len(microbatch) <= rows
        assert size <= budget or len(microbatch) == 1
    assert sizes == sorted(sizes, reverse=True)
    assert batch == pack(samples, token_budget=budget, max_rows=rows, padded=False)


def test_without_padding_a_budget_of_real_tokens_is_filled_whatever_their_lengths() -> None:
    samples = [sample(length) for length in (90, 10, 60, 40)]
    assert len(pack(samples, token_budget=200, max_rows=9, padded=False).microbatches) == 1
    assert len(pack(samples, token_budget=200, max_rows=9).microbatches) == 2


def test_without_padding_samples_that_begin_alike_are_in_one_micro_batch() -> None:
    groups = {group: [replace(sample(3), token_ids=(group, 7, end)) for end in range(4)] for group in (5, 1, 3)}
    mixed = [groups[group][end] for end in range(4) for group in groups]
    batch = pack(mixed, token_budget=12, max_rows=9, padded=False)
    assert [{mixed[row].token_ids[0] for row in microbatch} for microbatch in batch.microbatches] == [{1}, {3}, {5}]


@given(lengths=st.lists(st.integers(1, 60), min_size=2, max_size=30))
def test_a_shorter_microbatch_never_precedes_a_longer_one(lengths: list[int]) -> None:
    batch = pack([sample(length) for length in lengths], token_budget=100, max_rows=4)
    flat = [lengths[row] for microbatch in batch.microbatches for row in microbatch]
    assert flat == sorted(flat, reverse=True)


def test_no_samples_make_an_empty_batch() -> None:
    batch = pack([], token_budget=8, max_rows=1)
    assert (batch.samples, batch.microbatches, batch.loss_tokens) == ((), (), 0)


@pytest.mark.parametrize(("budget", "rows"), [(0, 1), (1, 0)])
def test_limits_below_one_are_refused(budget: int, rows: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        pack([sample(3)], token_budget=budget, max_rows=rows)
    with pytest.raises(ValueError, match="at least 1"):
        pack([sample(3)], token_budget=budget, max_rows=rows, padded=False)
