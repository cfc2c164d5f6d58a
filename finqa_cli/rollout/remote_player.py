"""The player of a run with rollout workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from finqa_cli.rollout.attempts import Attempt, Seat
from finqa_cli.rollout.remote_workers import RemoteWorkers
from finqa_cli.rollout.worker_messages import Rules
from finqa_cli.types import Trajectory


class RemotePlayer:
    """Has rollout workers play; see `Player`."""

    def __init__(
        self,
        workers: RemoteWorkers,
        seat: Callable[[], AbstractContextManager[None]],
        rules: Rules,
        played: Callable[[Trajectory], None] = lambda trajectory: None,
    ) -> None:
        """Play by rules on seats of the engine; `played` is called with the last try of each attempt."""
        self._workers, self._seat, self._rules, self._played = workers, seat, rules, played

    def seat(self) -> Seat:
        """Return a place among the engine's live episodes, not yet taken."""
        return Seat(self._seat)

    async def play(self, attempt: Attempt, seat: Seat) -> Trajectory:
        """Have an attempt played.

        Raises:
            ServiceUnavailableError: See `RemoteWorkers.play`.
        """
        trajectory = await self._workers.play(attempt, self._rules)
        self._played(trajectory)
        return trajectory
