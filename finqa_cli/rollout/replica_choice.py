"""Choice of the replica for a request, by cached prefix and load, and the health of each replica.

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
"""Tokens of a block. vLLM caches prefixes in whole blocks of this size, so a partial block is not counted."""

LEAST_SLACK = 2

MOST_BLOCKS = 8192
"""Most blocks that are remembered for each replica."""

MOST_EPISODES = 16_384
"""Most episodes that are remembered: far more than are live at once. A forgotten episode is routed like a new one."""


def slack(least: int) -> int:
    """Number of requests by which a replica may exceed the least loaded one and still be preferred for its cache.

    It is a quarter of the load of the least loaded replica, and at least 2. Under high load the members of a group stay
    together. Under low load an idle replica is worth more than a cached prompt.
    """
    return max(LEAST_SLACK, least // 4)


class Router:
    """Keeps an episode on the replica that caches it, and sends a new one to a replica that has seen its prefix."""

    def __init__(self, replicas: int) -> None:
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._blocks: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]

    def choose(self, episode: str, token_ids: Sequence[int], loads: Mapping[int, int]) -> int:
        """Return the replica for an episode's request.

        It is the episode's own replica, if that may be chosen. Otherwise it is the replica with the longest common
        prefix among those within `slack`, then the least loaded, then the first.

        Args:
            episode: Id of the episode.
            token_ids: The whole prompt.
            loads: Requests in progress of each replica that may be chosen; at least one replica.
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
        """Make this replica the episode's own: its next requests go there as long as it may be chosen."""
        self._homes[episode] = home
        self._homes.move_to_end(episode)
        if len(self._homes) > MOST_EPISODES:
            self._homes.popitem(last=False)

    def _held(self, replica: int, chain: Sequence[int]) -> int:
        """Number of leading blocks of the prompt that the replica has seen."""
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
    """Yield a hash for each whole block, of the block and everything before it."""
    before = 0
    for start in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        before = hash((before, *token_ids[start : start + BLOCK]))
        yield before


FAILURES = 3
"""Consecutive failures after which a replica is excluded; requests that fail together count as one failure."""

BACKOFF = Backoff(first_s=10.0, longest_s=300.0)


class ReplicaHealth:
    """Health and load of one replica. Times are seconds on the caller's clock.

    Attributes:
        number: Its number among the replicas.
        load: Number of requests in progress.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.load = 0
        self._failures = 0
        self._failed_at = self._due = float("-inf")

    @property
    def in_service(self) -> bool:
        """Whether it is not excluded: False from `FAILURES` failures in a row until its next success."""
        return self._failures < FAILURES

    def usable(self, now: float) -> bool:
        """Whether it may get a request: it is in service, or its pause is over and one request may try it."""
        return self.in_service or (now >= self._due and not self.load)

    def failed(self, error: Exception, *, began: float, now: float) -> None:
        """Count the failure of a request.

        Requests that began before the last failure are not counted: one death fails many requests and counts once.

        Args:
            error: The failure. If the replica cannot be reached, it is excluded at once.
            began: Time at which the request began.
            now: Time of the failure.
        """
        if began < self._failed_at:
            return
        self.leave(error, now, failures=max(self._failures + 1, FAILURES if is_away(error) else 0))

    def leave(self, reason: BaseException, now: float, *, failures: int = FAILURES) -> None:
        """Set the number of failures in a row. From `FAILURES` on the replica is excluded, with growing pauses."""
        was_in_service = self.in_service
        self._failures, self._failed_at = failures, now
        if not self.in_service:
            self._due = now + BACKOFF.pause_s(failures - FAILURES + 1)
            if was_in_service:
                # Log: With the event `engine_left_out`.
                log.warning("an engine replica is not used", replica=self.number, reason=str(reason))
                self._on_left(reason)

    def away(self, reason: ServiceUnavailableError, now: float) -> None:
        """Exclude the replica because it could not be reached."""
        self.leave(reason, now, failures=max(self._failures + 1, FAILURES))

    def due(self) -> None:
        """End the pause of an excluded replica, so that the next request may try it."""
        self._due = float("-inf")

    def succeeded(self) -> None:
        """Record that the replica answered: it is in service."""
        if not self.in_service:
            # Log: With the event `engine_back`.
            log.info("an engine replica is available again", replica=self.number)
            self._on_back()
        self._failures = 0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count one request in progress for this block."""
        self.load += 1
        try:
            yield
        finally:
            self.load -= 1

    def _on_left(self, reason: BaseException) -> None:
        """Called when the replica is excluded."""

    def _on_back(self) -> None:
        """Called when the replica is in service again."""


def is_away(error: object) -> TypeGuard[ServiceUnavailableError]:
    """Whether an error means that an engine cannot be reached, and not only that one request failed."""
    return isinstance(error, ServiceUnavailableError) and not isinstance(error, EngineError)
