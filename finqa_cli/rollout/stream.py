"""Episodes of several sources at once, without a barrier: a place that becomes free is taken at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from finqa_cli.rollout.attempts import Attempt, AttemptPlayer, Seat
from finqa_cli.types import Trajectory

TrajectoryListener = Callable[[Trajectory], Awaitable[None] | None]
"""Called with each episode that ended. What it returns is awaited before the episode counts."""


class Source(Protocol):
    """What to play next. Both methods are quick and wait for nothing."""

    def next(self) -> Attempt | None:
        """The next attempt; None when there is none now. After a `done` there may be some again."""
        ...

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """An attempt ended."""
        ...


@dataclass(slots=True)
class _Playing:
    """One source: the receiver of its episodes, how many run, and the promise that it will be played to its end."""

    source: Source
    listener: TrajectoryListener
    ended: asyncio.Future[None]
    running: int = 0


class Stream:
    """Plays what its sources give, at most `concurrency` episodes at once; made by `streaming`.

    No episode waits for another one and none is cancelled. When one ends, the free places are filled at once, and the
    newcomers' engine seats are taken before its own is given back. So an engine in lockstep, which waits for every
    seat, sees the same batches whichever episode of a batch happens to end first. A source that was added earlier is
    asked first: what is needed sooner is not held up by what is played ahead.

    Attributes:
        failures: What episodes and the block of `streaming` raised, as it came: a task group keeps no order and
            prefers any error to a cancellation.
    """

    def __init__(
        self, player: AttemptPlayer, group: asyncio.TaskGroup, *, concurrency: int, stopping: Callable[[], bool]
    ) -> None:
        self._player = player
        self._group = group
        self._concurrency = concurrency
        self._stopping = stopping
        self._sources: list[_Playing] = []
        self.failures: list[BaseException] = []
        self._running = 0
        self._idle_s = 0.0
        self._idle_since = time.perf_counter()

    def add(self, source: Source, on_trajectory: TrajectoryListener) -> asyncio.Future[None]:
        """Starts to play a source; the future is done when nothing of it runs and it gives nothing more.

        `on_trajectory` is called with each episode as it ends and waited for: its record may have to be durable. When
        `stopping` turns true, running episodes finish and no new one starts. An episode that raises, other than by a
        fault, ends the whole stream.
        """
        playing = _Playing(source, on_trajectory, asyncio.get_running_loop().create_future())
        self._sources.append(playing)
        self._fill()
        return playing.ended

    async def drained(self) -> None:
        """Returns when nothing runs any more and no source has anything to start."""
        while self._sources:
            await asyncio.wait([playing.ended for playing in self._sources])

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Adds what the block raises to `failures`."""
        try:
            yield
        except BaseException as failure:
            self.failures.append(failure)
            raise

    @property
    def idle_s(self) -> float:
        """Seconds in which no episode ran, since the stream was made."""
        return self._idle_s + (0.0 if self._running else time.perf_counter() - self._idle_since)

    def _fill(self) -> None:
        for playing in list(self._sources):
            exhausted = self._stopping()
            while not exhausted and self._running < self._concurrency:
                attempt = playing.source.next()
                if attempt is None:
                    exhausted = True
                else:
                    self._start(playing, attempt)
            if exhausted and not playing.running:
                self._sources.remove(playing)
                if not playing.ended.done():
                    playing.ended.set_result(None)

    def _start(self, playing: _Playing, attempt: Attempt) -> None:
        if not self._running:
            self._idle_s += time.perf_counter() - self._idle_since
        self._running += 1
        playing.running += 1
        seat = self._player.seat()
        seat.take()
        task = self._group.create_task(self._play(playing, attempt, seat))
        task.add_done_callback(lambda _: seat.leave())  # not in the task itself, which may be cancelled unstarted

    async def _play(self, playing: _Playing, attempt: Attempt, seat: Seat) -> None:
        with self.noting_failure():
            trajectory = await self._played(attempt, seat)
            if (recorded := playing.listener(trajectory)) is not None:
                await recorded
            playing.source.done(attempt, trajectory)
            playing.running -= 1
            self._running -= 1
            if not self._running:
                self._idle_since = time.perf_counter()
            self._fill()

    async def _played(self, attempt: Attempt, seat: Seat) -> Trajectory:
        try:
            return await self._player.play(attempt, seat)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            assert task is not None
            if task.cancelling():
                raise
            # A task group takes this for the end of a task that it cancelled, and its source would wait forever.
            raise RuntimeError(f"Episode {attempt.id} was cancelled by a task that it awaited.") from error


@asynccontextmanager
async def streaming(
    player: AttemptPlayer, *, concurrency: int, stopping: Callable[[], bool] = lambda: False
) -> AsyncIterator[Stream]:
    """A stream for as long as the block runs. What is still running when the block raises is cancelled.

    Raises:
        BaseException: What the block, an episode or a listener raised first. An episode or a listener that raises
            cancels the block.
    """
    group = asyncio.TaskGroup()
    stream = Stream(player, group, concurrency=concurrency, stopping=stopping)
    try:
        async with group:
            with stream.noting_failure():
                yield stream
    except BaseException as failure:
        first = next(iter(stream.failures), failure)
        raise first from first.__cause__


async def play_stream(
    player: AttemptPlayer,
    source: Source,
    *,
    concurrency: int,
    on_trajectory: TrajectoryListener,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Plays what the source gives, as a `Stream` does, until nothing runs and it gives nothing more."""
    async with streaming(player, concurrency=concurrency, stopping=stopping) as stream:
        await stream.add(source, on_trajectory)


async def play_all(
    player: AttemptPlayer,
    attempts: Sequence[Attempt],
    *,
    concurrency: int,
    on_trajectory: TrajectoryListener,
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
