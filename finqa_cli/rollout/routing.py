"""Which replica a request goes to: where the beginning of its prompt is cached, or where least is in progress."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

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
        """The replica for an episode's request: its own, or for one that is new or homeless the one that holds the
        longest common beginning, then the least loaded, then the first.

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
