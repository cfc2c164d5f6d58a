"""Start and end of everything that plays episodes: environment, sandboxes and engine."""

from __future__ import annotations

import asyncio
import itertools
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import structlog

from finqa_cli.contracts import ChatCodec, ChatEngine, Environment, TokenEngine
from finqa_cli.errors import MissingDependencyError
from finqa_cli.extend import registry
from finqa_cli.rollout.attempts import AttemptPlayer
from finqa_cli.rollout.breaker import EngineBreaker
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.players import Players, PlayersHere, PlayersRequest, Rules
from finqa_cli.rollout.pool import Pool, PoolListener, PoolStats
from finqa_cli.runs.interrupts import to_the_end
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import read_run
from finqa_cli.runs.spending import Meter
from finqa_cli.settings import Settings
from finqa_cli.types import DataInfo, PolicyVersion, Sampling, Trajectory
from finqa_cli.types.run_events import INLINE, RunEvent
from finqa_cli.wiring.build import make_codec, make_engine, make_pool, open_environment
from finqa_cli.wiring.hub_models import bring_model
from finqa_cli.wiring.merged_adapters import servable
from finqa_cli.wiring.policies import check_cost_of_judge, check_engine, check_fit
from finqa_cli.wiring.sandbox_owners import owner_labels

log = structlog.get_logger(__name__)

Made = TypeVar("Made")

_stages = itertools.count()
"""Stages of this process: an imitation has one for each evaluation."""

STOP_POLL_S = 0.2

PHASE = "sandboxes"
INTERVAL_S = 1.0
LOOKS_BETWEEN_EVENTS = 10
LOOKS_AT_NEWS = 6
"""Number of times that a change is reported, because a reporter of lines skips updates too soon after the last line."""


