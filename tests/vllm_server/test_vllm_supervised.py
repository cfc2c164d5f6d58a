"""Real servers that the engine starts: killed, hung, out of memory, and with weights replaced in place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from vllm_server.running import RANK, ask, descendants, traces, untied

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.processes import start_time
from finqa_cli.types import Completion, GenerateRequest, PolicyVersion
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.vllm_engine import VllmEngine
from finqa_testing.contract.engine_play import worst_difference
from finqa_testing.tiny_models import make_tiny_qwen3

pytestmark = pytest.mark.asyncio(loop_scope="module")
pytest.importorskip("torch")

EXACT = 1e-4
PATIENCE_S = 30.0
"""Two cores that generate sixteen completions leave the server little time to answer looks."""
TOKENS = 800
HANG_GUARD_S = 60.0
NODE = "127.0.0.7"
"""The address of a node, at which rollout workers on other machines ask the server."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(
    vllm_python: Path, tiny_model: Path, adapters: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    """Serves version 1, an adapter, at the address of a node."""
    config = VllmEngineConfig(python=vllm_python, health_timeout_s=PATIENCE_S, restarts=3)
    logs = tmp_path_factory.mktemp("vllm-logs")
    context = EngineContext(model=str(tiny_model), lora_rank=RANK, log_dir=logs, lends=True, host=NODE)
    made = VllmEngine(config, context)
    await made.start()
    await made.load(PolicyVersion(number=1, model=str(tiny_model), adapter=adapters[0]))
    yield made
    await made.close()


async def test_processes_ask_the_server_themselves_and_nobody_does_without_its_key(
    engine: VllmEngine, tiny_model: Path, adapters: list[Path]
) -> None:
    loan = engine.lend()
    assert loan is not None
    (route,) = loan.routes
    assert route is not None and route.server.host == NODE
    access = pickle.loads(pickle.dumps(route.server))
    root = access.connection.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as stranger:
        for path in ("/health", "/metrics", "/version", "/v1/models", "/invocations", "/docs"):
            async with stranger.get(root + path) as reply:
                assert reply.status == 401, path
        async with stranger.get(f"{root}/health", headers={"Authorization": "Bearer wrong"}) as reply:
            assert reply.status == 401
    client = access.connect(1)
    request = ask("lent")
    completion = await client.generate(request, route)
    await client.close()
    loan.end()
    assert completion.policy_version == 1
    assert await asyncio.to_thread(worst_difference, tiny_model, [(request, completion)], adapters[0]) <= EXACT


async def mid_rollout(
    engine: VllmEngine, disturb: signal.Signals, process: str
) -> list[tuple[GenerateRequest, Completion]]:
    """Sixteen requests of which none has ended when the signal comes."""
    await engine.generate(ask("before"))  # a signal during a restart would be another test
    pid = await _find(engine, process)
    requests = [ask(f"{process} {number}", seed=number, tokens=TOKENS) for number in range(16)]
    for _ in range(5):  # where this process was not run for a while, some have ended
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await asyncio.sleep(0.05)
        if not any(task.done() for task in tasks):
            break
        await asyncio.gather(*tasks)
    assert [task for task in tasks if task.done()] == []
    os.kill(pid, disturb)
    return list(zip(requests, await asyncio.gather(*tasks), strict=True))


@pytest.mark.parametrize(
    ("disturb", "process"),
    [(signal.SIGKILL, "api_server"), (signal.SIGSTOP, "Worker")],
    ids=["server killed", "worker hung"],
)
async def test_a_server_that_fails_in_mid_rollout_is_replaced_and_nothing_is_lost(
    engine: VllmEngine, tiny_model: Path, adapters: list[Path], disturb: signal.Signals, process: str
) -> None:
    before = descendants(_group(engine))
    left = traces(before)
    assert any(one.is_dir() for one in left) and any(one.is_relative_to("/dev/shm") for one in left)
    played = await mid_rollout(engine, disturb, process)
    assert {completion.policy_version for _, completion in played} == {1}
    assert {len(completion.token_ids) for _, completion in played} == {TOKENS}
    assert await asyncio.to_thread(worst_difference, tiny_model, played[:2], adapters[0]) <= EXACT
    assert len(before) >= 4
    await _gone(before, left)


