"""The controller's side of rollout workers: sends attempts, answers engine requests, and replaces lost workers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import ChatEngine, TokenEngine
from finqa_cli.errors import ConfigError, FinqaError, LostWorkerError, ServiceUnavailableError
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.breaker import Breaker, EngineBreaker
from finqa_cli.rollout.players import Rules
from finqa_cli.rollout.pool import Pool, PoolListener, PoolStats
from finqa_cli.types import Trajectory
from finqa_cli.types.run_events import RunEvent
from finqa_ray.workers.answering import answer_for
from finqa_ray.workers.lending_engine import LendingEngine
from finqa_ray.workers.worker_messages import (
    Answer,
    Ask,
    Cancel,
    Delivery,
    EngineFault,
    Offer,
    Outcome,
    Pause,
    Play,
    Played,
    PoolEvent,
    Report,
    Reports,
    Restarted,
    Unused,
    Withdraw,
    pack,
    portable,
    unpack,
)
from finqa_ray.workers.worker_processes import WorkerProcess, WorkerProcesses
from finqa_ray.workers.worker_shares import CallSlot, choose_worker, ended_stats, sum_stats

log = structlog.get_logger(__name__)

RETRIES = Backoff(first_s=0.5, longest_s=10.0)
"""Pauses between two tries to start a lost worker again."""

NO_WORKER_S = 300.0
"""Seconds without any worker after which the run ends."""

LOOKS_S = (0.0, 5.0, 30.0)
"""Seconds before each search for sandboxes that a lost worker left. A sandbox in creation may be listed late."""

CLOSE_S = 30.0
"""Seconds that a worker may take to end its sandboxes before its process is killed."""

Make = Callable[[int, int], Callable[[], object]]
"""Called with number and generation of a worker; returns a function that makes its `RolloutWorker` in its process."""


class WorkerEvent(RunEvent):
    """An event of a rollout worker."""

    worker: int
    """Number of the worker."""
    node: str
    """Address of its node."""
    generation: int
    """How often the worker was started."""


class WorkerPlaced(WorkerEvent):
    """A rollout worker starts to play."""

    event: Literal["worker_placed"]


class WorkerLost(WorkerEvent):
    """A rollout worker ended or cannot be reached. Its attempts are played by other workers."""

    event: Literal["worker_lost"]
    reason: str
    """The error."""
    attempts: int
    """Number of attempts that were moved to other workers."""


class WorkerBack(WorkerEvent):
    """A rollout worker plays again after it was lost."""

    event: Literal["worker_back"]


@dataclass(slots=True, eq=False)
class _Pending:
    """An attempt that is not finished; `ticket` is the number of its latest try, -1 before the first."""

    attempt: Attempt
    rules: Rules
    played: asyncio.Future[Trajectory]
    ticket: int = -1


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker, whose process may be replaced.

    Attributes:
        number: Number of the worker.
        generation: Number of its present start, from 1.
        process: The process of that start; None while no process plays.
        tickets: Tickets of the attempts that it plays.
        deliveries: Messages that are sent to it next.
        news: Set when there are deliveries.
        asked: Its requests to the engine in progress, by number.
        stats: Figures of its pool.
        before: Cumulative figures of its earlier starts.
        spent: What its environment used in this start.
    """

    number: int
    generation: int = 0
    process: WorkerProcess | None = None
    tickets: set[int] = field(default_factory=set)
    deliveries: list[Delivery] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    asked: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    stats: PoolStats = field(default_factory=PoolStats)
    before: PoolStats = field(default_factory=PoolStats)
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def start(self) -> tuple[int, int]:
        """Number and generation, which identify the present start."""
        return self.number, self.generation

    def send(self, delivery: Delivery) -> None:
        if self.process is not None:
            self.deliveries.append(delivery)
            self.news.set()


