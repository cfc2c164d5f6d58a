"""The `transformers` engine: requests from the event loop, batches in one worker thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog

from finqa_cli.contracts import EngineContext, TokenEngine
from finqa_cli.errors import EngineError
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.decode import Job
from finqa_plugins.engines.transformers.served_model import check_model
from finqa_plugins.engines.transformers.worker import Worker

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Ticket:
    """One caller inside `generate`.

    Attributes:
        job: Its request.
        answer: Resolved when the row ends.
        arrived: Seconds on the loop's clock.
    """

    job: Job
    answer: asyncio.Future[Completion]
    arrived: float

    @property
    def unfinished(self) -> bool:
        """Whether the request was interrupted and has to continue."""
        return self.job.outcome is None and not self.job.abandoned


@dataclass(slots=True)
class RequestQueue:
    """Tickets that no batch has taken yet, and the rules by which they are dispatched.

    Attributes:
        lockstep: Whether a batch is dispatched only once every seat waits.
        wait_seconds: Without lockstep, a batch is also dispatched once the oldest ticket has waited this long.
        enough: Tickets that fill a batch; without lockstep they are dispatched at once.
        seats: Number of live episodes.
        tickets: The waiting tickets, oldest first.
    """

    lockstep: bool
    wait_seconds: float
    enough: int
    seats: int = 0
    tickets: list[Ticket] = field(default_factory=list)

    @property
    def everyone(self) -> bool:
        """Whether every seat is waiting, so that no further request can arrive."""
        return bool(self.seats) and len(self.tickets) - len(self._guests()) >= self.seats

    def due_in(self, now: float) -> float | None:
        """Seconds until a batch is due; 0: now; None: not before another event."""
        if not self.tickets:
            return None
        if not self.seats or self.everyone or self._guests():
            return 0.0
        if self.lockstep:
            return None
        if len(self.tickets) >= self.enough:
            return 0.0
        return max(0.0, self.tickets[0].arrived + self.wait_seconds - now)

    def joins_in(self, now: float, decoding: int) -> float | None:
        """Seconds until waiting requests should join a running batch with `decoding` live rows; None: never.

        Joining copies the keys and values of every live row, so a few requests wait `wait_seconds` for
        more. If as many wait as are decoding, they join at once.
        """
        if self.lockstep or not self.tickets or not decoding:
            return None
        if len(self.tickets) >= min(decoding, self.enough):
            return 0.0
        return max(0.0, self.tickets[0].arrived + self.wait_seconds - now)

    def take(self) -> list[Ticket]:
        """Removes the tickets to dispatch and returns them by key: all, but in lockstep with seats only guests, if any.

        So guests, which come at any time, do not change the batches of episodes.
        """
        guests = self._guests()
        chosen = guests if self.lockstep and self.seats and guests else self.tickets
        self.tickets = [ticket for ticket in self.tickets if ticket not in chosen]
        return sorted(chosen, key=lambda ticket: ticket.job.request.key)

    def leave(self, ticket: Ticket) -> None:
        """Removes the ticket of a caller that gave up; does nothing if a batch has taken it."""
        if ticket in self.tickets:
            self.tickets.remove(ticket)

    def _guests(self) -> list[Ticket]:
        """Tickets of requests without episode, and so without seat: they need not wait for others."""
        return [ticket for ticket in self.tickets if not ticket.job.episode]


T = TypeVar("T")

CLOSE_S = 1.0
"""Seconds that `close` waits for the worker thread, which a command that was stopped must not wait for."""


class TransformersEngine(TokenEngine):
    """A token engine on one CPU or CUDA device.

    Requests wait until a batch is due (see `RequestQueue`): in lockstep when every seat waits, otherwise also when the
    oldest request has waited `dispatch_wait_ms`; without seats at once. Each request is answered when its own row ends,
    so that tools run while longer rows continue. Outside lockstep, waiting requests join the running batch. A request
    whose key names no episode (`EPISODE#TURN`) holds no seat: it does not wait, and in lockstep shares no batch with
    episodes.

    A prompt that leaves no room in the context is the episode's limit, not a fault: it is answered with an empty
    completion and stop `length`.

    An episode with a seat must not wait for another episode outside `generate`: in lockstep that would be a deadlock.
    """

    def __init__(self, config: TransformersEngineConfig | None, context: EngineContext) -> None:
        self._config = config or TransformersEngineConfig()
        self._context = context
        self._worker = Worker(self._config, context)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="finqa-engine")
        self._starting = asyncio.Lock()
        self._queue: RequestQueue | None = None
        self._busy: asyncio.Task[None] | None = None
        self._running: list[Ticket] = []
        self._joining = False
        self._timer: asyncio.TimerHandle | None = None
        self._seats = 0
        self._loads = 0
        self._exclusive = asyncio.Lock()
        self.sleeps = context.sleep
        self.loads_model = True
        self._asleep = False
        self._closed = False

    def check(self) -> None:
        """Reads the model's configuration.

        Raises:
            ConfigError: transformers does not know it, or its layers keep something else than keys and values.
        """
        check_model(self._context.model)

    async def start(self) -> None:
        """Loads the model. Idempotent.

        Raises:
            ConfigError: The folder is incomplete, does not fit, or the device or an option is not available.
            EngineError: The engine was closed.
        """
        async with self._starting:
            if self._closed:
                raise EngineError("The engine is closed.")
            if self._queue is None:
                self.lockstep = await self._in_worker(self._worker.start)
                self._queue = RequestQueue(
                    lockstep=self.lockstep,
                    wait_seconds=self._context.dispatch_wait_ms / 1000,
                    enough=self._config.max_batch,
                    seats=self._seats,
                )

    @contextmanager
    def seat(self) -> Iterator[None]:
        """Announces one live episode for as long as the context is open."""
        self._count_seat(1)
        try:
            yield
        finally:
            self._count_seat(-1)

    def _count_seat(self, change: int) -> None:
        self._seats += change
        if self._queue is not None:
            self._queue.seats = self._seats
            # Not at once: an episode that ends may pass its seat on to the next episode in the same turn of the loop.
            asyncio.get_running_loop().call_soon(self._check)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Samples one completion under the loaded policy version. Cancellation frees its place.

        Raises:
            EngineError: The engine is not started or closed, the ids are not the model's, or the batch failed.
        """
        queue = self._open_queue()
        if self._asleep:
            raise EngineError("The engine sleeps.")
        vocabulary = self._worker.vocabulary
        if not request.token_ids or not all(0 <= token_id < vocabulary for token_id in request.token_ids):
            raise EngineError(
                f"Request {request.key!r} has no token ids or some that are not in the model's vocabulary of "
                f"{vocabulary}; were they encoded with another model's tokenizer?"
            )
        loop = asyncio.get_running_loop()
        ticket = Ticket(Job(request), loop.create_future(), loop.time())
        ticket.job.on_outcome = lambda: _threadsafe(loop, lambda: self._answer(ticket))
        queue.tickets.append(ticket)
        # Not at once: requests that arrive in the same turn of the loop belong into the same batch.
        loop.call_soon(self._check)
        try:
            return await ticket.answer
        finally:
            ticket.job.abandoned = True
            queue.leave(ticket)
            self._check()

    async def load(self, policy: PolicyVersion) -> None:
        """Switches to another policy version, after the running batch; requests dispatched later use the new one.

        Raises:
            EngineError: It cannot be loaded; the old version keeps serving.
        """
        self._open_queue()
        if self._asleep:
            raise EngineError("The engine sleeps.")
        self._loads += 1
        try:
            async with self._exclusive:
                self._open_queue()
                await self._in_worker(lambda: self._worker.load(policy))
        finally:
            self._loads -= 1
            self._check()

    async def sleep(self) -> None:
        """Frees the memory of the device, after the running batch. Idempotent.

        Raises:
            EngineError: The engine is not started or closed.
        """
        self._open_queue()
        async with self._exclusive:
            if not self._asleep:
                self._asleep = True
                await self._in_worker(self._worker.sleep)

    async def wake(self) -> None:
        """Moves the model back to the device; it serves the same version as before. Idempotent.

        Raises:
            EngineError: The engine is closed, or the device has too little memory left.
        """
        self._open_queue()
        async with self._exclusive:
            if self._asleep:
                await self._in_worker(self._worker.wake)
                self._asleep = False
        self._check()

    @property
    def max_context(self) -> int:
        """Longest prompt plus completion in tokens; 0 before `start`."""
        return self._worker.max_context

    @property
    def reused_share(self) -> float:
        """Share of the tokens of all prompts so far that were not computed again; padding counts as computed."""
        return self._worker.reused_share

    async def close(self) -> None:
        """Ends the running batch at its next token, fails what waits, frees the model. Idempotent.

        After `CLOSE_S` it returns anyway: a model that is being loaded, or a long prompt, ends in the worker thread.
        """
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting = self._queue.take() if self._queue is not None else []
        for ticket in [*waiting, *self._running]:
            ticket.job.abandoned = True
            if not ticket.answer.done():
                ticket.answer.set_exception(EngineError("The engine was closed."))
        async with self._starting:
            closing = asyncio.ensure_future(self._in_worker(self._worker.close))
            ended, _ = await asyncio.wait([closing], timeout=CLOSE_S)
            self._thread.shutdown(wait=False)
            for task in ended:
                task.result()

    def _open_queue(self) -> RequestQueue:
        if self._closed:
            raise EngineError("The engine is closed.")
        if self._queue is None:
            raise EngineError("The engine is not started.")
        return self._queue

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _check(self) -> None:
        """Dispatches or joins requests if that is due; called after every event that can make it due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queue is None or self._closed or self._loads or self._joining:
            return
        loop = asyncio.get_running_loop()
        if self._busy is None:
            due = self._queue.due_in(loop.time())
        else:
            due = self._queue.joins_in(loop.time(), sum(not ticket.answer.done() for ticket in self._running))
        if due is None:
            return
        if due > 0:
            self._timer = loop.call_later(due, self._check)
        elif self._busy is not None:
            self._joining = True
        else:
            full, tickets = self._queue.everyone, self._queue.take()
            self._busy = loop.create_task(self._run(tickets, everyone=full and not self._queue.tickets))

    async def _run(self, tickets: list[Ticket], *, everyone: bool) -> None:
        """Runs one batch and, outside lockstep, requests that join it; no version is loaded meanwhile."""
        self._running = tickets
        try:
            async with self._exclusive:
                while self._running and not self._closed:
                    jobs = [ticket.job for ticket in self._running]
                    await self._in_worker(partial(self._worker.run, jobs, everyone, lambda: self._joining))
                    self._joining, everyone = False, False
                    self._running = self._with_newcomers([ticket for ticket in self._running if ticket.unfinished])
        except Exception as error:
            # Log: A defect in engine `transformers`; its episodes are played again.
            log.exception("engine_worker_failed")
            for ticket in self._running:
                ticket.job.outcome = EngineError(f"The engine's worker failed: {type(error).__name__}: {error}")
        finally:
            left, self._running, self._busy, self._joining = self._running, [], None, False
            for ticket in left:
                self._answer(ticket)
            self._check()

    def _with_newcomers(self, interrupted: list[Ticket]) -> list[Ticket]:
        """Interrupted tickets and new ones that join them; none join while a load waits: they get the next version."""
        if not interrupted or self._loads or self._queue is None:
            return interrupted
        return sorted([*interrupted, *self._queue.take()], key=lambda ticket: ticket.job.request.key)

    def _answer(self, ticket: Ticket) -> None:
        if ticket.answer.done():
            return
        if isinstance(ticket.job.outcome, Completion):
            ticket.answer.set_result(ticket.job.outcome)
        else:
            ticket.answer.set_exception(ticket.job.outcome or EngineError("The engine was interrupted."))


def _threadsafe(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
        loop.call_soon_threadsafe(work)
