"""Which replica a request goes to: where its beginning is cached or least is in progress, and none that fails.

The caller supplies the time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeGuard

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.errors import EngineError, ServiceUnavailableError

log = structlog.get_logger(__name__)

BLOCK = 16
"""Tokens. vLLM shares cached beginnings in whole blocks of so many, so a few more common tokens gain nothing."""

LEAST_SLACK = 2

MOST_BLOCKS = 8192
MOST_EPISODES = 16_384
"""More than are live at once by far; an episode that is forgotten is routed like a new one."""


def slack(least: int) -> int:
    """Requests that a replica may have in progress beyond the least loaded one and still be preferred for its cache.

    A quarter of what the least loaded one has: where much waits, the members of a group stay together; where little
    does, an idle replica is worth more than a prompt that need not be read again.
    """
    return max(LEAST_SLACK, least // 4)


class Router:
    """Keeps an episode where its cache is, and sends a new one to where its beginning was seen lately."""

    def __init__(self, replicas: int) -> None:
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._blocks: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]

    def choose(self, episode: str, token_ids: Sequence[int], loads: Mapping[int, int]) -> int:
        """The replica for an episode's request: its own, or for one that is new or has lost its replica the one that
        has the longest common beginning, then the least loaded, then the first.

        Args:
            episode: What its requests have in common.
            token_ids: The whole prompt.
            loads: Requests in progress of each replica that may be chosen; at least one.
        """
        home = self._homes.get(episode)
        if home is None or home not in loads:
            chain = tuple(_chain(token_ids))
            least = min(loads.values())
            near = [replica for replica, load in loads.items() if load <= least + slack(least)]
            home = min(near, key=lambda replica: (-self._held(replica, chain), loads[replica], replica))
            self._remember(home, chain)
        self.move(episode, home)
        return home

    def move(self, episode: str, home: int) -> None:
        """Send the episode's next requests to this replica, as long as it may be chosen."""
        self._homes[episode] = home
        self._homes.move_to_end(episode)
        if len(self._homes) > MOST_EPISODES:
            self._homes.popitem(last=False)

    def _held(self, replica: int, chain: Sequence[int]) -> int:
        """Leading blocks of the prompt that the replica has seen."""
        seen = self._blocks[replica]
        return next((count for count, block in enumerate(chain) if block not in seen), len(chain))

    def _remember(self, replica: int, chain: Sequence[int]) -> None:
        seen = self._blocks[replica]
        for block in chain:
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > MOST_BLOCKS:
            seen.popitem(last=False)


def _chain(token_ids: Sequence[int]) -> Iterator[int]:
    """One hash for each whole block, of it and of everything before it."""
    before = 0
    for start in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        before = hash((before, *token_ids[start : start + BLOCK]))
        yield before


FAILURES = 3
"""Consecutive failures after which a replica is left out; requests that fail together count as one."""

BACKOFF = Backoff(first_s=10.0, longest_s=300.0)


class ReplicaHealth:
    """Failures in a row of one replica, and its load.

    Attributes:
        number: Its place among the replicas.
        load: Requests in progress.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.load = 0
        self._failures = 0
        self._failed_at = self._due = float("-inf")

    @property
    def in_service(self) -> bool:
        """False from its last failure in a row to its next success."""
        return self._failures < FAILURES

    def usable(self, now: float) -> bool:
        """In service, or due for a trial with one request."""
        return self.in_service or (now >= self._due and not self.load)

    def failed(self, error: Exception, *, began: float, now: float) -> None:
        """A request that began then failed now. One death takes many requests with it and counts once."""
        if began < self._failed_at:
            return
        self.leave(error, now, failures=max(self._failures + 1, FAILURES if is_away(error) else 0))

    def leave(self, reason: BaseException, now: float, *, failures: int = FAILURES) -> None:
        """Counts so many failures in a row, and pauses longer after each one above the limit."""
        told = self.in_service
        self._failures, self._failed_at = failures, now
        if not self.in_service:
            self._due = now + BACKOFF.pause_s(failures - FAILURES + 1)
            if told:
                log.warning("an engine replica is not used", replica=self.number, reason=str(reason))
                self._on_left(reason)

    def away(self, reason: ServiceUnavailableError, now: float) -> None:
        """It could not be reached to load a version."""
        self.leave(reason, now, failures=max(self._failures + 1, FAILURES))

    def due(self) -> None:
        """It loaded a version while it was left out, so the next request may try it."""
        self._due = float("-inf")

    def succeeded(self) -> None:
        """It answered."""
        if not self.in_service:
            log.info("an engine replica is available again", replica=self.number)
            self._on_back()
        self._failures = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """One request is in progress."""
        self.load += 1
        try:
            yield
        finally:
            self.load -= 1

    def _on_left(self, reason: BaseException) -> None:
        """Called when it is left out."""

    def _on_back(self) -> None:
        """Called when it is in service again."""


def is_away(error: object) -> TypeGuard[ServiceUnavailableError]:
    """Whether an engine reports that it cannot be reached, and not only that it failed this time."""
    return isinstance(error, ServiceUnavailableError) and not isinstance(error, EngineError)
