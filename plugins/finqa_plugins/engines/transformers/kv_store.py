"""Keys and values that outlive a batch: one entry per episode, dropped least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept of one sequence.

    Attributes:
        token_ids: [n] the whole sequence, opening included.
        start: Position of the first token whose keys and values are in `tensor`; those before it are an opening's.
        tensor: [layers, 2, kv heads, n - start, D].
    """

    token_ids: tuple[int, ...]
    start: int
    tensor: Tensor

    @property
    def size(self) -> int:
        """Bytes."""
        return self.tensor.numel() * self.tensor.element_size()

    def usable(self, token_ids: Sequence[int], start: int) -> int:
        """How many leading tokens of a prompt this entry (with an opening of `start` tokens) spares; 0 for none.

        At least the last token of the prompt is always computed, for its logits.
        """
        if self.start > start:
            return 0
        known = common_prefix(self.token_ids, token_ids, limit=len(token_ids) - 1)
        return known if known > start else 0


class KvStore:
    """Entries by episode, at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, episode: str) -> Entry | None:
        """The entry, which becomes the most recently used."""
        entry = self._entries.get(episode)
        if entry is not None:
            self._entries.move_to_end(episode)
        return entry

    def put(self, episode: str, entry: Entry) -> None:
        """Replaces the episode's entry and drops the least recently used ones beyond the budget."""
        self.discard(episode)
        if entry.size > self.budget:
            return
        self._entries[episode] = entry
        self.size += entry.size
        while self.size > self.budget:
            self.discard(next(iter(self._entries)))

    def discard(self, episode: str) -> None:
        """Drops one entry, if it is there."""
        if (entry := self._entries.pop(episode, None)) is not None:
            self.size -= entry.size

    def keep(self, episodes: set[str]) -> None:
        """Drops the entries of all other episodes."""
        for episode in [episode for episode in self._entries if episode not in episodes]:
            self.discard(episode)

    def clear(self) -> None:
        """Drops everything."""
        self._entries.clear()
        self.size = 0


def common_prefix(left: Sequence[int], right: Sequence[int], *, limit: int) -> int:
    """Length of the longest common prefix, at most `limit`."""
    limit = max(0, min(limit, len(left), len(right)))
    if left[:limit] == right[:limit]:
        return limit
    return next(index for index in range(limit) if left[index] != right[index])
