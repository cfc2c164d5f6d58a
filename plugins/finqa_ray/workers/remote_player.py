"""The player of a run with rollout workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from finqa_cli.rollout.attempts import Attempt, Seat
from finqa_cli.rollout.players import Rules
from finqa_cli.types import Trajectory
from finqa_ray.workers.remote_workers import RemoteWorkers


class RemotePlayer:
    """Lets rollout workers play the attempts; see `Player` for playing in this process."""

    def __init__(
        self,
        workers: RemoteWorkers,
        seat: Callable[[], AbstractContextManager[None]],
        rules: Rules,
        played: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        """Play by `rules` with seats of the engine; `played` is called with the result of each attempt."""
        self._workers, self._seat, self._rules, self._played = workers, seat, rules, played

    def seat(self) -> Seat:
        """Return an engine seat that is not yet taken."""
        return Seat(self._seat)

    async def play(self, attempt: Attempt, seat: Seat) -> Trajectory:
        """Let a worker play an attempt.

        Raises:
            ServiceUnavailableError, FinqaError: See `RemoteWorkers.play`.
        """
        trajectory = await self._workers.play(attempt, self._rules)
        self._played(trajectory)
        return trajectory