class PoolEvent(RunEvent):
    """Some seconds after the figures of the sandboxes changed, and at the end of the run."""

    event: Literal["pool"]
    fields: Annotated[PoolStats, INLINE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that plays episodes, started.

    Attributes:
        environment: Provides the tasks.
        pool: Pool of sandboxes.
        engine: Generates turns.
        codec: Chat codec; None for chat engines.
        policy: The version that the engine serves at first.
        data: The data that the tasks come from.
        breaker: Ends the run if the engine only causes faults; None: no breaker.
        meter: Counts the usage of episodes; None: it is not counted.
        elsewhere: Make players in other processes; None: this process plays.
    """

    environment: Environment
    pool: Pool
    engine: TokenEngine | ChatEngine
    codec: ChatCodec | None
    policy: PolicyVersion
    data: DataInfo
    breaker: EngineBreaker | None = None
    meter: Meter | None = None
    elsewhere: Players | None = None

    @property
    def costs_money(self) -> bool:
        """Whether a completion that is dropped may cost money: that of an engine that returns no tokens of its own."""
        return isinstance(self.engine, ChatEngine)

    def admits(self, running: int) -> bool:
        """Whether one more episode may start beside so many; see `Meter.admits`."""
        return self.meter is None or self.meter.admits(running)

    def inputs(self) -> dict[str, Any]:
        """Return the data, digests of other inputs that determine the prompts, and their format, for the manifest."""
        digests = {**self.environment.inputs(), **self._players().inputs()}
        turns = dict(self.codec.facts()) if self.codec is not None else {}
        return {
            "data": asdict(self.data),
            **({"environment": digests} if digests else {}),
            **({"format": turns} if turns else {}),
        }

    def player(self, settings: Settings, *, temperature: float) -> AttemptPlayer:
        """Return a player with this temperature and the limits of the settings."""
        generation = settings.generation
        limits = Limits(
            max_turns=generation.max_steps,
            seconds=generation.episode_timeout_s,
            tokens=generation.max_episode_tokens,
            cost_usd=generation.max_episode_cost,
        )
        rules = Rules(
            limits=limits,
            sampling=Sampling(temperature=temperature, top_p=generation.top_p, max_tokens=generation.max_gen_tokens),
            max_retries=settings.pool.max_play_retries,
        )
        played = self.meter.add if self.meter is not None else lambda trajectory: None
        return self._players().player(rules, played)

    def _players(self) -> Players:
        here = PlayersHere(self.environment, self.pool, self.engine, self.codec, self.breaker)
        return self.elsewhere if self.elsewhere is not None else here


@asynccontextmanager
async def stage(
    settings: Settings,
    policy: PolicyVersion,
    *,
    run_id: str,
    reporter: Reporter,
    trains: bool = False,
    run_dir: Path | None = None,
    episodes: Callable[[Environment], int] | None = None,
    check_stop: Callable[[], None] = lambda: None,
    on_event: PoolListener = lambda name, facts: None,
    meter: Meter | None = None,
) -> AsyncIterator[Stage]:
    """Start sandboxes and engine concurrently, and end both when the block ends.

    Args:
        settings: Settings of the components.
        policy: The version that the engine serves at first.
        run_id: Label of the sandboxes.
        reporter: Shows the sandboxes by state.
        trains: The engine is used for training.
        run_dir: Folder of the run; servers that the engine starts write their output to its folder `logs`.
        episodes: Returns the number of episodes, if it is known; no more sandboxes are started than they need.
        check_stop: Raises an error if a stop was requested; called while sandboxes and engine start.
        on_event: Called with the events of sandboxes, rollout workers and engine replicas.
        meter: Counts the usage of episodes and sandboxes.

    Raises:
        ConfigError: The engine does not support the settings or the policy.
        FinqaError: The environment is not ready (see `Environment.check_ready`), or engine or sandboxes do not start.
    """
    check_fit(settings, policy, trains=trains)
    if trains and meter is not None:  # the few episodes of an imitation have no limit of cost
        check_cost_of_judge(settings)
    with servable(settings, policy, run_dir, reporter) as served:
        async with _started(
            settings, served, run_id, reporter, trains, run_dir, episodes, check_stop, on_event, meter
        ) as parts:
            yield parts


@asynccontextmanager
async def _started(
    settings: Settings,
    policy: PolicyVersion,
    run_id: str,
    reporter: Reporter,
    trains: bool,
    run_dir: Path | None,
    episodes: Callable[[Environment], int] | None,
    check_stop: Callable[[], None],
    on_event: PoolListener,
    meter: Meter | None,
) -> AsyncIterator[Stage]:
    """Start everything that plays a policy which the engine serves; the arguments are those of `stage`."""
    with reporter.work(f"preparing environment {settings.environment.name} and engine {settings.engine.name}"):
        environment = open_environment(settings, reporter)
        try:
            await environment.check_ready()
        except BaseException:
            await environment.close()
            raise
        size = _sandboxes_for(settings, None if episodes is None else episodes(environment))
        log_dir = run_dir / "logs" if run_dir is not None else None
        breaker, pool = EngineBreaker(settings.pool.concurrency), Pool()
        elsewhere: Players | None = None
        try:
            if not settings.cluster.rollout_workers:  # first: a missing key is reported before the engine is made
                pool = await make_pool(settings, environment, owner_labels(run_id), size, reporter, on_event)
            start = f"{_times_resumed(run_dir)}.{next(_stages)}"
            await _in_thread(registry().load, "engine", settings.engine.name, check_stop=check_stop)
            engine = make_engine(
                settings, policy, environment, trains=trains, log_dir=log_dir, start=start, on_event=on_event
            )
            check_engine(engine, settings, policy, trains=trains)
            if meter is not None:
                meter.check_priced(
                    _is_priced(engine), settings.grader.options, episode_cost=settings.generation.max_episode_cost
                )
            await asyncio.to_thread(engine.check)
            if engine.loads_model:
                await _side_by_side(asyncio.to_thread(bring_model, policy.model, reporter), check_stop=check_stop)
            codec = None
            if isinstance(engine, TokenEngine):
                codec = await _in_thread(make_codec, settings, policy.model, check_stop=check_stop)
            if settings.cluster.rollout_workers:
                request = PlayersRequest(
                    settings=settings,
                    policy=policy,
                    environment=environment,
                    engine=engine,
                    run_id=run_id,
                    size=size,
                    engine_breaker=breaker,
                    on_event=on_event,
                    restarted=meter.add if meter is not None else lambda trajectory: None,
                )
                elsewhere = _players_elsewhere(request)
                engine, pool = elsewhere.engine, elsewhere.pool
        except BaseException:
            await pool.close()
            await environment.close()
            raise
    _allow_many_sockets()
    if meter is not None:
        meter.count_beside(lambda: (environment.spent(), *([elsewhere.spent()] if elsewhere is not None else [])))
    try:
        await pool.start()
        async with watch_pool(pool, size if environment.sandbox_spec() else 0, reporter, on_event, meter):
            with reporter.work(_starting(settings, policy), on_event=on_event):
                await _bring_up(engine, pool, policy, elsewhere, check_stop, on_event)
            yield Stage(
                environment=environment,
                pool=pool,
                engine=engine,
                codec=codec,
                policy=policy,
                data=environment.data(),
                breaker=breaker,
                meter=meter,
                elsewhere=elsewhere,
            )
    finally:
        closing = asyncio.gather(engine.close(), pool.close(), environment.close(), return_exceptions=True)
        for failure in await to_the_end(closing):
            if failure is not None:
                fix = getattr(failure, "remedy", None)
                # Log: At the end of a run; `fix` names the command that ends them.
                log.warning("some resources could not be closed", reason=str(failure), fix=fix)
        if meter is not None:
            meter.close()


def _players_elsewhere(request: PlayersRequest) -> Players:
    """Return the players of a run with `cluster.rollout_workers` from the plugin that has them.

    Raises:
        MissingDependencyError: No installed plugin has them.
        FinqaError: The plugin cannot play with these settings.
    """
    players = registry().first("make_players", Players, request=request)  # type: ignore[type-abstract]
    if players is None:
        raise MissingDependencyError(
            "No installed plugin starts rollout workers (cluster.rollout_workers).",
            remedy="--set cluster.rollout_workers=0, or pip install 'finqa[ray]'",
        )
    return players


def _is_priced(engine: TokenEngine | ChatEngine) -> bool:
    try:
        return engine.usage("").get("cost_usd") is not None
    except Exception:  # the episodes are valid without these figures; the first one logs what is wrong with them
        return False


def _times_resumed(run_dir: Path | None) -> int:
    """Return how often the run of this folder was resumed; 0 if no run is recorded there."""
    recorded = run_dir is not None and (run_dir / "run.json").is_file()
    return len(read_run(run_dir).get("resumed", ())) if run_dir is not None and recorded else 0


def _starting(settings: Settings, policy: PolicyVersion) -> str:
    """Return what is done while engine and sandboxes start."""
    name, model = settings.engine.name, policy.model
    return f"starting engine {name} with {model}" if model else f"starting engine {name}"


def _sandboxes_for(settings: Settings, episodes: int | None) -> int:
    """Return the number of sandboxes to start: at most as many as the episodes need, if their number is known."""
    most, sessions = settings.pool.sandboxes, settings.pool.sessions_per_sandbox
    return most if episodes is None else max(1, min(most, -(-episodes // sessions)))


async def _bring_up(
    engine: TokenEngine | ChatEngine,
    pool: Pool,
    policy: PolicyVersion,
    elsewhere: Players | None,
    check_stop: Callable[[], None],
    on_event: PoolListener,
) -> None:
    """Start the engine, wait for sandboxes, and load the policy into the engine."""
    await _side_by_side(engine.start(), pool.ready(), check_stop=check_stop)
    if elsewhere is not None:
        elsewhere.check_engine()
    if engine.lockstep:
        # Otherwise the first batches would depend on which sandbox started first.
        await _side_by_side(pool.settled(), check_stop=check_stop)
    if isinstance(engine, TokenEngine) and engine.nodes:
        on_event("engine_nodes", {"nodes": list(engine.nodes)})
    if isinstance(engine, TokenEngine) and (policy.number or policy.adapter):
        await engine.load(policy)


async def _in_thread(call: Callable[..., Made], *arguments: Any, check_stop: Callable[[], None]) -> Made:
    """Call a function that imports large packages in a thread, so that a signal stops the command meanwhile."""
    made: list[Made] = []
    await _side_by_side(asyncio.to_thread(lambda: made.append(call(*arguments))), check_stop=check_stop)
    return made[0]


async def _side_by_side(*works: Coroutine[Any, Any, None], check_stop: Callable[[], None]) -> None:
    """Run coroutines concurrently. The first failure cancels the others and is raised."""
    tasks = {asyncio.create_task(work) for work in works}
    running = tasks
    try:
        while running:
            check_stop()
            done, running = await asyncio.wait(running, timeout=STOP_POLL_S, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _allow_many_sockets() -> None:
    """Raise the soft limit of open files, often 1024, to the hard limit, because each session needs a socket."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def watch_pool(
    pool: Pool, size: int, reporter: Reporter, on_event: PoolListener, meter: Meter | None = None
) -> AsyncIterator[None]:
    """Show the sandboxes by state during this block, and pass the figures to `on_event` as the event `pool`.

    With a `size` of 0 nothing is shown.
    """
    if not size:
        yield
        return
    reporter.start(PHASE, size)
    watcher = asyncio.create_task(_watch(pool, reporter, on_event, meter))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        reporter.drop(PHASE)
        on_event("pool", asdict(pool.stats()))


