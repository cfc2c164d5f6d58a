"""A queue that shares out processor time between sessions, however much each of them asks for.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): every item gets a start tag, the later of the queue's virtual
time and the end of what its session asked for before, and the lowest tag is served first. So a session that has used
much waits for those that have used little, and one that was idle is neither ahead for it nor behind.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of sessions, in the order in which they should be served. Not for two threads at once."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = itertools.count()
        self._time = 0.0
        self._ends: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, session: Hashable, item: Item, cost: float) -> None:
        """Add an item of a session; `cost` is what it may use up at most, in any unit."""
        start = max(self._time, self._ends.get(session, 0.0))
        self._ends[session] = start + cost
        heapq.heappush(self._heap, (start, next(self._serial), item))

    def take(self) -> Item:
        """Remove and return the item to be served next.

        Raises:
            IndexError: There is none.
        """
        self._time, _, item = heapq.heappop(self._heap)
        return item

    def refund(self, session: Hashable, unused: float) -> None:
        """Give back what an item that was served did not use up of its cost."""
        if session in self._ends:
            self._ends[session] -= unused

    def forget(self) -> None:
        """Forget what sessions have used up: for a time without work, after which all are equal again."""
        if not self._heap:
            self._time = 0.0
            self._ends.clear()
