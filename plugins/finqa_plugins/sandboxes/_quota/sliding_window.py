"""A sliding-window limit of requests, as the service counts them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTLE_S = 5.0
"""Seconds after which the service has surely counted a request, answered or not, even if process or service are busy.
If every reply takes longer, this costs 1 / 13 of a limit per minute."""
_MARGIN_S = 0.001


class SlidingWindow:
    """At most `limit` requests in any `window_s` seconds, as the service counts them. Pure: the clock is an argument.

    The service counts a request at some moment between its sending and its reply. A request therefore has its place
    until `window_s` after the reply, so that no window of the service, however it is aligned and for all latencies,
    contains more than `limit`. A request without a reply counts as counted `settle_s` after its sending: a sandbox that
    takes minutes to start must not occupy its place for longer.
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
        """Seconds until the next request may be sent; 0.0: now. Later replies can only shorten it."""
        self._forget(now)
        counted = sorted(at for at in self._counted_by.values() if at >= now - self._window_s)
        excess = len(counted) - self._limit
        release = now
        if excess >= 0:
            release = counted[excess] + self._window_s + _MARGIN_S
        return max(release - now, self._paused_until - now, 0.0)

    def begin(self, now: float) -> int:
        """Record that a request is sent; return the ticket for `end`."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._counted_by[ticket] = now + self._settle_s
        return ticket

    def end(self, ticket: int, now: float, *, sent: bool = True) -> None:
        """Record that the reply of a request has come, or will not come. Unknown tickets are ignored.

        Args:
            ticket: As `begin` returned it.
            now: Time of the clock.
            sent: Whether the request was sent; otherwise its place is free.
        """
        if ticket in self._counted_by:
            if sent:
                self._counted_by[ticket] = min(self._counted_by[ticket], now)
            else:
                del self._counted_by[ticket]

    def pause(self, until: float) -> None:
        """Allow no request before this time."""
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
            ValueError: The state is invalid.
            TypeError: The state is invalid.
            KeyError: The state is invalid.
        """
        latest = now + self._settle_s  # a later time can only come from another clock
        counted_by = {int(ticket): min(float(at), latest) for ticket, at in state["counted_by"]}
        next_ticket, paused_until = int(state["next_ticket"]), float(state["paused_until"])
        self._longest_s = max(self._longest_s, float(state["longest_s"]))
        self._counted_by, self._next_ticket, self._paused_until = counted_by, next_ticket, paused_until

    def _forget(self, now: float) -> None:
        oldest = now - self._longest_s
        self._counted_by = {ticket: at for ticket, at in self._counted_by.items() if at >= oldest}
