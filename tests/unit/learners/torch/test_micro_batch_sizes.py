"""Micro-batches are cut by the tokens that are computed: a beginning that neighbours share counts once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.types import Sample
from finqa_plugins.learners.torch.micro_batches import count_tokens, cut
from finqa_plugins.learners.torch.packed_rows import SHORTEST_SHARED, pack_row


def sample(*token_ids: int) -> Sample:
    zeros = (0.0,) * len(token_ids)
    return Sample(token_ids=token_ids, loss_mask=(True,) * len(token_ids), logprobs=zeros, advantages=zeros)


def attempts(count: int, prompt: int = 300, own: int = 100) -> list[Sample]:
    return [sample(*range(prompt), *(1000 + number * own + place for place in range(own))) for number in range(count)]


def test_attempts_at_one_question_fill_a_pass_together() -> None:
    group = attempts(8)
    everyone = list(range(8))
    assert count_tokens(everyone, group, packed=True) == 300 + 8 * 100
    assert count_tokens(everyone, group, packed=False) == 8 * 400
    assert cut([everyone], group, 700, packed=True, pairs=False) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cut([everyone], group, 800, packed=False, pairs=False) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert cut([everyone], group, 100, packed=True, pairs=False) == [[number] for number in everyone]


@given(
    st.lists(
        st.lists(st.sampled_from([range(10), range(40), range(100, 150), range(200, 240)]), max_size=4).map(
            lambda parts: [*(place for part in parts for place in part), 7]
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_count_is_that_of_the_packed_row(sequences: list[list[int]]) -> None:
    ordered = sorted(sequences)
    counted = count_tokens(range(len(ordered)), [sample(*ids) for ids in ordered], packed=True)
    packed = len(pack_row(ordered).token_ids)
    assert counted <= packed < counted + SHORTEST_SHARED * len(ordered)
