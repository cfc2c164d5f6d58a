"""A token engine made of several replicas: routed by prefix, updated together, excluded when they fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeVar

import structlog

from finqa_cli.contracts import EngineLoan, TokenEngine
from finqa_cli.errors import ConfigError, EngineError, FinqaError, ServiceUnavailableError, UnreachableEngineError
from finqa_cli.rollout.replica_choice import ReplicaHealth, Router, is_away
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling
from finqa_cli.types.run_events import RunEvent

log = structlog.get_logger(__name__)

TRIAL = GenerateRequest(key="trial", token_ids=(1,), sampling=Sampling(max_tokens=1))
"""Request that checks whether an excluded replica serves again, when workers send all other requests directly."""

ReplicaListener = Callable[[str, Mapping[str, Any]], object]
"""Called with an event's name and facts: `engine_left_out` (replica, reason) and `engine_back` (replica, version).

For a replica on a node of a cluster, the facts include the `node`.
"""


class EngineLeftOut(RunEvent):
    """An engine replica cannot be reached and gets no requests."""

    event: Literal["engine_left_out"]
    replica: int
    """Number of the replica."""
    node: NotRequired[str]
    """Address of its node; absent on one machine."""
    reason: str
    """The error."""


class EngineBack(RunEvent):
    """A replica, or without `replica` the engine, can be reached again."""

    event: Literal["engine_back"]
    replica: NotRequired[int]
    """Number of the replica; absent if the run had waited for the engine."""
    node: NotRequired[str]
    """Address of its node; absent on one machine."""
    version: int | None
    """Number of the policy that it serves; null if it is not known."""


class Replica(ReplicaHealth):
    """One engine of the set.

    Attributes:
        engine: The engine.
        policy: The version that it serves; None while that is uncertain.
        loading: Lock that is held while the engine loads a version.
    """

    def __init__(self, number: int, engine: TokenEngine, policy: PolicyVersion, on_event: ReplicaListener) -> None:
        super().__init__(number)
        self.engine = engine
        self.policy: PolicyVersion | None = policy
        self.loading = asyncio.Lock()
        self._on_event = on_event

    def _on_left(self, reason: BaseException) -> None:
        self._on_event("engine_left_out", {"replica": self.number, **self._node, "reason": str(reason)})

    def _on_back(self) -> None:
        version = self.policy.number if self.policy else None
        self._on_event("engine_back", {"replica": self.number, **self._node, "version": version})

    @property
    def _node(self) -> dict[str, str]:
        nodes = self.engine.nodes
        return {"node": nodes[0]} if nodes else {}


T = TypeVar("T")


class EngineSet(TokenEngine):
    """A token engine made of several engines of the same kind with the same options.

    An episode (the part of its keys before `#`) stays on one replica; see `Router`. A request that fails is repeated
    once on another replica. A replica that fails three times in a row, or cannot be reached, is excluded: it gets no
    requests for a while, and then one request as a trial. Before the trial it loads the version that it missed.

    Seats are not passed on to the replicas, because the replica of an episode is known only at its first request. So
    replicas never wait to fill a batch, and an engine in lockstep, which must know its seats, cannot be in a set.
    """

    def __init__(
        self,
        engines: Sequence[TokenEngine],
        *,
        serving: PolicyVersion,
        on_event: ReplicaListener = lambda name, facts: None,
    ) -> None:
        """Combine the engines; `serving` is the version that each of them serves after its start."""
        self._replicas = [Replica(number, engine, serving, on_event) for number, engine in enumerate(engines)]
        self._rejoining: set[asyncio.Task[object]] = set()
        self._awaited: set[Replica] = set()
        self._router = Router(len(engines))
        self.sleeps = any(engine.sleeps for engine in engines)
        self.loads_model = any(engine.loads_model for engine in engines)
        self.probe_tolerance = engines[0].probe_tolerance
        self._policy = serving
        self._published = {serving.number}
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._last_error: ServiceUnavailableError | None = None

    def check(self) -> None:
        """Check the first engine: all have the same model and options."""
        self._replicas[0].engine.check()

    async def start(self) -> None:
        """Start all engines concurrently; the first failure ends the other starts and is raised. Idempotent.

        Raises:
            ConfigError: An engine raised it, or the engines run in lockstep.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(replica.engine.start())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if any(replica.engine.lockstep for replica in self._replicas):
            raise ConfigError(
                "Engine replicas in lockstep would wait for each other's episodes forever.",
                remedy="--engine-replicas 1, or --set engine.options.lockstep=false",
            )

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample a completion on the replica that `Router` chooses; if that one fails, on another.

        Raises:
            EngineError: Two replicas failed, or the only usable one; others may serve the next request.
            ServiceUnavailableError: No replica is in service.
        """
        tried: set[int] = set()
        while True:
            await self._open.wait()
            replica = self._choose(request, tried)
            try:
                return await self._ask(replica, request)
            except ServiceUnavailableError as error:
                tried.add(replica.number)
                if len(tried) > 1 or not self._loads(tried):
                    raise self._fault(error) from error.__cause__
                # Log: A replica failed during a request.
                log.info("repeating a request on another replica", key=request.key, reason=error.message)

    async def load(self, policy: PolicyVersion) -> None:
        """Load a version into all replicas in service, concurrently.

        New requests wait until all of them have the version; requests in progress continue. A replica that cannot be
        reached is excluded. Excluded replicas load the version before they are tried again.

        Raises:
            EngineError: A replica could not load the version. All serve the old version; a replica that could not
                return to the old version is excluded until it can.
            ServiceUnavailableError: No replica is left. `UnreachableEngineError`: one may become reachable again.
        """
        async with self._publishing:
            self._open.clear()
            out: list[Replica] = []
            try:
                serving = [replica for replica in self._replicas if replica.in_service]
                out = [replica for replica in self._replicas if not replica.in_service]
                failed = await self._publish(serving, policy)
                refused = any(replica.in_service for replica in failed)
                if not refused and len(failed) == len(serving):
                    failed |= await self._publish(out, policy)
                    for replica in (one for one in out if one not in failed):
                        replica.succeeded()
                    out = []
                if refused or len(failed) == len(self._replicas):
                    await self._go_back()
                    raise next((error for error in failed.values() if not is_away(error)), None) or self._nobody()
                self._policy = policy
                self._published.add(policy.number)
            finally:
                self._open.set()
        for replica in out:
            self._begin(self._rejoin(replica))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Addresses of the nodes of the replicas, in their order."""
        return tuple(node for replica in self._replicas for node in replica.engine.nodes)

    @property
    def max_context(self) -> int:
        """The smallest `max_context` of the replicas."""
        return min(replica.engine.max_context for replica in self._replicas)

    async def probe(self, request: GenerateRequest) -> Mapping[int, Completion]:
        """Return the completions of the replicas in service, by number. Replicas that cannot be reached are excluded.

        Raises:
            EngineError: A replica failed.
            ServiceUnavailableError: No replica is left.
        """

        async def answers(replica: Replica) -> Collection[Completion]:
            await self._catch_up(replica)
            return (await replica.engine.probe(request)).values()

        serving = [replica for replica in self._replicas if replica.in_service]
        completions: dict[int, Completion] = {}
        for replica, outcome in zip(serving, await _all_ended(map(answers, serving)), strict=True):
            if not isinstance(outcome, BaseException):
                completions.update((replica.number, completion) for completion in outcome)
            elif is_away(outcome):
                self._left(replica, outcome)
            else:
                raise outcome
        if not any(replica.in_service for replica in self._replicas):
            raise self._nobody()
        return completions

    def lend(self) -> EngineLoan | None:
        """Offer the servers of the replicas in service; see `TokenEngine.lend`.

        Excluded replicas whose pause is over are tried in the background, so that a later call may include them.
        """
        now = asyncio.get_running_loop().time()
        for replica in self._replicas:
            if not replica.in_service and replica.usable(now):
                self._begin(self._try(replica))
        serving = [replica.in_service and replica.policy == self._policy for replica in self._replicas]
        loans = [one.engine.lend() if serves else None for one, serves in zip(self._replicas, serving, strict=True)]
        if not any(loans):
            return None

        def end() -> None:
            for loan in filter(None, loans):
                loan.end()

        def heard(number: int) -> None:
            if (loan := loans[number]) is not None and self._replicas[number].in_service:
                self._replicas[number].succeeded()
                loan.heard(0)

        routes = tuple(loan.routes[0] if loan is not None else None for loan in loans)
        return EngineLoan(routes=routes, end=end, suspect=self._router.move, heard=heard)

    async def sleep(self) -> None:
        """Let the replicas in service sleep. A replica that cannot be reached is excluded.

        Raises:
            EngineError: A replica failed; the calls to all others have ended too.
            ServiceUnavailableError: No replica is left.
        """
        await self._each_in_service(lambda engine: engine.sleep())

    async def wake(self) -> None:
        """Wake the replicas in service; errors as for `sleep`. Excluded replicas wake before they are tried again."""
        await self._each_in_service(lambda engine: engine.wake())

    def usage(self, episode: str) -> Mapping[str, Any]:
        """Return what the episode used on all replicas together; see `add_usage`."""
        return add_usage(replica.engine.usage(episode) for replica in self._replicas)

    async def close(self) -> None:
        """Close all engines; if some cannot be closed, the first failure is raised at the end. Idempotent."""
        for task in self._rejoining:
            task.cancel()
        await asyncio.gather(*self._rejoining, return_exceptions=True)
        await self._all(lambda engine: engine.close())

    def _choose(self, request: GenerateRequest, tried: Collection[int]) -> Replica:
        loads = self._loads(tried)
        if not loads:
            raise self._nobody()
        return self._replicas[self._router.choose(request.key.partition("#")[0], request.token_ids, loads)]

    async def _ask(self, replica: Replica, request: GenerateRequest) -> Completion:
        """Send a request to a replica, and judge the replica by the result.

        Raises:
            ServiceUnavailableError: The replica failed (EngineError) or cannot be reached.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            with replica.busy():
                await self._catch_up(replica)
                completion = await replica.engine.generate(request)
            await self._until_published(replica, completion)
        except ServiceUnavailableError as error:
            replica.failed(error, began=began, now=clock())
            self._last_error = error
            if is_away(error):
                self._await(replica)
            raise
        replica.succeeded()
        return completion

    async def _try(self, replica: Replica) -> None:
        with contextlib.suppress(FinqaError):
            await self._ask(replica, TRIAL)

    def _loads(self, tried: Collection[int]) -> dict[int, int]:
        """Number of requests in progress of each usable replica that has not been tried."""
        now = asyncio.get_running_loop().time()
        free = (replica for replica in self._replicas if replica.number not in tried and replica.usable(now))
        return {replica.number: replica.load for replica in free}

    async def _catch_up(self, replica: Replica) -> None:
        """Load the version that the set serves into a replica that missed it, or whose version is uncertain."""
        while replica.policy != self._policy:
            await self._put(replica, self._policy)

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._rejoining.add(task)
        task.add_done_callback(self._rejoining.discard)

    def _await(self, replica: Replica) -> None:
        """Load the current version into an unreachable replica as soon as it can be reached again."""
        if replica.engine.reports_return and replica not in self._awaited:
            self._awaited.add(replica)
            self._begin(self._when_returned(replica))

    async def _when_returned(self, replica: Replica) -> None:
        try:
            await replica.engine.returned()
        finally:
            self._awaited.discard(replica)
        if await self._rejoin(replica):
            replica.succeeded()

    async def _rejoin(self, replica: Replica) -> bool:
        """Load the current version into an excluded replica; return whether it succeeded."""
        try:
            await self._catch_up(replica)
        except FinqaError as error:
            # Log: Each time that a left-out replica is tried.
            log.info("an engine replica is still not reachable", replica=replica.number, reason=error.message)
            return False
        replica.due()
        return True

    async def _publish(self, replicas: Sequence[Replica], policy: PolicyVersion) -> dict[Replica, BaseException]:
        """Load a version into replicas concurrently; return the failed ones with their errors.

        Replicas that cannot be reached are excluded.
        """
        outcomes = await _all_ended(self._put(replica, policy) for replica in replicas)
        failed = {replica: error for replica, error in zip(replicas, outcomes, strict=True) if error is not None}
        for replica, error in failed.items():
            if is_away(error):
                self._left(replica, error)
        return failed

    def _left(self, replica: Replica, error: ServiceUnavailableError) -> None:
        self._last_error = error
        replica.away(error, asyncio.get_running_loop().time())
        self._await(replica)

    async def _until_published(self, replica: Replica, completion: Completion) -> None:
        """Hold back a completion under a new version until all replicas have that version.

        Raises:
            EngineError: The version was never published.
        """
        if completion.policy_version in self._published:
            return
        await self._open.wait()
        if completion.policy_version not in self._published:
            raise EngineError(
                f"Replica {replica.number} answered under policy version {completion.policy_version}, which is not "
                "published."
            )

    async def _put(self, replica: Replica, policy: PolicyVersion) -> None:
        async with replica.loading:
            if replica.policy == policy:
                return
            before, replica.policy = replica.policy, None
            try:
                if before is None:
                    await replica.engine.wake()  # it may have been excluded when the others woke
                await replica.engine.load(policy)
            except EngineError:
                replica.policy = before  # by contract it still serves the old version; other errors leave it uncertain
                raise
            replica.policy = policy

    async def _go_back(self) -> None:
        changed = [one for one in self._replicas if one.in_service and one.policy != self._policy]
        outcomes = await _all_ended(self._put(replica, self._policy) for replica in changed)
        for replica, error in zip(changed, outcomes, strict=True):
            if error is not None:
                replica.leave(error, asyncio.get_running_loop().time())

    async def _all(self, work: Callable[[TokenEngine], Coroutine[Any, Any, None]]) -> None:
        for error in await _all_ended(work(replica.engine) for replica in self._replicas):
            if error is not None:
                raise error

    async def _each_in_service(self, work: Callable[[TokenEngine], Coroutine[Any, Any, None]]) -> None:
        serving = [replica for replica in self._replicas if replica.in_service]
        outcomes = await _all_ended(work(replica.engine) for replica in serving)
        for replica, error in zip(serving, outcomes, strict=True):
            if is_away(error):
                replica.policy = None  # it is not known whether it is awake
                self._left(replica, error)
        for error in outcomes:
            if error is not None and not is_away(error):
                raise error
        if not any(replica.in_service for replica in self._replicas):
            raise self._nobody()

    def _fault(self, error: ServiceUnavailableError) -> ServiceUnavailableError:
        """Return the error for one episode: an EngineError while other replicas may serve the next episode."""
        if not any(replica.in_service for replica in self._replicas):
            return self._nobody()
        return error if isinstance(error, EngineError) else EngineError(error.message, remedy=error.remedy)

    def _nobody(self) -> ServiceUnavailableError:
        error = self._last_error
        kind = UnreachableEngineError if isinstance(error, UnreachableEngineError) else ServiceUnavailableError
        return kind(
            f"None of the {len(self._replicas)} engine replicas is available."
            + (f" The last error: {error.message}" if error else ""),
            remedy=(error.remedy if error else "") or "finqa doctor, with the same --engine and options",
        )


async def _all_ended(works: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Run coroutines concurrently until all have ended; return the result or exception of each."""
    return await asyncio.gather(*works, return_exceptions=True)


def add_usage(figures: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine several usages of an episode: numbers are added; of other values the last one is kept."""
    total: dict[str, Any] = {}
    for name, value in (fact for one in figures for fact in one.items()):
        countable = isinstance(value, (int, float)) and isinstance(total.get(name), (int, float))
        total[name] = total[name] + value if countable else value
    return total
