"""Engine replicas on two nodes: versions arrive as bytes, and a node that is gone costs no request."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray_cluster.conftest import wait_for_nodes
from ray_cluster.nodes import Cluster
from safetensors.torch import load_file, save_file

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import UnreachableEngineError
from finqa_cli.extend import registry
from finqa_cli.rollout.replicas import EngineSet, ReplicaListener
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion, Sampling

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

BACK_S = 60.0
LARGE_MB = 150
LARGE_S = 10.0


def ask(number: int, tokens: int = 8) -> GenerateRequest:
    source = random.Random(number)
    ids = tuple(source.randrange(265) for _ in range(40))
    return GenerateRequest(key=f"e{number}#0", token_ids=ids, sampling=Sampling(max_tokens=tokens, seed=number))


def written(cluster: Cluster, name: str) -> list[Path]:
    """Files of this name below the folders of processes on live nodes."""
    live = [node for node in cluster.nodes if node.running()]
    return [path for node in live for path in node.tmp.glob(f"finqa-node-*/{name}")]


@asynccontextmanager
async def running_replicas(
    cluster: Cluster,
    model: Path,
    count: int,
    on_event: ReplicaListener = lambda name, facts: None,
    lora_rank: int = 8,
) -> AsyncIterator[EngineSet]:
    contexts = [
        EngineContext(
            model=str(model),
            lora_rank=lora_rank,
            needs_tokens=True,
            cluster=cluster.address,
            replica=number,
            replicas=count,
        )
        for number in range(count)
    ]
    engines = [registry().create("engine", "ray:transformers", {"lockstep": False}, one) for one in contexts]
    serving = PolicyVersion(number=0, model=str(model))
    together = EngineSet(engines, serving=serving, on_event=on_event)
    try:
        await together.start()
        yield together
    finally:
        await together.close()


async def test_adapters_reach_four_replicas_on_two_nodes_and_no_request_gets_another_version(
    two_nodes: Cluster, tiny_model: Path, adapters: list[Path], tmp_path: Path
) -> None:
    async with running_replicas(two_nodes, tiny_model, 4) as together:
        engines = [replica.engine for replica in together._replicas]
        assert len({engine.node for engine in engines}) == 2  # type: ignore[attr-defined]
        played: list[Completion] = []
        for number in range(1, 21):
            adapter = adapters[number % len(adapters)]
            version = PolicyVersion(number=number, model=str(tiny_model), adapter=adapter)
            before = asyncio.gather(*(together.generate(ask(1000 * number + one)) for one in range(25)))
            await asyncio.sleep(0)
            await together.load(version)
            after = await asyncio.gather(*(together.generate(ask(1000 * number + one)) for one in range(25)))
            assert {one.policy_version for one in after} == {number}
            assert {one.policy_version for one in await before} <= {number - 1, number}
            played += [*after, *await before]
        assert len(played) == 1000
        probed = await together.probe(ask(7))
        assert len({one.logprobs for one in probed.values()}) == 1 and len(probed) == 4

        seconds = [
            await _load_large(together, tiny_model, adapters[1], tmp_path / str(number), number) for number in (21, 22)
        ]
        print(f"{LARGE_MB} MB to 4 replicas on 2 nodes: {min(seconds):.1f} s")
        assert min(seconds) <= LARGE_S  # the machine may be busy with other things in one of them
        noise = (tmp_path / "22" / "ballast.bin").read_bytes()
        arrived = written(two_nodes, "v00022/ballast.bin")
        assert len(arrived) == 4 and all(path.read_bytes() == noise for path in arrived)
        await _check_bfloat16(two_nodes, together, tiny_model, adapters[1], tmp_path / "rounded")
    assert not written(two_nodes, "*")


async def _check_bfloat16(cluster: Cluster, together: EngineSet, model: Path, adapter: Path, folder: Path) -> None:
    """An adapter in bfloat16 has half the bytes and is the same version."""
    import torch

    engines: list[Any] = [replica.engine for replica in together._replicas]
    assert not any(engine._rounds for engine in engines), "transformers computes adapters in float32"
    shutil.copytree(adapter, folder)
    noise = np.random.default_rng(0).standard_normal(10**6, dtype=np.float32)
    save_file({"ballast": torch.from_numpy(noise)}, folder / "ballast.safetensors")
    for engine in engines:
        engine._rounds = True
    await together.load(PolicyVersion(number=23, model=str(model), adapter=folder))
    assert {(await engine.generate(ask(3))).policy_version for engine in engines} == {23}
    sent = engines[0]._cluster.sent
    whole, half = (sum(part.size for part, _ in sent.of(folder, rounded=rounded)) for rounded in (False, True))
    assert half < 0.52 * whole
    weights, arrived = load_file(adapter / "adapter_model.safetensors"), 0
    for path in written(cluster, "v00023/adapter_model.safetensors"):
        found = load_file(path)
        assert all(torch.equal(found[name], weights[name].to(torch.bfloat16)) for name in weights)
        arrived += 1
    assert arrived == len(engines)


async def test_a_node_that_is_gone_costs_no_request_and_comes_back_with_the_newest_version(
    one_place_a_node: Cluster, tiny_model: Path, adapters: list[Path]
) -> None:
    events: list[tuple[str, Mapping[str, Any]]] = []
    faults: list[Exception] = []
    ended, under_way, left_out, back = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    def note(name: str, facts: Mapping[str, Any]) -> None:
        events.append((name, facts))
        {"engine_left_out": left_out, "engine_back": back}[name].set()

    async def play(together: EngineSet, player: int) -> int:
        number = 0
        while not ended.is_set():
            try:
                await together.generate(ask(100_000 * player + number))
            except Exception as error:
                faults.append(error)
            number += 1
            if number == 3:
                under_way.set()
        return number

    async with running_replicas(one_place_a_node, tiny_model, 2, note) as together:
        first, second = (replica.engine for replica in together._replicas)
        assert first.node != second.node  # type: ignore[attr-defined]
        await together.load(PolicyVersion(number=1, model=str(tiny_model), adapter=adapters[1]))
        players = [asyncio.create_task(play(together, player)) for player in range(4)]
        await under_way.wait()
        (node,) = (node for node in one_place_a_node.nodes if node.running() and node.address == second.node)  # type: ignore[attr-defined]
        node.kill()
        await left_out.wait()
        await together.load(PolicyVersion(number=2, model=str(tiny_model), adapter=adapters[2]))
        with pytest.raises(UnreachableEngineError):
            await second.generate(ask(1))
        one_place_a_node.add()
        await asyncio.to_thread(wait_for_nodes, 2)
        began = time.perf_counter()
        async with asyncio.timeout(BACK_S):
            await back.wait()
        print(f"back {time.perf_counter() - began:.1f} s after its node joined")
        assert [(name, facts["replica"]) for name, facts in events] == [("engine_left_out", 1), ("engine_back", 1)]
        assert events[1][1]["version"] == 2
        assert (await second.generate(ask(2))).policy_version == 2
        with pytest.raises(UnreachableEngineError, match="for its generation 1, not "):
            await second._ask(second._actor.generate, 1, ask(3))  # type: ignore[attr-defined]
        ended.set()
        assert sum(await asyncio.gather(*players)) > 20 and not faults


async def test_an_answer_of_an_earlier_start_is_not_taken() -> None:
    from finqa_ray.ray_engine import RayEngine

    engine = RayEngine("transformers", None, EngineContext(model="m"))
    answer: asyncio.Future[tuple[Completion, dict[str, int]]] = asyncio.get_running_loop().create_future()
    engine._actor = SimpleNamespace(generate=SimpleNamespace(remote=lambda *arguments: answer))
    engine._generation = 1
    engine._back.set()
    asked = asyncio.create_task(engine.generate(ask(1)))
    await asyncio.sleep(0)
    engine._generation = 2
    answer.set_result((Completion(token_ids=(1,), logprobs=(0.0,), stop="stop", policy_version=0), {}))
    with pytest.raises(UnreachableEngineError):
        await asked


async def _load_large(together: EngineSet, model: Path, adapter: Path, folder: Path, number: int) -> float:
    """Loads an adapter with a file of noise beside it; seconds."""
    shutil.copytree(adapter, folder)
    noise = np.random.default_rng(number).integers(0, 256, LARGE_MB * 10**6, dtype=np.uint8)
    noise.tofile(folder / "ballast.bin")
    began = time.perf_counter()
    await together.load(PolicyVersion(number=number, model=str(model), adapter=folder))
    return time.perf_counter() - began
