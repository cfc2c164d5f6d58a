"""Brings prompts into a batch buffer, computing only what no kept entry already holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from finqa_plugins.engines.transformers.batch_cache import BatchCache
from finqa_plugins.engines.transformers.device_placement import FORWARD_TOKENS
from finqa_plugins.engines.transformers.kv_store import Entry
from finqa_plugins.engines.transformers.served_model import CausalModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row to fill.

    Attributes:
        token_ids: The whole prompt, opening included.
        entry: Kept keys and values of a prefix, or None.
        known: How many leading tokens need no computing; at least the opening's, at most all but one.
    """

    token_ids: tuple[int, ...]
    entry: Entry | None
    known: int

    @property
    def unknown(self) -> int:
        """How many tokens are to be computed."""
        return len(self.token_ids) - self.known


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch buffer that holds its prompts.

    Attributes:
        buffer: [layers, 2, N, kv heads, columns, D].
        valid: [N, columns] False at columns before a row's first token.
        length: Columns that are filled.
        first: Column of each row's first token.
        logits: [N, V] after each prompt.
        computed: Tokens that went through the model for it, padding included.
    """

    buffer: Tensor
    valid: Tensor
    length: int
    first: list[int]
    logits: Tensor
    computed: int

    def entry(self, row: int, token_ids: tuple[int, ...], start: int) -> Entry:
        """A copy of what the row holds for `token_ids`; `start` is the length of the opening."""
        begin = self.first[row]
        end = begin + len(token_ids) - start
        return Entry(token_ids, start, self.buffer[:, :, row, :, begin:end].clone())


@torch.inference_mode()
def fill(model: CausalModel, prompts: Sequence[Prompt], buffer: Tensor, opening: Entry | None) -> Filled:
    """Fills the buffer with prompts, ordered by `unknown`; rows end in the same column.

    A slice of rows with unequal numbers of unknown tokens is computed at its longest: the others compute some known
    tokens again, which costs what padding would and leaves no holes.
    """
    start = len(opening.token_ids) if opening else 0
    length = max(len(prompt.token_ids) for prompt in prompts) - start
    first = [length - (len(prompt.token_ids) - start) for prompt in prompts]
    _copy_known(prompts, buffer, first, start)
    widest = min(length, prompts[-1].unknown)
    token_ids = _right_aligned(prompts, widest, start).to(model.device)
    begins = torch.tensor(first, device=model.device)
    columns = torch.arange(buffer.shape[4], device=model.device)
    valid = columns[None, :] >= begins[:, None]
    positions = (columns[None, :] - begins[:, None]).clamp_(min=0) + start
    logits, computed = [], 0
    for rows in _slices(prompts):
        width = min(length, prompts[rows.stop - 1].unknown)
        computed += (rows.stop - rows.start) * width
        step = max(1, FORWARD_TOKENS // (rows.stop - rows.start))
        for column in range(length - width, length, step):
            end = min(length, column + step)
            last = model.forward(
                token_ids[rows, widest - length + column : widest - length + end],
                positions[rows, column:end],
                valid[rows, :end],
                BatchCache(buffer, rows, column),
                opening.tensor if opening else None,
            )
        logits.append(last)
    return Filled(buffer, valid, length, first, torch.cat(logits), computed)


def _copy_known(prompts: Sequence[Prompt], buffer: Tensor, first: list[int], start: int) -> None:
    for row, (prompt, begin) in enumerate(zip(prompts, first, strict=True)):
        buffer[:, :, row, :, :begin].zero_()
        if prompt.entry is not None:
            kept = prompt.entry.tensor[..., start - prompt.entry.start : prompt.known - prompt.entry.start, :]
            buffer[:, :, row, :, begin : begin + kept.shape[-2]] = kept


def _right_aligned(prompts: Sequence[Prompt], width: int, start: int) -> Tensor:
    rows = []
    for prompt in prompts:
        tail = prompt.token_ids[max(start, len(prompt.token_ids) - width) :]
        rows.append((0,) * (width - len(tail)) + tail)
    return torch.tensor(rows, dtype=torch.long)


def _slices(prompts: Sequence[Prompt]) -> Iterator[slice]:
    """Runs of rows whose numbers of unknown tokens are close."""
    begin = 0
    for row, prompt in enumerate(prompts):
        if prompt.unknown > 1.5 * prompts[begin].unknown + 8:
            yield slice(begin, row)
            begin = row
    yield slice(begin, len(prompts))
