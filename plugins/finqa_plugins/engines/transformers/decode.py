"""Prefill and decoding of one batch.

Prefill computes only the tokens that no cached entry contains. Decoding draws one token for every live row, until all
rows have stopped or new requests wait to join them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from itertools import accumulate

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
        entry: Cached keys and values of a prefix, or None.
        known: Number of leading tokens that need no computing; at least the opening's, at most all but one.
    """

    token_ids: tuple[int, ...]
    entry: Entry | None
    known: int

    @property
    def unknown(self) -> int:
        """Number of tokens to compute."""
        return len(self.token_ids) - self.known


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch buffer that contains its prompts.

    Attributes:
        buffer: [layers, 2, N, kv heads, columns, D].
        valid: [N, columns] False at columns before a row's first token.
        length: Columns that are filled.
        first: Column of each row's first token.
        logits: [N, V] after each prompt.
        computed: Tokens that were computed to fill it, padding included.
    """

    buffer: Tensor
    valid: Tensor
    length: int
    first: list[int]
    logits: Tensor
    computed: int

    def entry(self, row: int, token_ids: tuple[int, ...], start: int) -> Entry:
        """A copy of the row's keys and values for `token_ids`; `start` is the length of the opening."""
        begin = self.first[row]
        end = begin + len(token_ids) - start
        return Entry(token_ids, start, self.buffer[:, :, row, :, begin:end].clone())


class AbandonedBatch(Exception):
    """No caller waits for any request of the batch any more, for example because the run is stopped."""


