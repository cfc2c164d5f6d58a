"""Generates the completions of requests: openings, batches, failures. Runs in the engine's worker thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor

import structlog
from transformers.modeling_layers import GradientCheckpointingLayer

from finqa_cli.errors import EngineError
from finqa_cli.types import Completion
from finqa_plugins.engines.transformers.decode import AbandonedBatch, Decoder, Job, Prompt, fill
from finqa_plugins.engines.transformers.kv_store import Entry, KvStore, Scratch, common_prefix
from finqa_plugins.engines.transformers.served_model import CausalModel
from finqa_plugins.model_facts import is_out_of_memory

log = structlog.get_logger(__name__)
MIN_OPENING = 32  # equal first tokens of prompts from which on they share an opening
MAX_OPENINGS = 4  # openings that are cached
NEAR = 256  # tokens by which prompts of one batch may always differ in length


class Generator:
    """Serves one policy version at a time; cached keys and values are valid for that version only.

    Attributes:
        threads: Executor that computes parts of prompts in parallel; None: this thread computes whole prompts.
        prompt_tokens: Tokens of all prompts so far.
        computed_tokens: Tokens that were computed for prompts, padding and openings included; the rest was cached.
    """

    def __init__(
        self,
        model: CausalModel,
        *,
        max_batch: int,
        kv_bytes: int,
        max_context: int,
        threads: Executor | None = None,
    ) -> None:
        self.model = model
        self.version = 0
        self.max_batch = max_batch
        self.kv_bytes = kv_bytes
        self.max_context = max_context
        self.threads = threads
        self.store = KvStore(kv_bytes)
        self.openings: list[Entry] = []
        self.scratch = Scratch(model.shape, model.device)
        self.rounds = 0
        self.prompt_tokens = 0
        self.computed_tokens = 0
        self._jobs: list[Job] = []
        if model.device.type == "cpu":  # where one forward pass of a prompt takes seconds
            for layer in model.module.modules():
                if isinstance(layer, GradientCheckpointingLayer):
                    layer.register_forward_pre_hook(self._leave_abandoned)

    def reset(self, version: int) -> None:
        """Drops all keys and values, and serves as `version` from now on."""
        self.version = version
        self.store.clear()
        self.openings.clear()

    def release(self) -> None:
        """Releases the memory of all keys and values."""
        self.reset(self.version)
        self.scratch.release()

    def run(self, jobs: list[Job], *, everyone: bool, interrupted: Callable[[], bool]) -> None:
        """Sets the outcome of every job that was not abandoned; if `interrupted`, only of those that ended before.

        The other jobs continue where they stopped when they are passed again under the same version.

        Args:
            jobs: The requests, in the order of their keys.
            everyone: Whether every live episode is among them; cached entries of other episodes are then dropped.
            interrupted: Called after each token; true when other requests wait to join these.
        """
        self.rounds += 1
        if everyone:
            self.store.keep({job.place for job in jobs})
        for job in jobs:
            job.round = job.round or self.rounds
            job.limit = min(job.request.sampling.max_tokens, self.max_context - len(job.request.token_ids))
            if job.limit <= 0:
                job.finish(self.version)
        self._jobs = jobs = [job for job in jobs if job.limit > 0]
        try:
            self._learn_openings(jobs)
        except AbandonedBatch:
            return
        except Exception as error:  # any error of torch belongs to these requests
            self._fail(jobs, error)
            return
        batches = [
            (batch, opening)
            for opening, members in self._families(jobs)
            for batch in self._batches(members, len(opening.token_ids) if opening else 0)
        ]
        # The requests that have waited longest come first, so that none starves while others keep joining.
        batches.sort(key=lambda pair: min(job.round for job in pair[0]))
        for place, (batch, opening) in enumerate(batches):
            if place and interrupted():
                return
            try:
                self._run_batch(batch, opening, interrupted)
            except AbandonedBatch:
                return
            except Exception as error:
                self._fail(batch, error)

    def _learn_openings(self, jobs: list[Job]) -> None:
        """Computes the common beginning of prompts once. An opening that is too long for new prompts is shortened."""
        if not self.model.shares_openings or not self.kv_bytes:
            return
        families: dict[tuple[int, ...], list[Job]] = {}
        for job in jobs:
            token_ids = job.sequence
            if job.episode and len(token_ids) > MIN_OPENING and self._opening(token_ids) is None:
                families.setdefault(token_ids[:MIN_OPENING], []).append(job)
        for start, family in families.items():
            known = next((opening for opening in self.openings if opening.token_ids[:MIN_OPENING] == start), None)
            prompts = {job.sequence for job in family}
            members = prompts | {known.token_ids} if known else prompts
            if len(members) < 2:
                continue
            # The smallest and the greatest sequence differ first where any two of them do.
            length = common_prefix(min(members), max(members), limit=min(map(len, prompts)) - 1)
            if known is not None:
                self.openings.remove(known)
                self.openings.append(known.cut(length))
            else:
                self.openings.append(self._compute_opening(family, length))
            del self.openings[:-MAX_OPENINGS]

    def _compute_opening(self, family: list[Job], length: int) -> Entry:
        """The first `length` tokens of these requests, copied from a cached entry of one of them if possible."""
        opening = family[0].sequence[:length]
        for job in family:
            kept = self.store.get(job.place)
            if kept is not None and not kept.start and kept.token_ids[:length] == opening:
                return kept.cut(length)
        return self._entries([opening], None)[opening]

    def _families(self, jobs: list[Job]) -> list[tuple[Entry | None, list[Job]]]:
        """Group requests by the longest opening that is worth its own batch; None for those without one.

        A batch of its own reads the weights once more for each token, but its rows need not read the opening's keys
        and values. If all requests have the same opening, there is no additional batch.
        """
        families: list[tuple[Entry | None, list[Job]]] = []
        rest = jobs
        for opening in sorted(self.openings, key=lambda opening: -len(opening.token_ids)):
            members = [job for job in rest if _begins(job.sequence, opening)]
            spared = (len(members) - 1) * opening.size
            if members and (spared > self.model.forward_bytes or len(members) == len(jobs)):
                families.append((opening, members))
                rest = [job for job in rest if job not in members]
        return [*families, (None, rest)] if rest else families

    def _opening(self, token_ids: tuple[int, ...]) -> Entry | None:
        fitting = [opening for opening in self.openings if _begins(token_ids, opening)]
        return max(fitting, key=lambda opening: len(opening.token_ids), default=None)

    def _batches(self, jobs: list[Job], start: int) -> Iterator[list[Job]]:
        """Cuts requests into batches by length, rows and memory; depends on nothing but the requests."""
        batch: list[Job] = []
        for job in sorted(jobs, key=lambda job: (len(job.sequence), job.request.key)):
            length = len(job.sequence)
            if batch:
                shortest = len(batch[0].sequence)
                columns = length - start + max(job.left, *(member.left for member in batch))
                heavy = (len(batch) + 1) * columns * self.model.shape.token_bytes > max(self.kv_bytes, 1 << 30)
                if len(batch) >= self.max_batch or heavy or length > max(2 * shortest, shortest + NEAR):
                    yield batch
                    batch = []
            batch.append(job)
        if batch:
            yield batch

    def _run_batch(self, jobs: list[Job], opening: Entry | None, interrupted: Callable[[], bool]) -> None:
        start = len(opening.token_ids) if opening else 0
        rows: dict[tuple[int, ...], list[Job]] = {}
        for job in jobs:
            rows.setdefault(job.sequence, []).append(job)
        prompts = [self._prompt(members, start) for members in rows.values()]
        prompts.sort(key=lambda prompt: (prompt.unknown, rows[prompt.token_ids][0].request.key))
        members = [rows[prompt.token_ids] for prompt in prompts]
        columns = max(map(len, rows)) - start + max(job.left for job in jobs)
        buffer = self.scratch.view(len(jobs), columns)
        filled = fill(self.model, prompts, buffer, opening, self.threads, self._abandoned)
        self.computed_tokens += filled.computed
        self.prompt_tokens += sum(len(job.request.token_ids) for job in jobs if not job.token_ids)
        for job in jobs:
            job.round = self.rounds
        Decoder(self.model, self.store, self.version, interrupted).run(members, filled, opening)

    def _kept(self, job: Job, start: int) -> Entry | None:
        """The cached beginning of a request whose first `start` tokens are in the opening of its batch."""
        entry = self.store.get(job.place) or self._opening(job.sequence)
        if entry is None or entry.start <= start:
            return entry
        first = entry.token_ids[: entry.start]  # its last turn was in the batch of a longer opening
        return next((entry.join(opening) for opening in self.openings if opening.token_ids == first), None)

    def _prompt(self, jobs: list[Job], start: int) -> Prompt:
        """The prompt of requests with equal sequences, with the longest beginning that is cached for any of them."""
        sequence = jobs[0].sequence
        kept = [entry for job in jobs if (entry := self._kept(job, start))]
        entry = max(kept, key=lambda entry: entry.usable(sequence, start), default=None)
        known = entry.usable(sequence, start) if entry else 0
        return Prompt(sequence, entry if known else None, known or start)

    def _entries(self, sequences: list[tuple[int, ...]], opening: Entry | None) -> dict[tuple[int, ...], Entry]:
        """Computes whole sequences for their keys and values alone."""
        start = len(opening.token_ids) if opening else 0
        entries: dict[tuple[int, ...], Entry] = {}
        sequences = sorted(sequences, key=lambda token_ids: (len(token_ids), token_ids))
        for begin in range(0, len(sequences), self.max_batch):
            part = sequences[begin : begin + self.max_batch]
            buffer = self.scratch.view(len(part), len(part[-1]) - start)
            prompts = [Prompt(token_ids, None, start) for token_ids in part]
            filled = fill(self.model, prompts, buffer, opening, self.threads, self._abandoned)
            self.computed_tokens += filled.computed
            entries |= {token_ids: filled.entry(row, token_ids, start) for row, token_ids in enumerate(part)}
        return entries

    def _abandoned(self) -> bool:
        return bool(self._jobs) and all(job.abandoned for job in self._jobs)

    def _leave_abandoned(self, *_: object) -> None:
        if self._abandoned():
            raise AbandonedBatch

    def _fail(self, jobs: Iterable[Job], error: Exception) -> None:
        jobs = list(jobs)
        self.reset(self.version)
        self.scratch.release()
        failure = _explain(jobs, error)
        # Log: A batch of engine `transformers` failed; its episodes are played again.
        log.error("engine_batch_failed", requests=len(jobs), error=failure.message)
        for job in jobs:
            if not isinstance(job.outcome, Completion):
                job.settle(failure)


def _begins(token_ids: tuple[int, ...], opening: Entry) -> bool:
    length = len(opening.token_ids)
    return len(token_ids) > length and token_ids[:length] == opening.token_ids


def _explain(jobs: list[Job], error: Exception) -> EngineError:
    longest = max((len(job.request.token_ids) + job.limit for job in jobs), default=0)
    sizes = f"a batch of {len(jobs)} requests of up to {longest} tokens"
    if is_out_of_memory(error):
        return EngineError(
            f"The transformers engine ran out of memory on {sizes}: {error}",
            remedy="lower --set engine.options.max_batch=N, engine.options.kv_cache_gb=N or --max-gen-tokens N",
        )
    return EngineError(f"The transformers engine failed on {sizes}: {type(error).__name__}: {error}")
