"""A loopback Daytona in its own process, and the product's pool, environment and provider set up against it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.sandboxes.engine import SimulatedEngine
from benchmarks.sandboxes.scale import Scale
from finqa_cli.contracts import Environment
from finqa_cli.data.dataset import SplitShares
from finqa_cli.data.generated.generate import GenerateSpec, generate
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.rollout.pool import Pool
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.types import ServerSpec, Task
from finqa_cli.wiring.build import make_pool, open_environment
from finqa_cli.wiring.sandbox_owners import owner_labels
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_recipe import image_name
from finqa_testing import LoopbackConfig, LoopbackProcess, Quota

SNAPSHOT = "benchmark"
COMPANIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What all parts share: the account in the cloud, and what plays there."""

    scale: Scale
    seed: int
    home: Path
    settings: Settings
    environment: Environment
    loopback: LoopbackProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A full pool and a started engine.

    Attributes:
        ready_s: From nothing to the last sandbox.
    """

    world: World
    pool: Pool
    engine: SimulatedEngine
    tasks: Sequence[Task]
    ready_s: float


def build_snapshot(home: Path, questions: int) -> None:
    """As many companies and questions as OpenEnv's FinQA data has; all of them are for training."""
    per_company = -(-questions // COMPANIES)
    dataset = generate(
        GenerateSpec(companies=COMPANIES, questions=per_company, shares=SplitShares(train=1.0, dev=0.0, test=0.0))
    )
    LocalSnapshots(home).build(SNAPSHOT, replace(dataset, questions=dataset.questions[:questions]))


def settings_for(scale: Scale, seed: int, home: Path, **sandbox_options: Any) -> Settings:
    """The defaults of `finqa train`, with one episode a sandbox and no limit but the sandboxes."""
    limits = {"create_limit": scale.create_limit, "create_window_s": scale.create_window_s}
    return Settings.model_validate(
        {
            "sandbox": {"name": "daytona", "options": {**limits, **sandbox_options}},
            "environment": {"name": "finqa"},
            "data": {"home": home, "snapshot": SNAPSHOT},
            "pool": {"sandboxes": scale.sandboxes, "max_concurrent_play": scale.sandboxes},
            "train": {
                "seed": seed,
                "group_size": scale.group_size,
                "target_groups_per_iter": 0,
                "max_rollout_rounds": scale.rounds,
            },
        }
    )


@contextmanager
def world(scale: Scale, seed: int, home: Path) -> Iterator[World]:
    """A loopback Daytona that holds the image; this process's own SDK talks to it meanwhile."""
    build_snapshot(home, scale.questions)
    settings = settings_for(scale, seed, home)
    environment = open_environment(settings, NullReporter())
    spec = environment.sandbox_spec()
    assert isinstance(spec, ServerSpec) and spec.snapshot, "the environment is served in sandboxes"
    name = image_name(spec, DaytonaSandboxConfig.model_validate(settings.sandbox.options))
    config = LoopbackConfig(
        seed=seed,
        images={name: spec.snapshot.path},
        create_limit=scale.create_limit,
        create_window_s=scale.create_window_s,
        latency=scale.cloud,
        quota=Quota(cpu=scale.sandboxes, memory_gib=scale.sandboxes, disk_gib=3 * scale.sandboxes),
    )
    with LoopbackProcess(config) as process, _variables(process.environment):
        yield World(scale=scale, seed=seed, home=home, settings=settings, environment=environment, loopback=process)


async def pool_for(world: World, run: str) -> Pool:
    """The pool of a run, not started."""
    sandboxes, reporter = world.scale.sandboxes, NullReporter()
    return await make_pool(
        world.settings, world.environment, owner_labels(run), sandboxes, reporter, lambda name, facts: None
    )


@asynccontextmanager
async def fleet(world: World) -> AsyncIterator[Fleet]:
    """Starts the sandboxes and ends them."""
    engine = SimulatedEngine(world.scale.latency)
    pool = await pool_for(world, "benchmark")
    await engine.start()
    try:
        began = time.perf_counter()
        await pool.start()
        await filled(pool, world.scale)
        ready_s = time.perf_counter() - began
        tasks = world.environment.tasks("train")
        yield Fleet(world=world, pool=pool, engine=engine, tasks=tasks, ready_s=ready_s)
    finally:
        await engine.close()
        await pool.close()


async def filled(pool: Pool, scale: Scale) -> None:
    """Waits for the last sandbox.

    Raises:
        TimeoutError: It takes many times what the create limit allows.
    """
    async with asyncio.timeout(60.0 + 5 * scale.create_window_s * scale.sandboxes / scale.create_limit):
        while pool.stats().alive < scale.sandboxes:  # noqa: ASYNC110  a pool tells when one sandbox is ready, not when all are
            await asyncio.sleep(0.02)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
