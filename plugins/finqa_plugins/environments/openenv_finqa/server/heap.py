"""SQLite's heap limit counts for the whole process; this makes it count for one query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import TypeVar

Result = TypeVar("Result")


class SharedHeap:
    """Work runs together; what fails for want of memory is run once more alone, where no other work can be to blame."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._running = 0
        self._begun = 0
        self._alone = False

    def run(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which may be called twice.

        Raises:
            MemoryError: The memory does not suffice for this work alone.
        """
        with self._together() as company:
            try:
                return work()
            except MemoryError:
                if not company():
                    raise
        with self._apart():
            return work()

    def attempt(self, work: Callable[[], Result]) -> Result | None:
        """The result of `work` if it can begin at once and the memory suffices, else None. Never waits."""
        with self._condition:
            if self._alone:
                return None
            self._running += 1
            self._begun += 1
        try:
            return work()
        except MemoryError:
            return None
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    @contextmanager
    def _together(self) -> Iterator[Callable[[], bool]]:
        """Yields a function that tells whether other work ran at the same time."""
        with self._condition:
            self._condition.wait_for(lambda: not self._alone)
            self._running += 1
            self._begun += 1
            crowded, ticket = self._running > 1, self._begun
        try:
            yield lambda: crowded or self._begun > ticket
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._alone)
            self._alone = True
            self._condition.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._condition:
                self._alone = False
                self._condition.notify_all()
