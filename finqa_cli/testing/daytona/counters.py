"""What the loopback Daytona counts."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Window:
    """The limiter of creates: at most `limit` in any window of `window_s` seconds. 0 means no limit.

    Attributes:
        busiest: The most creates that any window has held.
    """

    limit: int
    window_s: float
    busiest: int = 0
    _taken: deque[float] = field(default_factory=deque)

    def take(self, now: float) -> bool:
        """Counts a create, or says that the window is full."""
        self._forget(now)
        if self.limit and len(self._taken) >= self.limit:
            return False
        self._taken.append(now)
        self.busiest = max(self.busiest, len(self._taken))
        return True

    def headers(self, now: float) -> dict[str, str]:
        """Daytona's headers about the limit (docs, Limits, 2026-07)."""
        if not self.limit:
            return {}
        self._forget(now)
        return {
            "X-RateLimit-Limit-sandbox-create": str(self.limit),
            "X-RateLimit-Remaining-sandbox-create": str(max(0, self.limit - len(self._taken))),
            "X-RateLimit-Reset-sandbox-create": str(self.wait(now)),
        }

    def wait(self, now: float) -> int:
        """Whole seconds, 1 at least, until the oldest create leaves the window."""
        return max(1, -int(-(self._taken[0] + self.window_s - now) // 1)) if self._taken else 1

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0] <= now - self.window_s:
            self._taken.popleft()


@dataclass(slots=True)
class Counters:
    """Sums since the start.

    Attributes:
        requests: `METHOD /route` -> status -> number; status 0 is a cut connection or a hang.
        creates: Create requests by what became of them: accepted, limited because the window was full, refused.
        name_conflicts: Creates that asked for the name of a living box.
        boxes: Boxes ever made.
        unauthorised: Requests with a wrong key.
        websockets: Preview connections upgraded so far, open now, and the most at once.
    """

    started: float = field(default_factory=time.time)
    requests: dict[str, Counter[int]] = field(default_factory=dict)
    creates: Counter[str] = field(default_factory=Counter)
    name_conflicts: int = 0
    boxes: int = 0
    most_boxes: int = 0
    unauthorised: int = 0
    websockets: int = 0
    websockets_open: int = 0
    websockets_most: int = 0

    def request(self, route: str, status: int) -> None:
        """Counts an answer."""
        self.requests.setdefault(route, Counter())[status] += 1

    def upgraded(self) -> None:
        """Counts a preview WebSocket that opened."""
        self.websockets += 1
        self.websockets_open += 1
        self.websockets_most = max(self.websockets_most, self.websockets_open)
