"""Who waits for a batch, and when it is due. Plain bookkeeping: no clock, no tasks, no torch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from finqa_cli.types import Completion
from finqa_plugins.transformers_engine.decode import Job


@dataclass(slots=True, eq=False)
class Ticket:
    """One caller inside `generate`.

    Attributes:
        job: Its request.
        answer: Resolved when the batch ends.
        arrived: Seconds on the loop's clock.
    """

    job: Job
    answer: asyncio.Future[Completion]
    arrived: float


@dataclass(slots=True)
class WaitingRoom:
    """Tickets that no batch has taken yet, and the seats they may come from.

    Attributes:
        lockstep: Only a full house is dispatched.
        wait_seconds: Otherwise also when the oldest ticket has waited this long, or `enough` tickets are here.
        enough: Tickets that fill a batch.
        seats: Live episodes.
    """

    lockstep: bool
    wait_seconds: float
    enough: int
    seats: int = 0
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def everyone(self) -> bool:
        """Whether every seat is waiting, so that no further request can arrive."""
        return bool(self.seats) and len(self.tickets) >= self.seats

    def due_in(self, now: float) -> float | None:
        """Seconds until a batch is due: 0 is now, None is not before something happens."""
        if not self.tickets:
            return None
        if not self.seats or self.everyone:
            return 0.0
        if self.lockstep:
            return None
        if len(self.tickets) >= self.enough:
            return 0.0
        return max(0.0, self.tickets[0].arrived + self.wait_seconds - now)

    def take(self) -> list[Ticket]:
        """All tickets, in the order of their keys; the room is empty afterwards."""
        taken, self.tickets = sorted(self.tickets, key=lambda ticket: ticket.job.request.key), []
        return taken

    def leave(self, ticket: Ticket) -> None:
        """A caller gave up; harmless when a batch has taken it."""
        if ticket in self.tickets:
            self.tickets.remove(ticket)
