"""An engine that leaves its device to the learner for updates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from fixtures.engine_play import play_episodes

from finqa_cli.contracts import Sleeper
from finqa_cli.errors import EngineError
from finqa_cli.types import GenerateRequest, PolicyVersion, Sampling
from finqa_plugins.transformers_engine.engine import TransformersEngine
from finqa_plugins.transformers_engine.placement import choose_device

MakeEngine = Callable[..., AbstractAsyncContextManager[TransformersEngine]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_it_serves_the_same_version_after_sleep(
    started: MakeEngine, tiny_model: Path, adapter: Callable[..., Path], dtype: str
) -> None:
    async with started(dtype=dtype, context={"sleep": True}) as engine:
        assert isinstance(engine, Sleeper) and engine.sleeps
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


def test_a_replica_takes_its_planned_device() -> None:
    assert choose_device("auto", replica=1, replicas=2, cuda_devices=4, planned=(3,)).index == 3
    assert choose_device("auto", replica=1, replicas=2, cuda_devices=4).index == 1
    assert choose_device("cpu", replica=0, replicas=1, cuda_devices=4, planned=(3,)).type == "cpu"
