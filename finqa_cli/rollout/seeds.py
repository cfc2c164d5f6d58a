"""Seeds: every random choice of a run derives from one number in the settings, also the order of tasks."""

from __future__ import annotations

import bisect
import functools
import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

from finqa_cli.types import Task

Item = TypeVar("Item")


def derive(seed: int, *parts: str | int) -> int:
    """Derive a 63-bit seed that depends only on the given parts, and not on the process or its hash seed."""
    text = "\x1f".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def draw(items: Sequence[Item], *, seed: int, position: int, count: int) -> tuple[tuple[Item, ...], int]:
    """Return the next `count` items of an endless, seeded walk, and the position after them.

    Each epoch visits every item once in its own order. The walk is a function of seed and position alone, so a
    checkpoint needs only one integer. No item occurs twice in one draw: a draw across the end of an epoch skips items
    that it already contains, and a draw has at most all items.
    """
    if not items:
        return (), position
    chosen: dict[int, None] = {}
    wanted = min(count, len(items))
    while len(chosen) < wanted:
        epoch, offset = divmod(position, len(items))
        chosen.setdefault(_order(len(items), seed, epoch)[offset])
        position += 1
    return tuple(items[index] for index in chosen), position


@functools.lru_cache(maxsize=4)
def _order(length: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(length))
    random.Random(derive(seed, "epoch", epoch)).shuffle(order)
    return tuple(order)


class TaskWalk:
    """The seeded walk over the tasks: `next` returns one place after the other, each with its task.

    A place is open from `next` to `settle`. When rollouts run ahead of the learner, checkpoints are written while
    places are open. A resumed run returns these places first, so that no task is skipped and none is used twice.

    Attributes:
        cursor: The first place that `next` has never returned.
    """

    def __init__(self, tasks: Sequence[Task], *, seed: int, cursor: int = 0, unsettled: Iterable[int] = ()) -> None:
        self._tasks = tasks
        self._seed = derive(seed, "tasks")
        self._again = sorted(unsettled, reverse=True)
        self._open: list[int] = []
        self.cursor = cursor

    def __len__(self) -> int:
        """Return the number of tasks of one epoch."""
        return len(self._tasks)

    def next(self) -> tuple[int, Task]:
        """Return the next place, and its task."""
        if self._again:
            place = self._again.pop()
            (task,), _ = draw(self._tasks, seed=self._seed, position=place, count=1)
        else:
            place = self.cursor
            (task,), self.cursor = draw(self._tasks, seed=self._seed, position=place, count=1)
        bisect.insort(self._open, place)
        return place, task

    def settle(self, places: Iterable[int]) -> None:
        """Close places whose groups were used for training or are not needed."""
        for place in places:
            self._open.remove(place)

    @property
    def unsettled(self) -> list[int]:
        """Places below the cursor that a resumed run must return again, in order."""
        return sorted([*self._open, *self._again])
