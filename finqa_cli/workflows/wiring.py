"""From settings to live objects. The only place that builds components."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.contracts import (
    ChatCodec,
    ChatEngine,
    CodecContext,
    Demonstrator,
    EngineContext,
    Environment,
    EnvironmentContext,
    Learner,
    LearnerContext,
    Optimizer,
    Reward,
    SandboxContext,
    SandboxProvider,
    TokenEngine,
    Tracker,
    TrackerContext,
)
from finqa_cli.data.snapshots import LocalSnapshots
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.rollout.attempts import Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import NoSandboxes, Pool, PoolListener, SandboxPool
from finqa_cli.settings import ENVIRONMENT, Settings
from finqa_cli.types import DataInfo, PolicyVersion, Sampling, Snapshot
from finqa_cli.workflows.interrupts import to_the_end
from finqa_cli.workflows.policies import check_engine
from finqa_cli.workflows.pool_watch import watching
from finqa_cli.workflows.reporter import Reporter
from finqa_cli.workflows.strays import offer_strays, owner_labels

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
    """

    environment: Environment
    pool: Pool
    engine: TokenEngine | ChatEngine
    codec: ChatCodec | None
    policy: PolicyVersion
    data: DataInfo

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
        )


@asynccontextmanager
async def stage(
    settings: Settings,
    policy: PolicyVersion,
    *,
    run_id: str,
    reporter: Reporter,
    trains: bool = False,
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
        episodes: How many will be played, where that is known: boxes beyond them are not started.
        check_stop: Raises once a stop was asked for; called while boxes and engine start, for nothing is drained then.
        on_event: Hears what becomes of boxes.

    Raises:
        ConfigError: The engine cannot do what is asked of it.
    """
    environment = open_environment(settings, reporter)
    size = settings.pool.sandboxes
    if episodes is not None:
        size = max(1, min(size, -(-episodes(environment) // settings.pool.sessions_per_sandbox)))
    engine = make_engine(settings, policy, environment)
    check_engine(engine, settings.engine.name, policy, trains=trains)
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
            data = environment.data()
            yield Stage(environment=environment, pool=pool, engine=engine, codec=codec, policy=policy, data=data)
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


def open_snapshot(settings: Settings, reporter: Reporter) -> Snapshot:
    """The snapshot that the settings name; the default one is built from the embedded data when it is missing.

    Raises:
        DataError: There is no such snapshot, or its files are damaged.
    """
    snapshot, built = LocalSnapshots(settings.data.home).get_or_build(settings.data.snapshot)
    if built:
        reporter.line(f"Built snapshot {snapshot.name} from the embedded data set ({snapshot.digest[:19]}).")
    return snapshot


def open_environment(settings: Settings, reporter: Reporter) -> Environment:
    """The environment of the settings, with its data.

    Raises:
        ConfigError: A data file is given to an environment that takes a snapshot.
        DataError: The snapshot or file is missing or damaged.
    """
    choice = settings.environment
    snapshotless = registry().find("environment", choice.name).snapshotless
    if settings.data.path is not None and not snapshotless:
        path = settings.data.path
        build = f"finqa snapshot build --snapshot-name {path.stem} --data"
        raise ConfigError(
            f"Environment {choice.name!r} takes a snapshot, not the data at {path}.",
            remedy=f"{build} {path}, then --snapshot {path.stem}"
            if path.is_dir()
            else f"--environment finqa-text, or finqa data import finqa-json {path} --out DIR and {build} DIR",
        )
    context = EnvironmentContext(
        snapshot=None if snapshotless else open_snapshot(settings, reporter),
        data=settings.data.path,
        reward=make_reward(settings),
        max_turns=settings.generation.max_steps,
    )
    environment: Environment = registry().create("environment", choice.name, choice.options, context)
    return environment


def make_reward(settings: Settings) -> Reward | None:
    """The reward of the settings; None stands for the environment's own verdict."""
    choice = settings.reward
    if choice.name == ENVIRONMENT:
        if choice.options:
            raise ConfigError(
                f"The environment's own verdict takes no reward options, but got: {', '.join(choice.options)}.",
                remedy="name a reward with --reward; finqa plugins lists them",
            )
        return None
    reward: Reward = registry().create("reward", choice.name, choice.options)
    return reward


def make_provider(settings: Settings) -> SandboxProvider:
    """The sandbox provider of the settings."""
    context = SandboxContext(home=settings.data.home, max_concurrent_create=settings.pool.max_concurrent_create)
    provider: SandboxProvider = registry().create("sandbox", settings.sandbox.name, settings.sandbox.options, context)
    return provider


async def make_pool(
    settings: Settings, environment: Environment, run_id: str, size: int, reporter: Reporter, on_event: PoolListener
) -> Pool:
    """The boxes that the environment asks for, or none; says so when earlier runs left some behind."""
    spec = environment.sandbox_spec()
    if spec is None:
        return NoSandboxes()
    provider = make_provider(settings)
    await offer_strays(provider, reporter, settings.sandbox.name)
    return SandboxPool(
        provider,
        spec,
        size=size,
        max_concurrent_create=settings.pool.max_concurrent_create,
        labels=owner_labels(run_id),
        sessions_per_box=settings.pool.sessions_per_sandbox,
        health_check_s=settings.pool.health_check_s,
        breaker_share=settings.pool.breaker_share,
        on_event=on_event,
    )


def make_engine(settings: Settings, policy: PolicyVersion, environment: Environment) -> TokenEngine | ChatEngine:
    """The engine of the settings, not started."""
    modelless = registry().find("engine", settings.engine.name).modelless
    context = EngineContext(
        model=policy.model,
        seed=settings.train.seed,
        dispatch_wait_ms=settings.generation.rollout_dispatch_wait_ms,
        tensor_parallel_size=settings.model.tensor_parallel_size,
        gpu_memory_utilization=settings.model.gpu_memory_utilization,
        lora_rank=settings.lora.rank,
        demonstrate=environment.demonstrate if modelless and isinstance(environment, Demonstrator) else None,
    )
    engine: TokenEngine | ChatEngine = registry().create(
        "engine", settings.engine.name, settings.engine.options, context
    )
    return engine


def make_codec(settings: Settings, model: str) -> ChatCodec:
    """The chat codec of the settings for a model."""
    codec: ChatCodec = registry().create(
        "codec", settings.codec.name, settings.codec.options, CodecContext(model=model)
    )
    return codec


def make_learner(settings: Settings, model: str) -> Learner:
    """The learner of the settings, not started."""
    lora, train = settings.lora, settings.train
    context = LearnerContext(
        model=model,
        learning_rate=train.learning_rate,
        lora_rank=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        lora_target_modules=lora.target_modules,
        gradient_checkpointing=train.gradient_checkpointing,
        max_grad_norm=train.max_grad_norm,
        temperature=settings.generation.temperature,
        seed=train.seed,
    )
    learner: Learner = registry().create("learner", settings.learner.name, settings.learner.options, context)
    return learner


def make_optimizer(settings: Settings) -> Optimizer:
    """The training method of the settings."""
    optimizer: Optimizer = registry().create("optimizer", settings.optimizer.name, settings.optimizer.options)
    return optimizer


def make_trackers(settings: Settings, run_dir: Path) -> list[Tracker]:
    """The trackers of the settings; the run folder itself needs none."""
    context = TrackerContext(run_dir=run_dir, run_id=run_dir.name)
    return [registry().create("tracker", choice.name, choice.options, context) for choice in settings.trackers]