class RemoteWorkers(Pool):
    """The pool of a run whose sandboxes are divided among rollout workers, which also play on them.

    The loss of a worker costs only time: its attempts, which have their own seeds, are played again by other workers,
    and are neither faults nor retries. Another process replaces the worker when there is room. Each start of a worker
    has a number, its generation. Results of earlier generations are ignored: each try of an attempt has a ticket that
    is valid only once.
    """

    def __init__(
        self,
        processes: WorkerProcesses,
        make: Make,
        engine: TokenEngine | ChatEngine,
        *,
        shares: Sequence[int],
        sandboxed: bool,
        digest: str,
        breaker: Breaker,
        engine_breaker: EngineBreaker,
        restarted: Callable[[Trajectory], object] = lambda trajectory: None,
        on_lost: Callable[[int, int], Awaitable[None]] | None = None,
        on_event: PoolListener = lambda name, fields: None,
    ) -> None:
        """Keep the parts; `start` starts the workers.

        Args:
            processes: The machines on which the workers run.
            make: Makes a worker.
            engine: Answers the requests of all workers; must be started before a worker plays. With a `LendingEngine`
                the workers send requests directly to its servers.
            shares: Number of sandboxes of each worker.
            sandboxed: The environment needs sandboxes.
            digest: Digest of the controller's data; the data of each worker must have the same.
            breaker: Judges the outcomes of all sandboxes.
            engine_breaker: Judges the engine.
            restarted: Called with the trajectory of each try that a worker played again.
            on_lost: Ends the sandboxes that a lost worker left, by its number and generation.
            on_event: Called with the events of the pools, with the field `worker` added, and with `worker_placed`,
                `worker_lost` and `worker_back`.
        """
        self._processes, self._make, self._engine = processes, make, engine
        self._lending = engine if isinstance(engine, LendingEngine) else None
        self._shares, self._sandboxed, self._digest = shares, sandboxed, digest
        self._breaker, self._engine_breaker = breaker, engine_breaker
        self._restarted, self._on_lost, self._on_event = restarted, on_lost, on_event
        self._workers = [_Worker(number) for number in range(len(shares))]
        self._tickets = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._unplaced: list[_Pending] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._looking: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._inputs: dict[str, str] = {}
        self._spent_before: Counter[str] = Counter()
        self._failure: FinqaError | None = None
        self._change = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def inputs(self) -> Mapping[str, str]:
        """Digests that the environments of the workers reported; see `Environment.inputs`."""
        return self._inputs

    def spent(self) -> Mapping[str, float]:
        """Return what the environments of all workers used, as they reported it; see `Environment.spent`."""
        return sum((Counter(worker.spent) for worker in self._workers), self._spent_before)

    async def start(self) -> None:
        """Connect, and begin to start the workers. Idempotent.

        Raises:
            ConfigError: The machines do not have enough free cores for the workers.
            ServiceUnavailableError: The machines cannot be reached.
        """
        if not self._tasks and not self._closed:
            await self._processes.open()
            self._tasks = [asyncio.create_task(self._keep(worker)) for worker in self._workers]

    async def ready(self) -> None:
        """Wait until a worker plays and has a sandbox.

        Raises:
            FinqaError: A worker cannot start, or no sandbox of it can.
        """
        while not any(worker.process and (worker.stats.alive or not self._sandboxed) for worker in self._workers):
            if self._failure is not None:
                raise self._failure
            await self._change.wait()

    def stats(self) -> PoolStats:
        """Return the figures of all workers together."""
        total = sum_stats(one for worker in self._workers for one in (worker.stats, worker.before))
        return replace(total, size=sum(self._shares))

    async def play(self, attempt: Attempt, rules: Rules) -> Trajectory:
        """Let the least loaded worker play an attempt, and another worker if that one is lost.

        Raises:
            ServiceUnavailableError: A breaker is open, the workers are closed, or there was no worker for
                `NO_WORKER_S` seconds.
            FinqaError: A worker cannot start, or raised it, for example because it cannot get sandboxes.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        pending = _Pending(attempt, rules, asyncio.get_running_loop().create_future())
        self._place(pending)
        try:
            return await pending.played
        finally:
            self._forget(pending)

    async def close(self) -> None:
        """End the workers with their sandboxes, and the sandboxes that lost workers left. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._fail(ServiceUnavailableError("The rollout workers are closed."))
        for worker in self._workers:
            for task in worker.asked.values():
                task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        try:
            await asyncio.gather(*(self._end(worker) for worker in self._workers))
            tasks = (*self._tasks, *self._looking.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(self._end_sandboxes(*start) for start in self._looking))
        finally:
            await self._processes.close()

    async def _end(self, worker: _Worker) -> None:
        process, worker.process = worker.process, None
        try:
            if process is not None:
                async with asyncio.timeout(CLOSE_S):
                    worker.spent = await process.call("close")
                return
        except (TimeoutError, FinqaError) as error:
            # Log: It did not confirm its end in time.
            log.warning("a rollout worker did not end well", worker=worker.number, reason=str(error) or "timeout")
        if worker.generation:
            self._look_for_sandboxes(worker)

    async def _keep(self, worker: _Worker) -> None:
        """Keep a worker running, until this task is cancelled or the first start of the worker fails."""
        tries = 0
        while not self._closed:
            worker.generation += 1
            process: WorkerProcess | None = None
            try:
                process = await self._processes.start(worker.number, self._make(*worker.start))
                await self._begin(worker, process)
                tries = 0
                await self._converse(worker, process)
            except FinqaError as error:
                if worker.generation == 1 and not isinstance(error, LostWorkerError):
                    self._fail(error)
                    return
                # Log: With the event `worker_lost`.
                log.warning("a rollout worker is gone", worker=worker.number, reason=error.message)
                self._lose(worker, process, error)
            except Exception as error:  # no caller awaits this task before `close`
                # Log: A defect; the run ends.
                log.error("a rollout worker cannot be used", worker=worker.number, exc_info=True)
                self._fail(portable(error))
                return
            finally:
                if process is not None and worker.process is not process:
                    process.kill()
            tries += 1
            await asyncio.sleep(RETRIES.pause_s(tries))

    async def _begin(self, worker: _Worker, process: WorkerProcess) -> None:
        """Start the worker in a process, and give it attempts. A replacement gets them only when it has a sandbox.

        Raises:
            ConfigError: The node of the process has other data than the controller.
            FinqaError: The worker raised it.
        """
        digest = await process.call("start", worker.generation)
        if digest != self._digest:
            raise ConfigError(
                f"Node {process.node} has other data than the controller ({digest[:19]}, not {self._digest[:19]}).",
                remedy="copy the data, or the folder of snapshots in FINQA_HOME, to the same path on each node",
            )
        if worker.generation > 1:
            await process.call("ready", worker.generation)
        await self._lend_to(worker, process)
        worker.process = process
        # Log: With the event `worker_placed` or `worker_back`.
        log.info("a rollout worker plays", worker=worker.number, node=process.node, generation=worker.generation)
        name = "worker_back" if worker.generation > 1 else "worker_placed"
        self._emit(name, worker, {"node": process.node, "generation": worker.generation})
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        unplaced, self._unplaced = self._unplaced, []
        for pending in unplaced:
            self._place(pending)
        self._changed()

    async def _lend_to(self, worker: _Worker, process: WorkerProcess) -> None:
        """Offer the servers that a process can reach to it, now and whenever they change."""
        if self._lending is None:
            return
        generation = worker.generation

        async def send(offer: Offer) -> None:
            await process.call("offer", generation, offer.seen_from(process.node, self._processes.here))

        await self._lending.join(worker.start, send)

    async def _converse(self, worker: _Worker, process: WorkerProcess) -> None:
        """Send deliveries and collect reports, until the process is lost.

        Raises:
            LostWorkerError: The process is lost.
            FinqaError: None of its sandboxes can be started.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(worker, process))
                group.create_task(self._collect(worker, process))
                await process.call("ready", worker.generation)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _lose(self, worker: _Worker, process: WorkerProcess | None, reason: FinqaError) -> None:
        """Give the attempts of a lost worker to other workers, and forget everything else about its process."""
        if self._closed:
            return
        lived, worker.process = worker.process is not None, None
        if self._lending is not None:
            self._lending.leave(worker.start)
        for task in worker.asked.values():
            task.cancel()
        worker.asked.clear()
        worker.deliveries.clear()
        worker.before = sum_stats((worker.before, ended_stats(worker.stats)))
        worker.stats = PoolStats()
        self._spent_before.update(worker.spent)
        worker.spent = {}
        orphans = [self._pending.pop(ticket) for ticket in sorted(worker.tickets)]
        worker.tickets.clear()
        if lived and process is not None:
            facts = {"node": process.node, "reason": reason.message, "attempts": len(orphans)}
            self._emit("worker_lost", worker, {**facts, "generation": worker.generation})
        for pending in orphans:
            self._place(pending)
        if self._alarm is None and not any(other.process for other in self._workers):
            self._alarm = asyncio.get_running_loop().call_later(NO_WORKER_S, self._give_up, reason)
        self._look_for_sandboxes(worker)

    def _look_for_sandboxes(self, worker: _Worker) -> None:
        """Search several times for sandboxes that a start of a worker left, and end them; `close` searches again."""
        start = worker.start
        if start in self._looking:
            return

        async def look() -> None:
            for pause_s in LOOKS_S:
                await asyncio.sleep(pause_s)
                await self._end_sandboxes(*start)
            del self._looking[start]

        self._looking[start] = asyncio.create_task(look())

    async def _end_sandboxes(self, number: int, generation: int) -> None:
        if self._on_lost is None:
            return
        try:
            await self._on_lost(number, generation)
        except FinqaError as error:
            # Log: They could not be listed or ended. `finqa sandbox list` shows them.
            log.warning("sandboxes of a lost worker may be left", worker=number, reason=error.message, fix=error.remedy)

    def _give_up(self, reason: FinqaError) -> None:
        self._fail(
            ServiceUnavailableError(
                f"For {NO_WORKER_S:g} s there was no rollout worker. The last one: {reason.message}",
                remedy=reason.remedy,
            )
        )

    def _place(self, pending: _Pending) -> None:
        loads = {worker.number: len(worker.tickets) for worker in self._workers if worker.process is not None}
        if not loads:
            self._unplaced.append(pending)
            return
        worker = self._workers[choose_worker(loads, self._shares)]
        pending.ticket = next(self._tickets)
        self._pending[pending.ticket] = pending
        worker.tickets.add(pending.ticket)
        worker.send(Play(ticket=pending.ticket, attempt=pending.attempt, rules=pending.rules))

    def _forget(self, pending: _Pending) -> None:
        """Cancel an attempt if it was not played to its end."""
        if pending in self._unplaced:
            self._unplaced.remove(pending)
        if self._pending.pop(pending.ticket, None) is not None:
            worker = next(worker for worker in self._workers if pending.ticket in worker.tickets)
            worker.tickets.discard(pending.ticket)
            worker.send(Cancel(ticket=pending.ticket))

    async def _send(self, worker: _Worker, process: WorkerProcess) -> None:
        slot, clock = CallSlot(number=worker.number, workers=len(self._workers)), asyncio.get_running_loop().time
        while True:
            await worker.news.wait()
            await asyncio.sleep(slot.wait_s(clock()))
            sent, worker.deliveries = worker.deliveries, []
            worker.news.clear()
            await process.call("deliver", worker.generation, pack(sent))

    async def _collect(self, worker: _Worker, process: WorkerProcess) -> None:
        while True:
            found: Reports = unpack(await process.call("collect", worker.generation))
            if found.generation != worker.generation or worker.process is not process:
                continue
            worker.stats, worker.spent = found.stats, found.spent
            self._inputs.update(found.inputs)
            for report in found.reports:
                self._take(worker, report)
            if found.turned:
                self._engine_breaker.fine()
            if self._lending is not None:
                self._lending.heard(found.answered)
            self._changed()

    def _take(self, worker: _Worker, report: Report) -> None:
        match report:
            case Played():
                worker.tickets.discard(report.ticket)
                pending = self._pending.pop(report.ticket, None)
                if pending is None or pending.played.done():
                    return
                if report.trajectory is not None:
                    pending.played.set_result(report.trajectory)
                else:
                    pending.played.set_exception(report.error or FinqaError("A worker gave no result."))
            case Ask():
                worker.asked[report.number] = asyncio.create_task(self._serve(worker, report))
            case Withdraw():
                if (asked := worker.asked.pop(report.number, None)) is not None:
                    asked.cancel()
            case Restarted():
                self._restarted(report.trajectory)
            case PoolEvent():
                self._emit(report.name, worker, report.fields)
            case Outcome():
                self._judge(worker, report.fault)
            case Unused():
                if self._lending is not None:
                    self._lending.unused(worker.start, report.offer)
            case EngineFault():
                self._engine_breaker.fault(report.fault)
                if self._engine_breaker.error is not None:
                    self._fail(self._engine_breaker.error)

    def _judge(self, worker: _Worker, fault: FinqaError | None) -> None:
        if fault is None:
            self._breaker.fine()
        elif self._breaker.error is None:
            self._breaker.fault(fault)
            if (opened := self._breaker.error) is not None:
                self._emit("breaker_open", worker, {"reason": opened.message, "remedy": opened.remedy})
                self._fail(opened)

    async def _serve(self, worker: _Worker, ask: Ask) -> None:
        """Answer a worker's request to the engine; an answer after the end of its process is dropped."""
        process = worker.process

        def send(delivery: Answer | Pause) -> None:
            if worker.process is process:
                worker.send(delivery)

        if ask.failed is not None and self._lending is not None:
            self._lending.suspect(ask.request.key, ask.failed)
        answer = await answer_for(self._engine, ask, send)
        if worker.process is process:
            worker.asked.pop(ask.number, None)
        send(answer)

    def _fail(self, error: FinqaError) -> None:
        """Fail all present and later attempts with this error, or with an earlier one."""
        self._failure = self._failure or error
        for pending in (*self._pending.values(), *self._unplaced):
            if not pending.played.done():
                pending.played.set_exception(error.with_traceback(None))
        self._changed()

    def _emit(self, name: str, worker: _Worker, fields: Mapping[str, object]) -> None:
        try:
            self._on_event(name, {**fields, "worker": worker.number})
        except Exception as error:  # the workers must keep playing when a listener does not work
            # Log: The event could not be recorded, for example because the disk is full.
            log.warning("a listener of the rollout workers failed", event_name=name, reason=repr(error))

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
