from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from finqa_plugins.learners.torch.packed_rows import SHORTEST_SHARED, PackedRow, pack_row


def read(row: PackedRow, places: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(row.token_ids[place] for place in places)


def seen(row: PackedRow) -> list[set[int]]:
    """Which places each place of the row may attend to."""
    ends = list(itertools.accumulate(row.segments.sizes))
    spans = [range(end - size, end) for size, end in zip(row.segments.sizes, ends, strict=True)]
    found = []
    for span, path in zip(spans, row.segments.paths, strict=True):
        before = {place for index in path[:-1] for place in spans[index]}
        found += [before | set(range(span.start, place + 1)) for place in span]
    return found


@st.composite
def forests(draw: st.DrawFn) -> list[list[int]]:
    """Sequences that begin with parts of each other, some of them equal or one the beginning of another."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    sequences = [[rng.randrange(3) for _ in range(draw(st.integers(1, 120)))]]
    for _ in range(draw(st.integers(0, 8))):
        kept = rng.choice(sequences)[: draw(st.integers(0, 150))]
        sequences.append(kept + [rng.randrange(3) for _ in range(draw(st.integers(0 if kept else 1, 60)))])
    return sequences


@given(sequences=forests())
def test_each_token_sees_its_own_sequence_up_to_itself_and_nothing_else(sequences: list[list[int]]) -> None:
    row = pack_row(sequences)
    visible = seen(row)
    assert len(visible) == len(row.token_ids) == len(row.position_ids) == sum(row.segments.sizes)
    for sequence, places in zip(sequences, row.places, strict=True):
        assert read(row, places) == tuple(sequence)
        assert [row.position_ids[place] for place in places] == list(range(len(sequence)))
        for count, place in enumerate(places, start=1):
            assert visible[place] == set(places[:count])


@given(sequences=forests())
def test_no_token_is_kept_that_no_sequence_reads(sequences: list[list[int]]) -> None:
    row = pack_row(sequences)
    assert {place for places in row.places for place in places} == set(range(len(row.token_ids)))
    assert row == pack_row(sequences)
    assert all(size > 0 for size in row.segments.sizes)
    assert sorted(index for group in row.segments.alike for index in group) == list(range(len(row.segments.sizes)))


def test_sequences_share_what_is_long_enough() -> None:
    opening, question = list(range(100)), list(range(200, 250))
    row = pack_row([[*opening, *question, 1, 2], [*opening, *question, 2], [*opening, 3, 4], [9, 9]])
    assert sorted(row.segments.sizes, reverse=True) == [100, 50, 2, 2, 2, 1]
    assert len(row.token_ids) == 157


def test_too_short_a_beginning_is_not_shared() -> None:
    opening = list(range(SHORTEST_SHARED - 1))
    assert pack_row([[*opening, 1], [*opening, 2]]).segments.paths == ((0,), (1,))
    assert pack_row([[*opening, 7, 1], [*opening, 7, 2]]).segments.paths == ((0,), (0, 1), (0, 2))


def test_an_episode_that_forks_again_and_again_is_one_path() -> None:
    whole = list(range(40 * 30))
    row = pack_row([whole[: 40 * count] for count in range(1, 31)])
    assert row.token_ids == tuple(whole)
    assert row.segments.sizes == (40,) * 30
    assert row.segments.paths[-1] == tuple(range(30))
    assert row.segments.contexts[-1] == len(whole)


def test_no_sequences_make_an_empty_row() -> None:
    assert pack_row([]) == pack_row([])
    assert pack_row([]).token_ids == ()
