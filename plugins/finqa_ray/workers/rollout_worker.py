"""The process of a rollout worker: it plays the attempts that the controller sends, on sandboxes of its own.

The engine stays with the controller, which decides about versions and replicas. Each turn is requested from the
controller, or from the servers that the controller offers (see `direct_engine`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from finqa_cli.contracts import ChatCodec, Environment
from finqa_cli.errors import FinqaError, LostWorkerError
from finqa_cli.rollout.attempts import Player
from finqa_cli.rollout.breaker import Breaker, EngineBreaker
from finqa_cli.rollout.players import Rules
from finqa_cli.rollout.pool import Pool
from finqa_cli.types import Trajectory, TrajectoryRecord
from finqa_ray.workers.direct_engine import DirectEngine
from finqa_ray.workers.relayed_engine import Relay, RelayedChatEngine, ReportQueue
from finqa_ray.workers.worker_messages import (
    Answer,
    Cancel,
    EngineFault,
    Offer,
    Outcome,
    Pause,
    Play,
    Played,
    Reports,
    Restarted,
    pack,
    pack_turns,
    portable,
    unpack,
)
from finqa_ray.workers.worker_shares import CallSlot

log = structlog.get_logger(__name__)

STATS_S = 1.0
"""Seconds after which a worker without news reports the figures of its pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The components that a worker plays with.

    Attributes:
        environment: Opens the sessions.
        pool: The worker's share of the sandboxes, not started.
        codec: Chat codec; None for a chat engine.
        record: Makes the record of an attempt; None: the controller makes it.
    """

    environment: Environment
    pool: Pool
    codec: ChatCodec | None
    record: Callable[[Trajectory], TrajectoryRecord] | None = None


class ReportingBreaker(Breaker):
    """Reports the outcomes of the worker's sandboxes to the controller, which judges those of all workers together."""

    def __init__(self, queue: ReportQueue) -> None:
        super().__init__(1, 1.0)
        self._queue = queue

    def fine(self) -> None:
        """Report a start or a session that succeeded."""
        self._queue.add(Outcome())

    def fault(self, error: FinqaError) -> None:
        """Report the fault of a start, a session or a sandbox."""
        self._queue.add(Outcome(fault=portable(error)))


class _ReportingEngineBreaker(EngineBreaker):
    def __init__(self, queue: ReportQueue) -> None:
        super().__init__(1)
        self._queue = queue

    def fine(self) -> None:
        self._queue.turned = True

    def fault(self, error: FinqaError) -> None:
        self._queue.add(EngineFault(fault=portable(error)))


class RolloutWorker:
    """Plays the attempts that `deliver` receives, and reports with `collect`. Every call names a generation.

    A report counts only when the controller has collected it, and the controller collects only from the newest
    generation of a worker.
    """

    def __init__(self, build: Callable[[ReportQueue], Awaitable[Scene]], *, slot: CallSlot | None = None) -> None:
        """Keep the parts; `start` starts the worker.

        Args:
            build: Makes the components that the worker plays with.
            slot: Times at which it reports; None: those of a single worker.
        """
        self._build = build
        self._slot = slot or CallSlot()
        self._generation = 0
        self._queue: ReportQueue
        self._relay: Relay
        self._engine: DirectEngine
        self._scene: Scene
        self._players: dict[Rules, Player] = {}
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._tried: dict[str, Trajectory] = {}

    async def start(self, generation: int) -> str:
        """Make all components and begin to start sandboxes; return the digest of the environment's data.

        Raises:
            FinqaError: A component cannot be made, or the environment is not ready.
        """
        self._generation = generation
        self._queue = ReportQueue()
        self._relay = Relay(self._queue)
        self._engine = DirectEngine(self._relay, self._queue)
        self._scene = await self._build(self._queue)
        await self._scene.environment.check_ready()
        await self._scene.pool.start()
        return self._scene.environment.data().digest

    async def ready(self, generation: int) -> None:
        """Wait until a sandbox runs.

        Raises:
            LostWorkerError: The call is for another generation; the same holds for all calls below.
            FinqaError: No sandbox runs, and the last starts failed.
        """
        self._check(generation)
        await self._scene.pool.ready()

    async def offer(self, generation: int, offer: Offer) -> None:
        """Use the servers of an offer for all requests from now on."""
        self._check(generation)
        await self._engine.take(offer)

    async def deliver(self, generation: int, deliveries: bytes) -> None:
        """Receive attempts, cancellations and answers of the engine: a packed sequence of `Delivery`."""
        self._check(generation)
        for delivery in unpack(deliveries):
            match delivery:
                case Play():
                    self._playing[delivery.ticket] = asyncio.create_task(self._play(delivery))
                case Cancel():
                    if (task := self._playing.get(delivery.ticket)) is not None:
                        task.cancel()
                case Answer():
                    self._relay.answer(delivery)
                case Pause():
                    self._relay.pause(delivery)

    async def collect(self, generation: int) -> bytes:
        """Wait for reports, at most `STATS_S`, and return packed `Reports` with all of them."""
        self._check(generation)
        if await self._queue.wait(STATS_S):
            await asyncio.sleep(self._slot.wait_s(asyncio.get_running_loop().time()))
        reports, turned, answered = self._queue.take()
        scene = self._scene
        return pack(
            Reports(
                generation=generation,
                reports=reports,
                turned=turned,
                answered=answered,
                stats=scene.pool.stats(),
                inputs=dict(scene.environment.inputs()),
                spent=dict(scene.environment.spent()),
            )
        )

    async def close(self) -> dict[str, float]:
        """End all attempts and sandboxes; return all that the environment used, see `Environment.spent`."""
        tasks = [*self._playing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._engine.close()
        await self._scene.pool.close()
        await self._scene.environment.close()
        return dict(self._scene.environment.spent())

    def _check(self, generation: int) -> None:
        if generation != self._generation:
            raise LostWorkerError(f"This is start {self._generation} of the worker, and the call is for {generation}.")

    async def _play(self, play: Play) -> None:
        attempt = play.attempt
        trajectory: Trajectory | None = None
        failure: FinqaError | None = None
        try:
            player = self._player(play.rules)
            with player.seat() as seat:
                played = await player.play(attempt, seat)
            if self._scene.record is not None:
                played = replace(played, record=self._scene.record(played))
            trajectory = pack_turns(played)
        except asyncio.CancelledError:
            return
        except Exception as error:
            if not isinstance(error, FinqaError):
                # Log: A defect in a rollout worker; the attempt ends in a fault.
                log.error("playing an attempt failed", attempt=attempt.id, exc_info=True)
            failure = portable(error)
        finally:
            self._tried.pop(attempt.id, None)
            del self._playing[play.ticket]
        self._queue.add(Played(ticket=play.ticket, trajectory=trajectory, error=failure))

    def _player(self, rules: Rules) -> Player:
        if rules not in self._players:
            scene = self._scene
            self._engine.longest = rules.max_context
            self._players[rules] = Player(
                scene.environment,
                scene.pool,
                self._engine if scene.codec is not None else RelayedChatEngine(self._relay),
                scene.codec,
                limits=rules.limits,
                sampling=rules.sampling,
                max_retries=rules.max_retries,
                breaker=_ReportingEngineBreaker(self._queue),
                played=self._note_try,
            )
        return self._players[rules]

    def _note_try(self, trajectory: Trajectory) -> None:
        """Report the try before this one as restarted, because only the last try is the attempt's result."""
        if (earlier := self._tried.get(trajectory.id)) is not None:
            self._queue.add(Restarted(trajectory=earlier))
        self._tried[trajectory.id] = trajectory
