from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.learn import pack
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
