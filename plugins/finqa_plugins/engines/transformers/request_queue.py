"""Requests that wait for a batch, and when a batch is due. Plain bookkeeping: no clock, no tasks, no torch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from finqa_cli.types import Completion
from finqa_plugins.engines.transformers.decode import Job


@dataclass(slots=True, eq=False)
class Ticket:
    """One caller inside `generate`.

    Attributes:
        job: Its request.
        answer: Resolved when the row ends.
        arrived: Seconds on the loop's clock.
    """

    job: Job
    answer: asyncio.Future[Completion]
    arrived: float

    @property
    def unfinished(self) -> bool:
        """Whether it was interrupted and continues."""
        return self.job.outcome is None and not self.job.abandoned


@dataclass(slots=True)
class RequestQueue:
    """Tickets that no batch has taken yet, and the seats they may come from.

    Attributes:
        lockstep: A batch is dispatched only once every seat waits.
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
        return bool(self.seats) and len(self.tickets) - len(self._guests()) >= self.seats

    def due_in(self, now: float) -> float | None:
        """Seconds until a batch is due: 0 is now, None is not before something happens."""
        if not self.tickets:
            return None
        if not self.seats or self.everyone or self._guests():
            return 0.0
        if self.lockstep:
            return None
        if len(self.tickets) >= self.enough:
            return 0.0
        return max(0.0, self.tickets[0].arrived + self.wait_seconds - now)

    def joins_in(self, now: float, decoding: int) -> float | None:
        """Seconds until those who wait should join a running batch with `decoding` live rows; None is never.

        Joining copies the keys and values of every live row, so a few wait `wait_seconds` for more; as many as are
        decoding do not.
        """
        if self.lockstep or not self.tickets or not decoding:
            return None
        if len(self.tickets) >= min(decoding, self.enough):
            return 0.0
        return max(0.0, self.tickets[0].arrived + self.wait_seconds - now)

    def take(self) -> list[Ticket]:
        """Who is dispatched, in the order of their keys: all, but in lockstep guests alone while there are seats.

        So guests, who come at any time, change no batch of the episodes.
        """
        guests = self._guests()
        chosen = guests if self.lockstep and self.seats and guests else self.tickets
        self.tickets = [ticket for ticket in self.tickets if ticket not in chosen]
        return sorted(chosen, key=lambda ticket: ticket.job.request.key)

    def leave(self, ticket: Ticket) -> None:
        """A caller gave up; harmless when a batch has taken it."""
        if ticket in self.tickets:
            self.tickets.remove(ticket)

    def _guests(self) -> list[Ticket]:
        """Tickets of no episode, and so of no seat: no further request is known that could share their batch."""
        return [ticket for ticket in self.tickets if not ticket.job.episode]
