"""Workers on two nodes ask servers of tokens themselves: versions across swaps, and processes and nodes that die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import direct_play, toy_environment
from fixtures.direct_play import DirectWorld, check_versions, facts
from fixtures.lora_files import make_base, make_lora
from fixtures.served_tokens import engine_on
from fixtures.token_server import token_server, weights_of
from fixtures.token_vllm import token_vllm
from ray_cluster.nodes import Cluster
from ray_cluster.test_ray_workers import worker_processes

from finqa_cli.contracts import EngineContext
from finqa_cli.extend import registry
from finqa_cli.rollout.replicas import EngineSet
from finqa_cli.types import PolicyVersion

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder = make_base(tmp_path / "base")
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture
def by_value() -> Iterator[None]:
    """The nodes do not have the modules of the tests."""
    from ray import cloudpickle

    modules = (direct_play, toy_environment)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


def workers(cluster: Cluster) -> Any:
    from finqa_ray.workers.ray_workers import RayWorkers

    return RayWorkers(cluster.address, 2)


def adapters(folder: Path, count: int) -> tuple[list[Path], dict[int, str]]:
    made = [make_lora(folder / f"v{number}", seed=number) for number in range(1, count + 1)]
    return made, {0: "", **{number: weights_of(each) for number, each in enumerate(made, 1)}}


async def test_a_killed_worker_changes_no_result_and_nothing_passes_through_the_controller(
    two_nodes: Cluster, by_value: None, model: Path
) -> None:
    with token_server(str(model)) as server:
        expected = await DirectWorld(engine_on(server, model), lends=False).play(150)
        server.delay_s = 0.02
        world, before = DirectWorld(engine_on(server, model), processes=workers(two_nodes)), len(server.served)

        async def kill() -> None:
            while len(server.served) < before + 80:  # noqa: ASYNC110  a thread counts up
                await asyncio.sleep(0.01)
            node = next(node for node in two_nodes.nodes if node.running())
            for pid in worker_processes(node):
                os.kill(pid, signal.SIGKILL)

        played = await world.play(150, kill)
    assert facts(played) == facts(expected) and world.relayed == 0
    (lost,) = world.world.heard("worker_lost")
    assert lost["attempts"] and not any(one.retries for one in played)


async def test_no_completion_has_a_wrong_version_across_swaps(
    two_nodes: Cluster, by_value: None, model: Path, tmp_path: Path
) -> None:
    folders, weights = adapters(tmp_path, 5)
    with token_server(str(model)) as server:
        world = DirectWorld(engine_on(server, model), processes=workers(two_nodes))
        server.delay_s = 0.01

        async def swap() -> None:
            for number, folder in enumerate(folders, 1):
                while len(server.served) < 100 * number:  # noqa: ASYNC110  a thread counts up
                    await asyncio.sleep(0.01)
                await world.engine.load(PolicyVersion(number=number, model=str(model), adapter=folder))

        played = await world.play(200, swap)
        assert check_versions(played, weights) == set(range(6)) and world.relayed == 0
        assert not server.adapters and len(server.unloads) == len(server.loads)


async def test_servers_of_engines_on_nodes_are_asked_there_until_a_node_dies(
    two_nodes: Cluster, by_value: None, model: Path, tmp_path: Path
) -> None:
    folders, weights = adapters(tmp_path, 3)
    context = EngineContext(
        model=str(model), lora_rank=8, needs_tokens=True, lends=True, cluster=two_nodes.address, replicas=2
    )
    options = {"python": token_vllm(tmp_path / "program", delay_s=0.02), "start_timeout_s": 120}
    engines = [registry().create("engine", "ray:vllm", options, _replica(context, number)) for number in range(2)]
    events: list[str] = []
    serving = PolicyVersion(number=0, model=str(model))
    engine = EngineSet(engines, serving=serving, on_event=lambda name, facts: events.append(name))
    world = DirectWorld(engine, processes=workers(two_nodes))
    relayed: list[int] = []

    async def swap_and_die() -> None:
        playing = world.world.workers
        while not playing._pending:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hosts = [route.server.host for route in world.engine._offer.routes]  # type: ignore[attr-defined]
        assert sorted(hosts) == sorted(node.address for node in two_nodes.nodes if node.running())
        for number, folder in enumerate(folders[:2], 1):
            while world.done < 10 * number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await world.engine.load(PolicyVersion(number=number, model=str(model), adapter=folder))
        while world.done < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        relayed.append(world.relayed)
        next(node for node in two_nodes.nodes if node.running()).kill()
        while "engine_left_out" not in events and world.done < 100:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await world.engine.load(PolicyVersion(number=3, model=str(model), adapter=folders[2]))

    played = await world.play(100, swap_and_die)
    assert {0, 1, 2} <= check_versions(played, weights) and "engine_left_out" in events
    assert relayed == [0] and not any(one.retries for one in played) and len(world.world.heard("worker_lost")) == 1


def _replica(context: EngineContext, number: int) -> EngineContext:
    from dataclasses import replace

    return replace(context, replica=number)
