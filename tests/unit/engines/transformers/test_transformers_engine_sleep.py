"""An engine that leaves its device to the learner for updates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import EngineError
from finqa_cli.types import GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.engines.transformers.config import TransformersEngineConfig
from finqa_plugins.engines.transformers.device_placement import choose_device
from finqa_plugins.engines.transformers.transformers_engine import TransformersEngine
from finqa_plugins.engines.transformers.worker import Worker
from finqa_testing.contract.engine_play import play_episodes

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_it_serves_the_same_version_after_sleep(
    started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path], dtype: str
) -> None:
    async with started(dtype=dtype, context={"sleep": True}) as engine:
        assert engine.sleeps
        await engine.load(PolicyVersion(number=1, model=str(tiny_model), adapter=adapter(1)))
        before = await play_episodes(engine)
        for _ in range(2):  # both are idempotent
            await engine.sleep()
        generator = engine._worker._generator
        assert generator is not None
        assert (len(generator.store), generator.openings, generator.scratch._memory) == (0, [], None)
        for _ in range(2):
            await engine.wake()
        assert await play_episodes(engine) == before
        await engine.load(PolicyVersion(number=2, model=str(tiny_model)))
        assert await play_episodes(engine) != before


async def test_asleep_it_refuses_requests_and_versions(started: MakeEngine, tiny_model: Path) -> None:
    request = GenerateRequest(key="a#0", token_ids=(1, 2), sampling=Sampling(max_tokens=1, seed=0))
    async with started() as engine:
        assert not engine.sleeps
        await engine.sleep()
        with pytest.raises(EngineError, match="sleeps"):
            await engine.generate(request)
        with pytest.raises(EngineError, match="sleeps"):
            await engine.load(PolicyVersion(number=1, model=str(tiny_model)))
        await engine.wake()
        assert (await engine.generate(request)).token_ids


def test_memory_is_given_back_on_the_engines_own_device(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[object] = []

    @contextlib.contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        steps.append(device)
        yield
        steps.append("left")

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: steps.append("emptied"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    worker = Worker(TransformersEngineConfig(device="cpu"), EngineContext(model=str(tiny_model)))
    worker.start()
    worker.sleep()
    assert steps == [], "the CPU has no such cache"
    worker._device = torch.device("cuda:1")
    for work in (worker.sleep, worker.close):
        steps.clear()
        work()
        assert steps == [torch.device("cuda:1"), "emptied", "left"]


def test_a_replica_takes_its_planned_device() -> None:
    assert choose_device("auto", replica=1, replicas=2, cuda_devices=4, planned=(3,)).index == 3
    assert choose_device("auto", replica=1, replicas=2, cuda_devices=4).index == 1
    assert choose_device("cpu", replica=0, replicas=1, cuda_devices=4, planned=(3,)).type == "cpu"