class EpisodeCount:
    """Shows the number of ended episodes of a phase, with their recoveries, retries and faults."""

    def __init__(self, reporter: Reporter, phase: str, total: int | None) -> None:
        self._reporter = reporter
        self._phase = phase
        self._done = 0
        self._troubles: Counter[str] = Counter()
        reporter.start(phase, total)

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that has ended."""
        self._done += 1
        troubles = {
            "recoveries": trajectory.recoveries,
            "retries": trajectory.retries,
            "faults": int(trajectory.status.is_fault),
        }
        self._troubles.update(troubles)
        self._reporter.advance(self._phase, self._done, **_without_zeros(self._troubles))


async def _watch(pool: Pool, reporter: Reporter, on_event: PoolListener, meter: Meter | None) -> None:
    """Report the pool every second on a live display; on others only when a sandbox started, failed or was lost."""
    seen: object = None
    sent: PoolStats | None = None
    fresh = 0
    for look in itertools.count():
        stats = pool.stats()
        news = (stats.alive, stats.starting, stats.lost, stats.start_failures)
        fresh = fresh - 1 if news == seen else LOOKS_AT_NEWS
        seen = news
        if reporter.live or fresh > 0:
            reporter.advance(PHASE, stats.alive, **_fields(stats))
        if look % LOOKS_BETWEEN_EVENTS == 0 and stats != sent:
            sent = stats
            on_event("pool", asdict(stats))
        if meter is not None:
            meter.add_sandboxes(stats.alive, INTERVAL_S if look else 0.0)
        await asyncio.sleep(INTERVAL_S)


def _fields(stats: PoolStats) -> dict[str, object]:
    return _without_zeros(
        {
            "starting": stats.starting,
            "playing": stats.leased,
            "idle": stats.idle,
            "waiting": stats.waiting,
            "lost": stats.lost,
            "failed_starts": stats.start_failures,
        }
    )


def _without_zeros(numbers: dict[str, int]) -> dict[str, object]:
    """Return the numbers that are not 0, to keep the line of a run without faults short."""
    return {name: number for name, number in numbers.items() if number}
