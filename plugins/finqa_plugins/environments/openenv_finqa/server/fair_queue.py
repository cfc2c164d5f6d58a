"""A queue that shares processor time fairly between sessions, however much each of them requests.

Start-time fair queueing (Goyal, Vin and Cheng, 1996): every item gets a start tag, the later of the queue's virtual
time and the end of its session's earlier requests, and the lowest tag is served first. So a session that has used much
waits for those that have used little, and a session gains or loses nothing by being idle.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items of sessions, in the order in which they should be served. Not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self._serial = itertools.count()
        self._time = 0.0
        self._ends: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, session: Hashable, item: Item, cost: float) -> None:
        """Add an item of a session; `cost` is the most that it may use, in any unit."""
        start = max(self._time, self._ends.get(session, 0.0))
        self._ends[session] = start + cost
        heapq.heappush(self._heap, (start, next(self._serial), item))

    def take(self) -> Item:
        """Remove and return the item to be served next.

        Raises:
            IndexError: The queue is empty.
        """
        self._time, _, item = heapq.heappop(self._heap)
        return item

    def refund(self, session: Hashable, unused: float) -> None:
        """Give back the part of its cost that a served item did not use."""
        if session in self._ends:
            self._ends[session] -= unused

    def forget(self) -> None:
        """Forget the usage of all sessions, if the queue is empty; called when there is no work."""
        if not self._heap:
            self._time = 0.0
            self._ends.clear()
