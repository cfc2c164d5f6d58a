"""A weight sync waits for an engine whose server is away, within a limit, and says how to continue after it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.lora_files import make_base, make_lora
from fixtures.run_contexts import make_context
from fixtures.served_tokens import ask, served_by, started
from fixtures.token_server import TokenServerFixture, token_server, weights_of

from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import EngineError, InterruptedRun, UnreachableEngineError
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings
from finqa_cli.training.rl.weight_sync import load_version
from finqa_cli.types import PolicyVersion


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, model: Path) -> Iterator[TokenServerFixture]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with token_server(str(model)) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path / "run", command="train", settings={}, save_token_ids=False) as opened:
        yield opened


def version(model: Path, number: int = 1, *, rank: int = 4) -> PolicyVersion:
    adapter = make_lora(model.parent / f"v{number}", seed=number, rank=rank)
    return PolicyVersion(number=number, model=str(model), adapter=adapter)


async def sync(engine: TokenEngine, policy: PolicyVersion, folder: RunFolder, wait_s: float) -> None:
    settings = Settings.model_validate({"train": {"sync_wait_s": wait_s}})
    await load_version(make_context(folder, settings), engine, policy)


async def test_a_server_that_restarts_in_time_is_waited_for(
    server: TokenServerFixture, model: Path, folder: RunFolder
) -> None:
    policy = version(model)
    async with started(server, model) as engine:
        server.stop()
        syncing = asyncio.create_task(sync(engine, policy, folder, 60.0))
        async with asyncio.timeout(30.0):
            while not (folder.path / "events.jsonl").stat().st_size:  # noqa: ASYNC110  a file has no event
                await asyncio.sleep(0.01)
        server.start()
        await syncing
        assert policy.adapter is not None
        assert served_by(weights_of(policy.adapter), ask(), completion := await engine.generate(ask()))
        assert completion.policy_version == 1
    events = list(read_jsonl(folder.path / "events.jsonl"))
    assert [event["event"] for event in events] == ["engine_away", "engine_back"]
    assert "No answer from" in events[0]["reason"] and events[1]["version"] == 1


async def test_one_that_stays_away_ends_the_run_with_what_failed(
    server: TokenServerFixture, model: Path, folder: RunFolder
) -> None:
    async with started(server, model) as engine:
        server.stop()
        with pytest.raises(UnreachableEngineError, match=r"version 1 .*sync_wait_s is 0\.6.* No answer") as raised:
            await sync(engine, version(model), folder, 0.6)
        assert raised.value.remedy and not isinstance(raised.value, EngineError) and raised.value.exit_code == 69
        server.start()
        assert (await engine.generate(ask())).policy_version == 0


async def test_a_stop_ends_the_wait(server: TokenServerFixture, model: Path, folder: RunFolder) -> None:
    stopper = Stopper(NullReporter())
    async with started(server, model) as engine:
        server.stop()
        syncing = asyncio.create_task(load_version(make_context(folder, stopper=stopper), engine, version(model)))
        await asyncio.sleep(0.1)
        stopper.signal = signal.SIGINT
        with pytest.raises(InterruptedRun) as raised:
            await asyncio.wait_for(syncing, 30.0)
        assert f"finqa train --resume {folder.path}" in raised.value.remedy


async def test_a_version_that_is_refused_is_not_waited_for(
    server: TokenServerFixture, model: Path, folder: RunFolder
) -> None:
    server.max_rank = 2
    async with started(server, model, rank=2) as engine:
        with pytest.raises(EngineError, match="rank 4"):
            await sync(engine, version(model), folder, 600.0)
    assert not list(read_jsonl(folder.path / "events.jsonl"))
