"""The rule of a create limit: at most so many requests in any window, as the service counts them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTLE_S = 5.0
"""Seconds after which a request has been counted by the service, answered or not. It may wait in a busy process or
service meanwhile; where every reply takes longer, this costs 1 / 13 of a limit per minute."""
_MARGIN_S = 0.001


class SlidingWindow:
    """At most `limit` requests in any `window_s` seconds, as the service counts them. Pure: the clock is an argument.

    The service counts a request at some moment between its sending and its reply. A place is therefore free again only
    `window_s` after the reply, so that no window of the service, however it is aligned and for all latencies,
    contains more than `limit`. A request without a reply is taken as counted `settle_s` after its sending: a sandbox
    that takes minutes to start must not hold its place for as long.
    """

    def __init__(self, limit: int, window_s: float, settle_s: float = SETTLE_S) -> None:
        self._limit = limit
        self._window_s = window_s
        self._settle_s = settle_s
        self._longest_s = window_s
        self._counted_by: dict[int, float] = {}
        self._next_ticket = 0
        self._paused_until = float("-inf")

    def delay(self, now: float) -> float:
        """Seconds until the next request may go; 0.0 when it may go now. Later replies can only shorten it."""
        self._forget(now)
        counted = sorted(at for at in self._counted_by.values() if at >= now - self._window_s)
        excess = len(counted) - self._limit
        release = now
        if excess >= 0:
            release = counted[excess] + self._window_s + _MARGIN_S
        return max(release - now, self._paused_until - now, 0.0)

    def begin(self, now: float) -> int:
        """A request goes out; the ticket is for `end`."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._counted_by[ticket] = now + self._settle_s
        return ticket

    def end(self, ticket: int, now: float, *, sent: bool = True) -> None:
        """Its reply is in, or will not come. A request that had already settled is unknown here, which is fine.

        Args:
            ticket: As `begin` returned it.
            now: The clock.
            sent: False: the request did not go out, so that its place is free.
        """
        if ticket in self._counted_by:
            if sent:
                self._counted_by[ticket] = min(self._counted_by[ticket], now)
            else:
                del self._counted_by[ticket]

    def pause(self, until: float) -> None:
        """Nothing goes out before this moment."""
        self._paused_until = max(self._paused_until, until)

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as values of JSON."""
        return {
            "next_ticket": self._next_ticket,
            "paused_until": max(self._paused_until, -1e300),  # JSON has no infinity
            "longest_s": self._longest_s,
            "counted_by": sorted(self._counted_by.items()),
        }

    def restore(self, state: Mapping[str, Any], now: float) -> None:
        """Continue from a state, which may be of a window with another limit and length.

        Raises:
            ValueError: It is not a state.
            TypeError: It is not a state.
            KeyError: It is not a state.
        """
        latest = now + self._settle_s  # no request can count later, unless it was written under another clock
        counted_by = {int(ticket): min(float(at), latest) for ticket, at in state["counted_by"]}
        next_ticket, paused_until = int(state["next_ticket"]), float(state["paused_until"])
        self._longest_s = max(self._longest_s, float(state["longest_s"]))
        self._counted_by, self._next_ticket, self._paused_until = counted_by, next_ticket, paused_until

    def _forget(self, now: float) -> None:
        oldest = now - self._longest_s
        self._counted_by = {ticket: at for ticket, at in self._counted_by.items() if at >= oldest}
