"""A run with rollout workers from its command line, on processes that are objects here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.objects_as_workers import Processes
from fixtures.toy_environment import ToyEnvironment

import finqa_ray.workers.worker_setup as worker_setup
from finqa_cli.app import main
from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.rollout.breaker import EngineBreaker
from finqa_cli.rollout.players import PlayersRequest
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.build import make_codec
from finqa_cli.wiring.policies import resolve
from finqa_ray.workers.worker_shares import CallSlot

EVAL = ["eval", "scripted", "--limit=3", "--sandbox=local", "--sandboxes=3", "--json", "-q"]


def without_times(record: Any) -> Any:
    if isinstance(record, Mapping):
        return {name: without_times(value) for name, value in record.items() if name != "seconds"}
    return [without_times(value) for value in record] if isinstance(record, list) else record


def records(run: Path) -> list[Any]:
    return sorted(map(without_times, read_jsonl(run / "trajectories.jsonl")), key=lambda record: record["id"])


def test_records_are_those_of_one_process_and_events_name_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path / "home"))
    started = Processes(start_s=0.0)
    monkeypatch.setattr(worker_setup, "find_processes", lambda address, count: started)
    assert main([*EVAL, f"--run-dir={tmp_path / 'one'}"]) == 0
    assert main([*EVAL, f"--run-dir={tmp_path / 'two'}", "--set=cluster.rollout_workers=2"]) == 0
    assert len(started.started) == 2 and not started.alive()
    assert records(tmp_path / "one") == records(tmp_path / "two") and len(records(tmp_path / "two")) == 3
    ready = [event for event in read_jsonl(tmp_path / "two" / "events.jsonl") if event["event"] == "sandbox_ready"]
    assert {event["worker"] for event in ready} <= {0, 1} and ready


def test_a_worker_renders_as_the_controller_where_the_model_is_on_the_controller_alone(tmp_path: Path) -> None:
    model = Path(resolve("embedded").model)
    tokenizer = worker_setup._read_tokenizer(model)
    assert not any(name.endswith(".safetensors") for name in tokenizer)
    setup = worker_setup.WorkerSetup(
        settings=Settings(), model=str(tmp_path / "gone"), tokenizer=tokenizer, labels={}, sandboxes=1, slot=CallSlot()
    )
    there, here = setup._make_codec(Settings()), make_codec(Settings(), str(model))
    assert there.user_reply("What was the revenue?", stopped=True) == here.user_reply(
        "What was the revenue?", stopped=True
    )
    assert there.stop_ids == here.stop_ids
    assert worker_setup._read_tokenizer(Path("Qwen/Qwen3-4B")) == {}


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_command_that_installs_it_is_named() -> None:
    with pytest.raises(MissingDependencyError, match=r"rollout workers .* need ray") as caught:
        worker_setup.find_processes("auto", 2)
    assert caught.value.remedy == "pip install 'finqa[ray]'"


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command with a wrong setting says."""
    monkeypatch.chdir(tmp_path)

    def say(*words: str) -> str:
        assert main([*words]) == ConfigError.exit_code
        output = capsys.readouterr()
        return " ".join((output.err + output.out).split())

    return say


def test_more_workers_than_sandboxes_are_refused(shown: Callable[..., str]) -> None:
    said = shown(*EVAL, "--set=cluster.rollout_workers=4")
    assert "4 rollout workers cannot share 3 sandboxes" in said and "--set cluster.rollout_workers=3" in said


def test_a_watched_episode_is_not_played_by_workers(shown: Callable[..., str]) -> None:
    said = shown("play", "--engine=scripted", "--sandbox=local", "--json", "--set=cluster.rollout_workers=1")
    assert "played by this process" in said and "--set cluster.rollout_workers=0" in said


def test_an_engine_in_lockstep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Locked(TokenEngine):
        lockstep = True
        max_context = 1

        async def start(self) -> None: ...
        async def close(self) -> None: ...
        async def load(self, policy: Any) -> None: ...
        async def generate(self, request: Any) -> Any: ...

    monkeypatch.setattr(worker_setup, "find_processes", lambda address, count: Processes())
    settings = Settings.model_validate({"cluster": {"rollout_workers": 1}})
    players = worker_setup.RemotePlayers(
        PlayersRequest(
            settings=settings,
            policy=PolicyVersion(number=0, model=""),
            environment=ToyEnvironment(boxed=False),
            engine=Locked(),
            run_id="run",
            size=1,
            engine_breaker=EngineBreaker(1),
            on_event=lambda name, facts: None,
            restarted=lambda trajectory: None,
        )
    )
    with pytest.raises(ConfigError, match="lockstep") as caught:
        players.check_engine()
    assert caught.value.remedy == "--set engine.options.lockstep=false"
