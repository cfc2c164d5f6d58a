"""Concurrent episodes of several sources, without a barrier: a free place is filled at once."""

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
"""Called with each episode that ended. If it returns an awaitable, that is awaited before the episode counts."""


class Source(Protocol):
    """Source of attempts. Both methods return quickly and never wait."""

    def next(self) -> Attempt | None:
        """Return the next attempt; None if there is none now. After a call of `done` there may be some again."""
        ...

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """Receive the result of an attempt."""
        ...


@dataclass(slots=True)
class _Playing:
    """One source that is played.

    Attributes:
        source: The source.
        listener: Receives its episodes.
        ended: Done when none of its episodes runs and it has no more.
        running: Number of its episodes in progress.
    """

    source: Source
    listener: TrajectoryListener
    ended: asyncio.Future[None]
    running: int = 0


class Stream:
    """Plays the attempts of its sources, at most `concurrency` episodes at once; made by `streaming`.

    No episode waits for another one, and none is cancelled. When an episode ends, the free places are filled at once.
    The new episodes take their engine seats before the ended one releases its seat. So an engine in lockstep, which
    waits for every seat, gets the same batches whichever episode of a batch ends first. Sources that were added earlier
    come first, so that an iteration is not delayed by rollouts for later iterations.

    Attributes:
        failures: Exceptions of episodes and of the block of `streaming`, in the order in which they occurred. A task
            group does not keep the order, and prefers other errors to a cancellation.
    """

    def __init__(
        self,
        player: AttemptPlayer,
        group: asyncio.TaskGroup,
        *,
        concurrency: int,
        stopping: Callable[[], bool],
        admits: Callable[[int], bool],
    ) -> None:
        self._player = player
        self._group = group
        self._concurrency = concurrency
        self._stopping = stopping
        self._admits = admits
        self._sources: list[_Playing] = []
        self.failures: list[BaseException] = []
        self._running = 0
        self._idle_s = 0.0
        self._idle_since = time.perf_counter()

    def add(self, source: Source, on_trajectory: TrajectoryListener) -> asyncio.Future[None]:
        """Start to play a source; return a future that is done when none of its episodes runs and it has no more.

        `on_trajectory` is called with each episode as it ends, and awaited, because its record may have to be durable.
        When `stopping` returns True, running episodes finish and no new one starts. An exception in an episode ends the
        whole stream; faults are no exceptions.
        """
        playing = _Playing(source, on_trajectory, asyncio.get_running_loop().create_future())
        self._sources.append(playing)
        self._fill()
        return playing.ended

    async def drained(self) -> None:
        """Wait until no episode runs and no source has another attempt."""
        while self._sources:
            await asyncio.wait([playing.ended for playing in self._sources])

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Add an exception of the block to `failures`, and raise it."""
        try:
            yield
        except BaseException as failure:
            self.failures.append(failure)
            raise

    @property
    def idle_s(self) -> float:
        """Seconds since the creation of the stream in which no episode ran."""
        return self._idle_s + (0.0 if self._running else time.perf_counter() - self._idle_since)

    def _fill(self) -> None:
        for playing in list(self._sources):
            exhausted = self._stopping()
            while not exhausted and self._running < self._concurrency and self._admits(self._running):
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
        task.add_done_callback(lambda _: seat.leave())  # not inside the task, which may be cancelled before it starts

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
            # A task group ignores a cancelled task, so the source would wait for this episode forever.
            raise RuntimeError(f"Episode {attempt.id} was cancelled by a task that it awaited.") from error


@asynccontextmanager
async def streaming(
    player: AttemptPlayer,
    *,
    concurrency: int,
    stopping: Callable[[], bool] = lambda: False,
    admits: Callable[[int], bool] = lambda running: True,
) -> AsyncIterator[Stream]:
    """Yield a stream for this block, and wait at its end for running episodes. If the block raises, cancel them.

    Args:
        player: Plays the attempts.
        concurrency: Largest number of episodes at once.
        stopping: Returns whether no further episode may start.
        admits: Returns whether one more episode may start beside so many; asked again when an episode ends.

    Raises:
        BaseException: The first exception of the block, an episode or a listener. An exception in an episode or a
            listener cancels the block.
    """
    group = asyncio.TaskGroup()
    stream = Stream(player, group, concurrency=concurrency, stopping=stopping, admits=admits)
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
    admits: Callable[[int], bool] = lambda running: True,
) -> None:
    """Play all attempts of a source; see `Stream.add`."""
    async with streaming(player, concurrency=concurrency, stopping=stopping, admits=admits) as stream:
        await stream.add(source, on_trajectory)


async def play_all(
    player: AttemptPlayer,
    attempts: Sequence[Attempt],
    *,
    concurrency: int,
    on_trajectory: TrajectoryListener,
    stopping: Callable[[], bool] = lambda: False,
    admits: Callable[[int], bool] = lambda running: True,
) -> list[Trajectory]:
    """Play all attempts as `play_stream` does, and return the trajectories in the order of the attempts.

    If `stopping` returned True, attempts that were not started are missing.
    """
    listed = _Listed(attempts)
    await play_stream(
        player, listed, concurrency=concurrency, on_trajectory=on_trajectory, stopping=stopping, admits=admits
    )
    return [listed.finished[attempt.id] for attempt in attempts if attempt.id in listed.finished]


class _Listed:
    """A source of a given list of attempts; `finished` has their trajectories by id."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._queue = deque(attempts)
        self.finished: dict[str, Trajectory] = {}

    def next(self) -> Attempt | None:
        return self._queue.popleft() if self._queue else None

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        self.finished[attempt.id] = trajectory