async def test_nothing_is_left_after_the_end(engine: VllmEngine) -> None:
    await _find(engine, "Worker")
    pids = descendants(_group(engine))
    left = traces(pids)
    assert len(pids) >= 4
    await engine.close()
    assert [pid for pid in pids if start_time(pid) is not None] == []
    assert [one for one in left if one.exists()] == []
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(ask("late"))


async def test_all_weights_are_replaced_in_place_and_bad_ones_leave_the_old(
    vllm_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    first, other = (untied(tiny_model, tmp_path / str(seed), seed=seed) for seed in (1, 2))
    smaller = make_tiny_qwen3(tmp_path / "smaller", hidden=32)
    empty = tmp_path / "empty"
    empty.mkdir()
    engine = VllmEngine(VllmEngineConfig(python=vllm_python), EngineContext(model=str(first), lora_rank=0))
    await engine.start()
    try:
        async with asyncio.TaskGroup() as group:
            early = [group.create_task(engine.generate(ask("", seed=n, tokens=60))) for n in range(8)]
            await asyncio.sleep(0.05)
            loading = group.create_task(engine.load(PolicyVersion(number=1, model=str(other))))
            await asyncio.sleep(0.01)
            late = [group.create_task(engine.generate(ask("", seed=n, tokens=60))) for n in range(8)]
        assert loading.done()
        for tasks, version, folder in ((early, 0, first), (late, 1, other)):
            pairs = [(ask("", seed=n, tokens=60), task.result()) for n, task in enumerate(tasks)]
            assert {completion.policy_version for _, completion in pairs} == {version}
            assert worst_difference(folder, pairs) <= EXACT
        for bad in (smaller, empty):
            with pytest.raises(EngineError):
                await engine.load(PolicyVersion(number=2, model=str(bad)))
            await _serves(engine, 1, other)
        os.kill(await _find(engine, "EngineCore"), signal.SIGKILL)
        await _serves(engine, 1, other)
    finally:
        await engine.close()


async def test_too_little_memory_at_start_names_need_and_flags(
    vllm_python: Path, tiny_model: Path, tmp_path: Path
) -> None:
    config = VllmEngineConfig(python=vllm_python, kv_cache_gb=100_000)
    engine = VllmEngine(config, EngineContext(model=str(tiny_model), lora_rank=RANK, log_dir=tmp_path))
    with pytest.raises(
        ConfigError, match=r"did not have enough memory.*It needs at least .* GiB.*Available memory"
    ) as caught:
        await engine.start()
    assert "engine.options.kv_cache_gb" in caught.value.remedy
    assert "max_model_len" in caught.value.remedy
    await engine.close()


async def _serves(engine: VllmEngine, version: int, folder: Path) -> None:
    asked = ask("again")
    completion = await engine.generate(asked)
    assert completion.policy_version == version
    assert worst_difference(folder, [(asked, completion)]) <= EXACT


def _group(engine: VllmEngine) -> int:
    assert engine.server_pid is not None
    return engine.server_pid


async def _find(engine: VllmEngine, process: str) -> int:
    """The first of the guarded processes whose command line holds this; waits for one that is about to start."""
    async with asyncio.timeout(HANG_GUARD_S):
        while (found := _running(engine, process)) is None:  # noqa: ASYNC110  what is waited for is a poll
            await asyncio.sleep(0.2)
    return found


def _running(engine: VllmEngine, process: str) -> int | None:
    for pid in descendants(_group(engine))[1:]:
        with contextlib.suppress(OSError):  # it has just ended
            if process.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


async def _gone(pids: Sequence[int], left: set[Path]) -> None:
    """Returns when none of the old server's processes and files is left: its guard removes the files after the last."""
    async with asyncio.timeout(HANG_GUARD_S):
        while any(start_time(pid) is not None for pid in pids) or any(one.exists() for one in left):  # noqa: ASYNC110  what is waited for is a poll
            await asyncio.sleep(0.1)
