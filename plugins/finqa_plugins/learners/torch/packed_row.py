"""Many sequences as one row without padding, in which what sequences begin with alike stands once. Pure; no torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

_SHORTEST_SHARED = 32
"""Ids that sequences must share to share a segment: fewer save less than a further segment costs."""


@dataclass(frozen=True)
class Segments:
    """The segments of a row, S of them one after the other.

    A token of a segment sees the earlier tokens of its segment and all tokens of the segments on the way to it.

    Attributes:
        sizes: [S] tokens of each.
        paths: [S] the indices of the segments that a sequence has read when it reaches the end of each: the segment
            itself comes last.
    """

    sizes: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]

    @cached_property
    def contexts(self) -> tuple[int, ...]:
        """[S] tokens on the way to each segment and in it."""
        return tuple(sum(self.sizes[index] for index in path) for path in self.paths)

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The segments in groups of equal size and equal context, which can be computed as one rectangle."""
        groups: dict[tuple[int, int], list[int]] = {}
        for index, shape in enumerate(zip(self.sizes, self.contexts, strict=True)):
            groups.setdefault(shape, []).append(index)
        return tuple(tuple(group) for group in groups.values())


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row of T tokens that holds B sequences.

    Attributes:
        token_ids: [T].
        position_ids: [T] place of each token in the sequences that it belongs to.
        segments: What sees what.
        places: [B][L] index into the row of each token of each sequence.
    """

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    segments: Segments
    places: tuple[tuple[int, ...], ...]


def pack_row(sequences: Sequence[Sequence[int]]) -> PackedRow:
    """The sequences as a tree of segments, parents before children: a radix tree whose edges have 32 ids or more,
    but for those that end a sequence. Equal input, equal output.
    """
    token_ids: list[int] = []
    position_ids: list[int] = []
    sizes: list[int] = []
    paths: list[tuple[int, ...]] = []
    places: list[list[int]] = [[] for _ in sequences]
    ordered = sorted(range(len(sequences)), key=lambda row: tuple(sequences[row]))
    pending: list[tuple[list[int], int, tuple[int, ...]]] = [(ordered, 0, ())] if ordered else []
    while pending:
        rows, depth, path = pending.pop()
        shared = _shared(sequences[rows[0]], sequences[rows[-1]])
        if len(rows) > 1 and shared - depth < _SHORTEST_SHARED:
            pending.extend((run, depth, path) for run in reversed(list(_runs(sequences, rows, depth))))
            continue
        path = (*path, len(sizes))
        for row in rows:
            places[row].extend(range(len(token_ids), len(token_ids) + shared - depth))
        token_ids.extend(sequences[rows[0]][depth:shared])
        position_ids.extend(range(depth, shared))
        sizes.append(shared - depth)
        paths.append(path)
        if longer := [row for row in rows if len(sequences[row]) > shared]:
            pending.append((longer, shared, path))
    return PackedRow(
        token_ids=tuple(token_ids),
        position_ids=tuple(position_ids),
        segments=Segments(sizes=tuple(sizes), paths=tuple(paths)),
        places=tuple(map(tuple, places)),
    )


def _shared(first: Sequence[int], last: Sequence[int]) -> int:
    """How many ids both begin with: as many as all that are sorted between them do."""
    alike = (place for place, (left, right) in enumerate(zip(first, last, strict=False)) if left != right)
    return next(alike, min(len(first), len(last)))


def _runs(sequences: Sequence[Sequence[int]], rows: Sequence[int], depth: int) -> Iterator[list[int]]:
    """Sorted rows in runs that go on alike for long enough to share it."""

    def key(row: int) -> tuple[int, ...]:
        following = tuple(sequences[row][depth : depth + _SHORTEST_SHARED])
        return following if len(following) == _SHORTEST_SHARED else (-1 - row,)

    for _, run in itertools.groupby(rows, key):
        yield list(run)
