"""The keys and values of one batch, in one buffer that transformers writes through its cache protocol."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token occupies: layers x (key, value) x kv heads x D."""

    layers: int
    kv_heads: int
    width: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.layers * 2 * self.kv_heads * self.width * self.dtype.itemsize


class Scratch:
    """Memory that one batch after the other uses, so that not every batch pays for fresh pages."""

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
        """Gives the memory back."""
        self._memory = None


class BatchCache:
    """A window of rows and filled columns of a batch buffer, passed to the model as `past_key_values`.

    Rows are right-aligned: the last prompt token of every row lies in the same column, so that all rows decode into
    the same next column. Columns before a row's first token are masked.

    Attributes:
        buffer: [layers, 2, N, kv heads, columns, D].
        rows: The rows that the next forward covers.
        length: Columns that are filled; the next forward writes after them.
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
        """Filled columns."""
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Filled columns: new tokens follow them."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Columns that a forward of `query_length` tokens attends to, and where they begin."""
        return self.length + query_length, 0
