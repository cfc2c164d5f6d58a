"""Many attempts at once, without a barrier: a place that becomes free is taken at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from finqa_cli.rollout.attempts import Attempt, Player, Seat
from finqa_cli.types import Trajectory


class Source(Protocol):
    """What to play next. Both methods are quick and wait for nothing."""

    def next(self) -> Attempt | None:
        """The next attempt; None when there is none now. After a `done` there may be some again."""
        ...

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """An attempt ended."""
        ...


async def play_stream(
    player: Player,
    source: Source,
    *,
    concurrency: int,
    on_trajectory: Callable[[Trajectory], None],
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Plays what the source gives, at most `concurrency` at once, until nothing runs and it gives nothing more.

    No episode waits for another one and none is cancelled. When one ends, the free places are filled at once, and the
    newcomers' engine seats are taken before its own is given back. So an engine in lockstep, which waits for every
    seat, sees the same batches whichever episode of a batch happens to end first. `on_trajectory` hears each one as it
    ends. When `stopping` turns true, running attempts finish and no new one starts.
    """
    running = 0

    def fill() -> None:
        nonlocal running
        while running < concurrency and not stopping() and (attempt := source.next()) is not None:
            running += 1
            start(attempt)

    def start(attempt: Attempt) -> None:
        seat = player.seat()
        seat.take()
        task = group.create_task(play(attempt, seat))
        task.add_done_callback(lambda _: seat.leave())  # not in the task itself, which may be cancelled unstarted

    async def play(attempt: Attempt, seat: Seat) -> None:
        nonlocal running
        trajectory = await player.play(attempt, seat)
        on_trajectory(trajectory)
        source.done(attempt, trajectory)
        running -= 1
        fill()

    try:
        async with asyncio.TaskGroup() as group:
            fill()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the first one; the others are cancellations that it caused


async def play_all(
    player: Player,
    attempts: Sequence[Attempt],
    *,
    concurrency: int,
    on_trajectory: Callable[[Trajectory], None],
    stopping: Callable[[], bool] = lambda: False,
) -> list[Trajectory]:
    """Plays all attempts as `play_stream` does and gives the trajectories in the order of the attempts.

    When `stopping` turned true the list is short.
    """
    listed = _Listed(attempts)
    await play_stream(player, listed, concurrency=concurrency, on_trajectory=on_trajectory, stopping=stopping)
    return [listed.finished[attempt.id] for attempt in attempts if attempt.id in listed.finished]


class _Listed:
    """A source of given attempts."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._queue = deque(attempts)
        self.finished: dict[str, Trajectory] = {}

    def next(self) -> Attempt | None:
        return self._queue.popleft() if self._queue else None

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        self.finished[attempt.id] = trajectory
