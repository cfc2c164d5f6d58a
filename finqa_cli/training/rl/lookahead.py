"""Rollouts of the next iterations while the learner is busy with this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from finqa_cli.rollout.groups import Collected, Collection


class Lookahead:
    """The iterations' groups in order, collected at most `ahead` iterations before the learner needs them.

    The groups of iteration k are begun once k - 1 - ahead iterations are trained. All their tokens are sampled by
    weights that are at most `ahead` iterations older than those they update: the age is bounded when an episode is
    started and not by throwing finished work away. With 0 an iteration's rollouts begin when the update before it is
    over, as in a loop of rollouts and updates.
    """

    def __init__(self, begin: Callable[[int], Collection], *, trained: int, iterations: int, ahead: int) -> None:
        """Begins nothing yet.

        Args:
            begin: Starts to collect the groups of an iteration, counted from 1.
            trained: Iterations that are trained already.
            iterations: Of the run.
            ahead: Iterations that rollouts may be ahead.
        """
        self._begin = begin
        self._ahead = ahead
        self._iterations = iterations
        self._begun = trained
        self._collections: deque[Collection] = deque()
        self._trained = trained

    async def next(self) -> Collected:
        """The groups of the iteration after the last one that was trained; begins what may begin."""
        self._fill()
        return await self._collections[0].collected()

    def advance(self) -> None:
        """That iteration is trained, and what may begin now begins."""
        self._collections.popleft()
        self._trained += 1
        if self._ahead:
            self._fill()

    def _fill(self) -> None:
        while self._begun < min(self._trained + 1 + self._ahead, self._iterations):
            self._begun += 1
            self._collections.append(self._begin(self._begun))
