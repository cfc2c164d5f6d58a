from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.small_snapshot import build_small_snapshot

from benchmarks.sandboxes.engine import SimulatedEngine
from benchmarks.sandboxes.policy import plan
from benchmarks.sandboxes.published import PublishedScheduler, exact_groups
from benchmarks.sandboxes.published_sandbox import PublishedSandbox, generate
from benchmarks.scale.engine_latency import LatencyModel
from finqa_cli.contracts import EnvironmentContext, SandboxContext
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider

QUICK = LatencyModel(step_s=0.0002, step_s_per_request=0.0)


def test_groups_are_exact_and_what_is_left_over_is_lost() -> None:
    assert exact_groups(list("aaabbbbcc"), 2) == 4
    assert exact_groups(list("aaabbbbcc"), 3) == 2
    assert exact_groups([], 3) == 0


@pytest.fixture
def environment(tmp_path: Path) -> FinQAEnvironment:
    snapshot, _ = build_small_snapshot(tmp_path)
    return FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot, max_turns=30))


async def test_an_iteration_on_real_servers(environment: FinQAEnvironment, tmp_path: Path) -> None:
    tasks = [task for split in environment.splits() for task in environment.tasks(split)]
    spec = environment.sandbox_spec()
    assert spec is not None
    provider = LocalSandboxProvider(None, SandboxContext(home=tmp_path))
    engine = SimulatedEngine(QUICK)
    await engine.start()
    try:
        sandboxes = [await provider.start(spec, {"finqa.run": "test"}) for _ in range(10)]
        scheduler = PublishedScheduler([sandbox.url() for sandbox in sandboxes], engine, tasks, seed=1)
        await scheduler.connect()
        played = await scheduler.iteration(group_size=2, target_groups=8, max_rounds=5)
        await scheduler.close()
        sandbox = PublishedSandbox(0, sandboxes[0].url(), tasks, seed=1)
        await _scored_as_planned(sandbox, engine)
        await _a_lost_connection_is_scored_0(sandbox, sandboxes[0].url(), engine)
    finally:
        await provider.close()
        await engine.close()
    assert played.groups >= 8 and played.episodes >= 10 * played.rounds
    assert played.left_over == played.episodes - 2 * played.groups
    assert played.zeroed == 0 and 0.0 < played.engine_load <= 10.0
    assert 0 < played.cancelled <= 10 * played.rounds


async def _scored_as_planned(sandbox: PublishedSandbox, engine: SimulatedEngine) -> None:
    await sandbox.connect()
    for _ in range(6):
        episode = await sandbox.begin()
        while episode.reward is None:
            await generate(engine, episode)
            await sandbox.step(episode)
        chosen = plan(episode.seed, episode.messages[1].content)
        assert episode.turns == chosen.turns
        assert episode.reward == float(chosen.right and chosen.turns > 1) and not episode.zeroed
        await sandbox.ping()


async def _a_lost_connection_is_scored_0(sandbox: PublishedSandbox, url: str, engine: SimulatedEngine) -> None:
    episode = await sandbox.begin()
    await generate(engine, episode)
    await sandbox.close()
    await sandbox.step(episode)
    assert episode.reward == 0.0 and episode.zeroed
    assert not sandbox.connected
    await sandbox.begin()
    assert sandbox.connected
    await sandbox.close()
