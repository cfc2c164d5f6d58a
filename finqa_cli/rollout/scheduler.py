"""One source, or a list of attempts, played to its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.stream import Source, TrajectoryListener, streaming
from finqa_cli.types import Trajectory


async def play_stream(
    player: Player,
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
    player: Player,
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
