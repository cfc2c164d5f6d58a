"""Boxes and engine, started together and ended together."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.contracts import ChatCodec, ChatEngine, Environment, TokenEngine
from finqa_cli.rollout.attempts import Player
from finqa_cli.rollout.breaker import EngineBreaker
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool, PoolListener
from finqa_cli.runs.interrupts import to_the_end
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import DataInfo, PolicyVersion, Sampling
from finqa_cli.wiring.build import make_codec, make_engine, make_pool, open_environment
from finqa_cli.wiring.policies import check_engine
from finqa_cli.wiring.pool_watch import watching

log = structlog.get_logger(__name__)

STOP_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that plays episodes, started.

    Attributes:
        environment: Where tasks come from.
        pool: The boxes.
        engine: Who generates.
        codec: Between messages and tokens; None for chat engines.
        policy: What the engine serves at first.
        data: Where the tasks come from.
        breaker: Ends the run when the engine gives nothing but faults; None: it never does.
    """

    environment: Environment
    pool: Pool
    engine: TokenEngine | ChatEngine
    codec: ChatCodec | None
    policy: PolicyVersion
    data: DataInfo
    breaker: EngineBreaker | None = None

    def player(self, settings: Settings, *, temperature: float) -> Player:
        """A player at this temperature, with the limits of the settings."""
        generation = settings.generation
        return Player(
            self.environment,
            self.pool,
            self.engine,
            self.codec,
            limits=Limits(max_turns=generation.max_steps, seconds=generation.episode_timeout_s),
            sampling=Sampling(temperature=temperature, top_p=generation.top_p, max_tokens=generation.max_gen_tokens),
            max_retries=settings.pool.max_play_retries,
            breaker=self.breaker,
        )


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
) -> AsyncIterator[Stage]:
    """Starts boxes and engine side by side, and ends both whatever happens inside.

    Args:
        settings: What to build.
        policy: What the engine serves at first.
        run_id: Label of the boxes.
        reporter: Shows the boxes by state.
        trains: The engine is to serve training.
        run_dir: Folder of the run, in whose `logs` servers that the engine starts write their output.
        episodes: How many will be played, where that is known: boxes beyond them are not started.
        check_stop: Raises once a stop was asked for; called while boxes and engine start, for nothing is drained then.
        on_event: Called with what becomes of sandboxes and of engine replicas.

    Raises:
        ConfigError: The engine cannot do what is asked of it.
    """
    environment = open_environment(settings, reporter)
    size = settings.pool.sandboxes
    if episodes is not None:
        size = max(1, min(size, -(-episodes(environment) // settings.pool.sessions_per_sandbox)))
    log_dir = run_dir / "logs" if run_dir is not None else None
    engine = make_engine(settings, policy, environment, trains=trains, log_dir=log_dir, on_event=on_event)
    check_engine(engine, settings, policy, trains=trains)
    pool = await make_pool(settings, environment, run_id, size, reporter, on_event)
    codec = make_codec(settings, policy.model) if isinstance(engine, TokenEngine) else None
    _allow_many_sockets()
    try:
        await pool.start()
        async with watching(pool, size if environment.sandbox_spec() else 0, reporter, on_event):
            await _side_by_side(engine.start(), pool.ready(), check_stop=check_stop)
            if isinstance(engine, TokenEngine) and engine.lockstep:
                # else the first batches would depend on which box came up first
                await _side_by_side(pool.settled(), check_stop=check_stop)
            if isinstance(engine, TokenEngine) and (policy.number or policy.adapter):
                await engine.load(policy)
            yield Stage(
                environment=environment,
                pool=pool,
                engine=engine,
                codec=codec,
                policy=policy,
                data=environment.data(),
                breaker=EngineBreaker(settings.pool.concurrency),
            )
    finally:
        for failure in await to_the_end(asyncio.gather(engine.close(), pool.close(), return_exceptions=True)):
            if failure is not None:
                fix = getattr(failure, "remedy", None)
                log.warning("not everything could be closed", reason=str(failure), fix=fix)


async def _side_by_side(*works: Coroutine[Any, Any, None], check_stop: Callable[[], None]) -> None:
    """Awaits them all; what fails first ends the others and is raised, without a wait for a large model."""
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
    """Raises the soft limit of open files to the hard one: each session is a socket, and 1024 is a usual soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
