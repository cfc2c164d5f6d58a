"""No two processes of a run draw the same random numbers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_vllm import fake_vllm

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring import build
from finqa_cli.wiring import stage as staging
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.supervisor import Supervisor
from finqa_plugins.engines.vllm.vllm_command import launch
from finqa_ray.node_folder import node_context

STARTS = 3


def contexts(monkeypatch: pytest.MonkeyPatch, start: str, *, seed: int = 0, replicas: int = 4) -> list[EngineContext]:
    """The contexts of the replicas that a run constructs at one of its starts."""
    settings = Settings.model_validate(
        {
            "engine": {"name": "vllm"},
            "model": {"name": "org/model"},
            "generation": {"engine_replicas": replicas},
            "train": {"seed": seed},
        }
    )
    made: list[EngineContext] = []
    create = build.registry().create

    def record(kind: str, name: str, options: Any, context: EngineContext) -> Any:
        made.append(context)
        return create(kind, name, options, context)

    with monkeypatch.context() as patch:
        patch.setattr(build.registry(), "create", record)
        build.make_engine(settings, PolicyVersion(number=0, model="org/model"), start=start)
    return made


def server_seed(context: EngineContext) -> int:
    arguments = launch(VllmEngineConfig(), context, port=1, key="k", gpu=False, environ={}).arguments
    return int(arguments[arguments.index("--seed") + 1])


def processes(replica: EngineContext) -> Iterator[EngineContext]:
    """What starts the servers of a replica: here after failures, and on a Ray node in each of its generations."""
    yield from (replica.restarted(start) for start in range(STARTS))
    for generation in range(1, STARTS + 1):
        node = node_context(replica, model="org/model", generation=generation)
        yield from (node.restarted(start) for start in range(STARTS))


def test_every_server_of_a_run_has_its_own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [one for start in ("0.0", "0.1", "1.0", "2.0") for one in contexts(monkeypatch, start)]
    seeds = [server_seed(context) for replica in replicas for context in processes(replica)]
    assert len(set(seeds)) == len(seeds) == 4 * 4 * (STARTS + STARTS**2)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_seeds_follow_from_that_of_the_run_which_all_replicas_know(monkeypatch: pytest.MonkeyPatch) -> None:
    found = contexts(monkeypatch, "0.0", seed=5)
    assert found == contexts(monkeypatch, "0.0", seed=5)
    assert {one.seed for one in found} == {5}
    assert not {one.process_seed for one in found} & {one.process_seed for one in contexts(monkeypatch, "0.0", seed=6)}


async def test_a_server_that_is_restarted_draws_other_numbers(tmp_path: Path) -> None:
    config = VllmEngineConfig(python=fake_vllm(tmp_path / "server"), restarts=1)
    supervisor = Supervisor(config, EngineContext(model="m", log_dir=tmp_path), gpu=False, busy=lambda: False)

    def recorded(name: str) -> Any:
        return json.loads((tmp_path / "server" / name).read_text())

    def option(name: str) -> str:
        arguments: list[str] = recorded("arguments.json")
        return arguments[arguments.index(name) + 1]

    try:
        await supervisor.start()
        seed, port = option("--seed"), option("--port")
        os.kill(recorded("pids")[0], signal.SIGKILL)
        await supervisor.revive()
        assert option("--seed") != seed and option("--port") == port
    finally:
        await supervisor.close()


async def test_a_resumed_run_and_a_second_stage_are_other_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[str] = []

    def refuse(*_: Any, start: str, **__: Any) -> Any:
        starts.append(start)
        raise ConfigError("constructed")

    monkeypatch.setattr(staging, "make_engine", refuse)
    settings = Settings.model_validate({"engine": {"name": "random"}, "environment": {"name": "forecast"}})
    policy = PolicyVersion(number=0, model="")
    for resumed in ([], [], [{"at": 1.0, "iteration": 1}]):
        (tmp_path / "run.json").write_text(json.dumps({"id": "run", "resumed": resumed}))
        with pytest.raises(ConfigError, match="constructed"):
            async with staging.stage(settings, policy, run_id="run", reporter=Reporter(), run_dir=tmp_path):
                pass
    assert len(set(starts)) == 3 and [one.partition(".")[0] for one in starts] == ["0", "0", "1"]
