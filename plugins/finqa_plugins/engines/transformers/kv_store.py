"""Keys and values: the buffer of a batch, written by transformers' cache protocol, and the cache between batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    """Size of the keys and values of one token: layers x (key, value) x kv heads x D; `width` is D."""

    layers: int
    kv_heads: int
    width: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.layers * 2 * self.kv_heads * self.width * self.dtype.itemsize


class Scratch:
    """Memory that all batches use in turn, so that not every batch pays for fresh pages."""

    def __init__(self, shape: KvShape, device: torch.device) -> None:
        self.shape = shape
        self.device = device
        self._memory: Tensor | None = None

    def view(self, rows: int, columns: int) -> Tensor:
        """[layers, 2, rows, kv heads, columns, D] of finite, otherwise arbitrary numbers."""
        kind = self.shape
        sizes = (kind.layers, 2, rows, kind.kv_heads, columns, kind.width)
        if self._memory is None or self._memory.numel() < prod(sizes):
            self._memory = None
            self._memory = torch.zeros(prod(sizes), dtype=kind.dtype, device=self.device)
        return self._memory[: prod(sizes)].view(sizes)

    def release(self) -> None:
        """Releases the memory."""
        self._memory = None


class BatchCache:
    """A window of rows and filled columns of a batch buffer, passed to the model as `past_key_values`.

    Rows are right-aligned: the last prompt token of every row lies in the same column, so that all rows decode into
    the same next column. Columns before a row's first token are masked.

    Attributes:
        buffer: [layers, 2, N, kv heads, columns, D].
        rows: The rows that the next forward pass covers.
        length: Number of filled columns; the next forward pass writes after them.
    """

    is_compileable = False

    def __init__(self, buffer: Tensor, rows: slice, length: int) -> None:
        self.buffer = buffer
        self.rows = rows
        self.length = length

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Writes [N, kv heads, L, D] of new tokens; returns all filled columns of the rows."""
        end = self.length + keys.shape[2]
        layer = self.buffer[layer_idx, :, self.rows, :, :end]
        layer[0, :, :, self.length :] = keys
        layer[1, :, :, self.length :] = values
        return layer[0], layer[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of filled columns."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Number of filled columns: new tokens follow them."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Columns that a forward of `query_length` tokens attends to, and where they begin."""
        return self.length + query_length, 0


@dataclass(frozen=True, slots=True)
class Entry:
    """Cached keys and values of one sequence.

    Attributes:
        token_ids: [n] the whole sequence, opening included.
        start: Position of the first token whose keys and values are in `tensor`; those before it belong to an opening.
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
        """How many leading tokens of a prompt this entry spares after an opening of `start` tokens; 0 if none.

        At least the last token of the prompt is always computed, for its logits.
        """
        if self.start > start:
            return 0
        known = common_prefix(self.token_ids, token_ids, limit=len(token_ids) - 1)
        return known if known > start else 0

    def cut(self, length: int) -> Entry:
        """Return a copy of the first `length` tokens of an entry that starts at 0."""
        return Entry(self.token_ids[:length], 0, self.tensor[..., :length, :].clone())

    def join(self, opening: Entry) -> Entry:
        """Return the entry with the keys and values of the `start` tokens that `opening` consists of."""
        return Entry(self.token_ids, opening.start, torch.cat((opening.tensor, self.tensor), dim=-2))


class KvStore:
    """Entries by episode, the most recently used ones, in at most `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, episode: str) -> Entry | None:
        """The entry, or None; it becomes the most recently used one."""
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