@torch.inference_mode()
def fill(
    model: CausalModel,
    prompts: Sequence[Prompt],
    buffer: Tensor,
    opening: Entry | None,
    threads: Executor | None = None,
    abandoned: Callable[[], bool] = lambda: False,
) -> Filled:
    """Fills the buffer with prompts, ordered by `unknown`; rows end in the same column.

    All rows of a slice compute as many tokens as its row with most unknown tokens: the others compute some known tokens
    again, which costs the same as padding and leaves no gaps. With `threads`, parts of at most `PART_TOKENS` are
    computed in parallel; where they are cut depends on the prompts alone.

    Args:
        model: The model.
        prompts: [N] one for each row.
        buffer: [layers, 2, N or more, kv heads, columns, D], which is written.
        opening: Keys and values of the common beginning of all prompts, which is not in the buffer.
        threads: Executor for the parts; None: this thread computes everything.
        abandoned: Called before each forward pass: whether no caller waits for the result any more.

    Raises:
        AbandonedBatch: `abandoned` returned True.
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
            if abandoned():
                raise AbandonedBatch
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
    """Consecutive rows with similar numbers of unknown tokens."""
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
        request: The request.
        on_outcome: Called in the worker thread once there is an outcome; its row may end long before its batch.
        limit: Most tokens that may be generated, also limited by the context.
        abandoned: Set from outside when the caller no longer waits; the row is dropped at the next token.
        outcome: The completion or the error; None while the request is in progress.
        round: Round of the generator in which it arrived or, if later, was last decoded.
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
        """The key up to its last `#`: turns with the same one extend each other. Empty if the key has no `#`."""
        return self.request.key.rpartition("#")[0]

    @property
    def place(self) -> str:
        """Name under which its keys and values are kept."""
        return self.episode or self.request.key

    @property
    def sequence(self) -> tuple[int, ...]:
        """The prompt and what was generated so far."""
        return (*self.request.token_ids, *self.token_ids) if self.token_ids else self.request.token_ids

    @property
    def left(self) -> int:
        """Number of tokens that may still be generated."""
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


@dataclass(frozen=True, slots=True)
class Rows:
    """Which requests share a row of the buffer: those whose sequences are equal so far. R rows, J requests.

    Attributes:
        members: [R] the requests of each row, one at least.
        owners: [J] row of each request, or None when each has a row of its own.
        heads: [R] index of each row's first request in `jobs`, or None likewise.
    """

    members: list[list[Job]]
    owners: Tensor | None
    heads: Tensor | None

    @classmethod
    def of(cls, members: list[list[Job]], device: torch.device) -> Rows:
        """Make the rows with these members."""
        if all(len(jobs) == 1 for jobs in members):
            return cls(members, None, None)
        owners = [row for row, jobs in enumerate(members) for _ in jobs]
        heads = [0, *accumulate(len(jobs) for jobs in members[:-1])]
        return cls(members, torch.tensor(owners, device=device), torch.tensor(heads, device=device))

    @property
    def jobs(self) -> list[Job]:
        """[J] all requests, row by row."""
        return [job for jobs in self.members for job in jobs]


def arrange(members: list[list[Job]], ended: set[Job]) -> list[tuple[int, list[Job]]]:
    """[R'] the source and the members of each row for the next token: requests that drew the same one stay together.

    A source is the row whose keys and values the new row begins with. A row that differs from its source is one that
    ended or one after the last, so that copies can be made in any order. Depends on nothing but the arguments.

    Args:
        members: [R] requests of each row; all have drawn a token.
        ended: Requests that need no further row.
    """
    placed: list[tuple[int, list[Job]] | None] = []
    further: list[tuple[int, list[Job]]] = []
    for row, jobs in enumerate(members):
        branches: dict[int, list[Job]] = {}
        for job in jobs:
            if job not in ended:
                branches.setdefault(job.token_ids[-1], []).append(job)
        parts = [(row, branch) for branch in branches.values()]
        placed.append(parts[0] if parts else None)
        further += parts[1:]
    for row, place in enumerate(placed):
        if place is None and further:
            placed[row] = further.pop(0)
    placed += further
    count = len(placed) - placed.count(None)
    movers = [place for place in placed[count:] if place]
    return [place or movers.pop() for place in placed[:count]]


@dataclass(slots=True)
class Decoder:
    """Generates for one filled batch.

    Requests with equal sequences share a row until they draw different tokens: attempts at one question often agree
    for long, and a row that they share is computed once. A row that ends leaves at once: the last live row moves into
    its place, so that every forward covers exactly the live rows.

    Attributes:
        interrupted: Whether other requests wait to join. Decoding then stops, and the rows' keys and values are cached.
    """

    model: CausalModel
    store: KvStore
    version: int
    interrupted: Callable[[], bool]

    @torch.inference_mode()
    def run(self, members: list[list[Job]], filled: Filled, opening: Entry | None) -> None:
        """Sets the outcome of every job that was neither abandoned nor interrupted.

        Args:
            members: The requests of each filled row. The buffer has as many rows as there are requests.
            filled: The buffer with the prompts of the rows.
            opening: Common beginning of all prompts, which is not in the buffer.
        """
        start = len(opening.token_ids) if opening else 0
        device = self.model.device
        rows = Rows.of(members, device)
        jobs = rows.jobs
        steps = max(job.left for job in jobs)
        sampler = Sampler.of(
            [job.request.sampling for job in jobs], steps, device, drawn=[len(job.token_ids) for job in jobs]
        )
        places = torch.tensor([[len(row[0].sequence)] for row in members], device=device)
        valid, logits = filled.valid, filled.logits
        for step in range(steps):
            ids, logprobs = sampler.draw(logits if rows.owners is None else logits[rows.owners], step)
            ended = {
                job
                for job, token_id, logprob in zip(jobs, ids.tolist(), logprobs.tolist(), strict=True)
                if job.take(token_id, logprob) or job.abandoned or not math.isfinite(logprob)
            }
            length = filled.length + step
            if ended:
                self._finish(rows.members, ended, replace(filled, length=length), start)
            arranged = arrange(rows.members, ended) if ended or rows.owners is not None else None
            if arranged is not None and [members for _, members in arranged] != rows.members:
                if not arranged:
                    return
                sources = [source for source, _ in arranged]
                _copy_rows(sources, replace(filled, length=length))
                filled = replace(filled, first=[filled.first[source] for source in sources])
                order = {job: place for place, job in enumerate(jobs)}
                rows = Rows.of([members for _, members in arranged], device)
                jobs = rows.jobs
                index = torch.tensor([order[job] for job in jobs], device=device)
                taken = torch.tensor(sources, device=device)
                sampler, ids, valid, places = sampler.select(index), ids[index], valid[taken], places[taken]
            if step + 1 >= MIN_STEPS and self.interrupted():
                self._keep(rows.members, replace(filled, length=length), start)
                return
            cache = BatchCache(filled.buffer, slice(0, len(rows.members)), length)
            drawn = ids if rows.heads is None else ids[rows.heads]
            logits = self.model.forward(
                drawn[:, None], places + step, valid[:, : length + 1], cache, opening.tensor if opening else None
            )

    def _finish(self, members: list[list[Job]], ended: set[Job], filled: Filled, start: int) -> None:
        """Finishes the ended requests and keeps their keys and values."""
        for row, jobs in enumerate(members):
            entry: Entry | None = None  # one for all that end here: they have the same sequence but for the last token
            for job in jobs:
                if job not in ended:
                    continue
                if not job.abandoned:
                    job.finish(self.version)
                    if job.episode and self.store.budget and isinstance(job.outcome, Completion):
                        entry = entry or filled.entry(row, job.sequence[:-1], start)
                        self.store.put(job.place, entry)
                if not job.episode:
                    self.store.discard(job.place)  # from an interruption; no later turn extends it

    def _keep(self, members: list[list[Job]], filled: Filled, start: int) -> None:
        for row, jobs in enumerate(members):
            entry = filled.entry(row, jobs[0].sequence[:-1], start)
            for job in jobs:
                self.store.put(job.place, entry)


def _copy_rows(sources: list[int], filled: Filled) -> None:
    """Copies the filled columns of its source into each row of the buffer."""
    buffer = filled.buffer
    for row, source in enumerate(sources):
        if row != source:
            begin, end = filled.first[source], filled.length
            buffer[:, :, row, :, begin:end] = buffer[:, :, source, :, begin:end]
            buffer[:, :, row, :, :begin].zero_()  # masked, but 0 * nan is nan
