"""The endless seeded walk over the tasks, and which of its places are not trained on yet."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.types import Task


class TaskWalk:
    """Yield one place of the walk after the other, each with its task.

    A place is open from `next` to `settle`. When rollouts run ahead of the learner, a checkpoint is written while
    places are open; a resumed run yields those again first, so that no task is skipped and none is used twice.

    Attributes:
        cursor: The first place that was never yielded.
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
        """Close places: their groups were trained on, or are not needed."""
        for place in places:
            self._open.remove(place)

    @property
    def unsettled(self) -> list[int]:
        """Places below the cursor that a resumed run has to yield again, in order."""
        return sorted([*self._open, *self._again])
