"""A real server process that dies in the middle of real episodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from finqa_cli.evaluation.evaluate import evaluate
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.pool import SandboxPool
from finqa_cli.rollout.stream import play_all
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion, Status, Trajectory
from finqa_cli.wiring.stage import stage

pytestmark = [pytest.mark.usefixtures("_cold_servers"), pytest.mark.thorough]


def settings(home: Path, sandboxes: int = 8) -> Settings:
    return Settings.model_validate(
        {
            "engine": {"name": "scripted"},
            "sandbox": {"name": "local"},
            "data": {"home": home},
            "pool": {"sandboxes": sandboxes, "max_play_retries": 3},
        }
    )


def server_pids(home: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # a process of another user, or one that has just ended
                if f"FINQA_SNAPSHOT={home}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


async def test_a_killed_server_costs_no_episode(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    heard: list[Trajectory] = []

    def kill_once(trajectory: Trajectory) -> None:
        heard.append(trajectory)
        if len(heard) == 5:
            for pid in server_pids(tmp_path):
                os.kill(pid, signal.SIGKILL)

    policy = PolicyVersion(number=0, model="")
    async with stage(chosen, policy, run_id="test", reporter=NullReporter()) as parts:
        tasks = parts.environment.tasks("dev")[:40]
        attempts = [Attempt(id=f"t/{task.id}/0", task=task, member=0, seed=1) for task in tasks]
        player = parts.player(chosen, temperature=0.0)
        trajectories = await play_all(player, attempts, concurrency=8, on_trajectory=kill_once)
    assert [trajectory.status for trajectory in trajectories] == [Status.COMPLETED] * 40
    assert [trajectory.reward for trajectory in trajectories] == [1.0] * 40
    assert any(each.recoveries or each.retries for each in trajectories), (
        "the kill hit no episode: the test shows nothing"
    )
    assert server_pids(tmp_path) == []


async def test_five_hundred_sandboxes_are_a_few_processes(tmp_path: Path) -> None:
    chosen = settings(tmp_path, sandboxes=500)
    policy = PolicyVersion(number=0, model="")
    async with stage(chosen, policy, run_id="many", reporter=NullReporter()) as parts:
        assert isinstance(parts.pool, SandboxPool)
        tasks = parts.environment.tasks("train")[:300]
        attempts = [Attempt(id=f"t/{task.id}/0", task=task, member=0, seed=1) for task in tasks]
        player = parts.player(chosen, temperature=0.0)
        trajectories = await play_all(player, attempts, concurrency=200, on_trajectory=lambda _: None)
        assert parts.pool.alive == 500
        assert len(server_pids(tmp_path)) <= (os.cpu_count() or 1)
    assert all(trajectory.reward == 1.0 for trajectory in trajectories)
    assert server_pids(tmp_path) == []


async def test_what_became_of_sandboxes_and_episodes_is_in_the_events_of_the_run(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    run = tmp_path / "run"

    async def kill() -> None:
        played = run / "trajectories.jsonl"
        while not played.exists() or len(list(read_jsonl(played))) < 20:  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)
        for pid in server_pids(tmp_path):
            os.kill(pid, signal.SIGKILL)

    reporter = NullReporter()
    killing = asyncio.create_task(kill())
    result = await evaluate(chosen, "scripted", run, reporter=reporter, stopper=Stopper(reporter))
    await killing
    records = list(read_jsonl(run / "trajectories.jsonl"))
    assert len({record["id"] for record in records}) == len(records) == result.report.episodes
    assert (result.report.faults, result.report.accuracy) == (0, 1.0)
    events = list(read_jsonl(run / "events.jsonl"))
    named = Counter(event["event"] for event in events)
    assert named["sandbox_ready"] == 8 and named["sandbox_replaced"] >= 1
    assert named["sandbox_lost"] >= 4, "one that has no episode left need not be noticed"
    repeated = {record["id"] for record in records if record["retries"] or record["recoveries"]}
    assert repeated and {event["id"] for event in events if event["event"] == "retried"} == repeated
    last = [event for event in events if event["event"] == "pool"][-1]
    assert last["lost"] == named["sandbox_lost"] and last["replaced"] == named["sandbox_replaced"]
    assert last["waits"] > 0
