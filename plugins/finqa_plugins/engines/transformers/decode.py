"""Prefill and decoding of one batch.

Prefill computes only the tokens that no kept entry holds. Decoding draws one token for every live row, until all rows
have stopped or new requests are to join them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from finqa_cli.errors import EngineError
from finqa_cli.types import Completion, GenerateRequest
from finqa_plugins.engines.transformers.device_placement import FORWARD_TOKENS, PART_TOKENS
from finqa_plugins.engines.transformers.kv_store import BatchCache, Entry, KvStore
from finqa_plugins.engines.transformers.sampling import Sampler
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
def fill(
    model: CausalModel,
    prompts: Sequence[Prompt],
    buffer: Tensor,
    opening: Entry | None,
    threads: Executor | None = None,
) -> Filled:
    """Fills the buffer with prompts, ordered by `unknown`; rows end in the same column.

    A slice of rows with unequal numbers of unknown tokens is computed at its longest: the others compute some known
    tokens again, which costs what padding would and leaves no holes. With `threads`, parts of at most `PART_TOKENS`
    are computed side by side; where they are cut depends on the prompts alone.
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
    tokens = PART_TOKENS if threads else FORWARD_TOKENS

    def compute(rows: slice, width: int) -> Tensor:
        step = max(1, tokens // (rows.stop - rows.start))
        for column in range(length - width, length, step):
            end = min(length, column + step)
            last = model.forward(
                token_ids[rows, widest - length + column : widest - length + end],
                positions[rows, column:end],
                valid[rows, :end],
                BatchCache(buffer, rows, column),
                opening.tensor if opening else None,
            )
        return last

    slices = [(rows, min(length, prompts[rows.stop - 1].unknown)) for rows in _slices(prompts)]
    if threads:
        slices = [(part, width) for rows, width in slices for part in _parts(rows, max(1, tokens // width))]
    logits = list((threads.map if threads else map)(compute, *zip(*slices, strict=True)))
    computed = sum((rows.stop - rows.start) * width for rows, width in slices)
    return Filled(buffer, valid, length, first, torch.cat(logits), computed)


def _parts(rows: slice, size: int) -> Iterator[slice]:
    """Cut rows into parts of nearly equal size, `size` at most."""
    count = rows.stop - rows.start
    parts = -(-count // size)
    for part in range(parts):
        yield slice(rows.start + count * part // parts, rows.start + count * (part + 1) // parts)


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


MIN_STEPS = 16  # tokens between two regroupings of a batch: each copies the keys and values of its rows


@dataclass(slots=True, eq=False)
class Job:
    """One request on its way through the engine.

    Attributes:
        request: What was asked.
        on_outcome: Called in the worker thread once there is an outcome; its row may end long before its batch.
        limit: Most tokens that may be generated, the context considered.
        abandoned: Set from outside when the caller no longer waits; the row is dropped at the next token.
        outcome: What became of it.
        round: Round of the generator in which it came or, if later, was last decoded.
        token_ids: Generated so far: a row that was interrupted continues from here.
        logprobs: Log-probabilities of `token_ids`.
    """

    request: GenerateRequest
    on_outcome: Callable[[], None] = lambda: None
    limit: int = 0
    abandoned: bool = False
    outcome: Completion | EngineError | None = None
    round: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def episode(self) -> str:
        """Which turns extend each other: the key up to its last `#`; empty when the key has none."""
        return self.request.key.rpartition("#")[0]

    @property
    def place(self) -> str:
        """Under which its keys and values are kept."""
        return self.episode or self.request.key

    @property
    def sequence(self) -> tuple[int, ...]:
        """The prompt and what was generated so far."""
        return (*self.request.token_ids, *self.token_ids) if self.token_ids else self.request.token_ids

    @property
    def left(self) -> int:
        """How many tokens may still be generated."""
        return self.limit - len(self.token_ids)

    def take(self, token_id: int, logprob: float) -> bool:
        """Adds a token; True when the row ends with it."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        return token_id in self.request.sampling.stop_ids or len(self.token_ids) >= self.limit

    def finish(self, version: int) -> None:
        """Sets the outcome from the tokens so far."""
        if not all(math.isfinite(logprob) for logprob in self.logprobs):
            self.settle(
                EngineError(
                    f"Policy version {version} returned numbers that are not finite for request {self.request.key!r}.",
                    remedy="resume from an earlier checkpoint with a lower learning rate",
                )
            )
            return
        stopped = bool(self.token_ids) and self.token_ids[-1] in self.request.sampling.stop_ids
        self.settle(
            Completion(
                token_ids=tuple(self.token_ids),
                logprobs=tuple(self.logprobs),
                stop="stop" if stopped else "length",
                policy_version=version,
            )
        )

    def settle(self, outcome: Completion | EngineError) -> None:
        """Sets the outcome and calls `on_outcome`."""
        self.outcome = outcome
        self.on_outcome()


@dataclass(slots=True)
class Decoder:
    """Generates for one filled batch.

    Rows are `jobs`, in the order of the buffer. A row that ends leaves at once: the last live row moves into its
    place, so that every forward covers exactly the live rows.

    Attributes:
        interrupted: Whether others wait to join: the rows are then left as they are, their keys and values kept.
    """

    model: CausalModel
    store: KvStore
    version: int
    interrupted: Callable[[], bool]

    @torch.inference_mode()
    def run(self, jobs: list[Job], filled: Filled, opening: Entry | None) -> None:
        """Sets the outcome of every job that was neither abandoned nor interrupted."""
        start = len(opening.token_ids) if opening else 0
        device = self.model.device
        steps = max(job.left for job in jobs)
        sampler = Sampler.of(
            [job.request.sampling for job in jobs], steps, device, drawn=[len(job.token_ids) for job in jobs]
        )
        places = torch.tensor([[len(job.sequence)] for job in jobs], device=device)
        valid, logits = filled.valid, filled.logits
        for step in range(steps):
            ids, logprobs = sampler.draw(logits, step)
            ended = [
                job.take(token_id, logprob) or job.abandoned or not math.isfinite(logprob)
                for job, token_id, logprob in zip(jobs, ids.tolist(), logprobs.tolist(), strict=True)
            ]
            length = filled.length + step
            if any(ended):
                order = self._compact(jobs, ended, replace(filled, length=length), start)
                if not order:
                    return
                jobs = [jobs[row] for row in order]
                filled = replace(filled, first=[filled.first[row] for row in order])
                index = torch.tensor(order, device=device)
                sampler, valid, places, ids = sampler.select(index), valid[index], places[index], ids[index]
            if step + 1 >= MIN_STEPS and self.interrupted():
                self._keep(jobs, replace(filled, length=length), start)
                return
            cache = BatchCache(filled.buffer, slice(0, len(jobs)), length)
            logits = self.model.forward(
                ids[:, None], places + step, valid[:, : length + 1], cache, opening.tensor if opening else None
            )

    def _compact(self, jobs: list[Job], ended: list[bool], filled: Filled, start: int) -> list[int]:
        """Finishes the ended rows, keeps their keys and values, closes the gaps; returns the old rows in new order."""
        for row, job in enumerate(jobs):
            if ended[row] and not job.abandoned:
                job.finish(self.version)
                if job.episode and self.store.budget and isinstance(job.outcome, Completion):
                    self.store.put(job.place, filled.entry(row, job.sequence[:-1], start))
            if ended[row] and not job.episode:
                self.store.discard(job.place)  # from an interruption; no later turn extends it
        live = len(jobs) - sum(ended)
        movers = [row for row in range(live, len(jobs)) if not ended[row]]
        order = [movers.pop() if ended[row] else row for row in range(live)]
        for row, source in enumerate(order):
            if row != source:
                begin, end = filled.first[source], filled.length
                filled.buffer[:, :, row, :, begin:end] = filled.buffer[:, :, source, :, begin:end]
                filled.buffer[:, :, row, :, filled.first[row] : begin].zero_()  # masked, but 0 * nan is nan
        return order

    def _keep(self, jobs: list[Job], filled: Filled, start: int) -> None:
        for row, job in enumerate(jobs):
            self.store.put(job.place, filled.entry(row, job.sequence[:-1], start))
