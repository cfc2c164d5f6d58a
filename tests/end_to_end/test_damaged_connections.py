"""Replies that are cut, late or repeated, at every place of an episode: it continues and equals the clean one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.small_snapshot import NAME, build_small_snapshot, settings_for
from fixtures.websocket_proxy import Fault, FaultyProxy

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.errors import EnvironmentFault
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import PolicyVersion, Snapshot, Status, ToolCall, Trajectory
from finqa_cli.wiring.stage import stage
from finqa_plugins.environments.openenv_finqa.config import FinQAConfig
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess

FAULTS: tuple[Fault, ...] = ("cut before", "cut after", "delay", "repeat", "repeat late")
REPLY_TIMEOUT_S = 2.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Home folder with the snapshot, and the address of our real server over it."""
    home = tmp_path_factory.mktemp("damaged")
    snapshot: Snapshot = build_small_snapshot(home)[0]
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot)).sandbox_spec()
    assert spec is not None
    process = ServerProcess(spec, home / "server.log")
    try:
        asyncio.run(process.wait_until_healthy(60.0))
        yield home, process.url
    finally:
        asyncio.run(process.stop(3.0))


async def play(home: Path, url: str, *, retries: int, reply_timeout_s: float = 60.0) -> Trajectory:
    chosen = settings_for(home, url=url, retries=retries, reply_timeout_s=reply_timeout_s)
    policy = PolicyVersion(number=0, model="")
    async with stage(chosen, policy, run_id="damaged", reporter=NullReporter()) as parts:
        task = parts.environment.tasks(parts.environment.splits()[0])[0]
        player = parts.player(chosen, temperature=0.0)
        return await player.play(Attempt(id=f"t/{task.id}/0", task=task, member=0, seed=1), player.seat())


def told(trajectory: Trajectory) -> list[Any]:
    """All that training would see of it."""
    turns = [(turn.tool_call, turn.observation) for turn in trajectory.turns]
    return [trajectory.task.id, trajectory.status, turns, trajectory.rewards]


async def replies_of_an_episode(home: Path, url: str) -> int:
    async with FaultyProxy(url, fault="cut before", place=1000).running() as proxy:
        await play(home, proxy.url, retries=0)
        return proxy.replies


async def damaged(home: Path, url: str, fault: Fault, place: int, *, retries: int) -> Trajectory:
    async with FaultyProxy(url, fault=fault, place=place, delay_s=2 * REPLY_TIMEOUT_S).running() as proxy:
        timeout_s = REPLY_TIMEOUT_S if fault == "delay" else 60.0
        return await play(home, proxy.url, retries=retries, reply_timeout_s=timeout_s)


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_episode_is_the_same_after_a_fault_at_any_place(server: tuple[Path, str], fault: Fault) -> None:
    home, url = server
    clean = await play(home, url, retries=0)
    assert (clean.status, clean.reward) == (Status.COMPLETED, 1.0)
    last = await replies_of_an_episode(home, url) - 1
    assert last >= 6, "reset, state, three tools, the answer, state"
    places = range(last + 1)
    retried = await asyncio.gather(*(damaged(home, url, fault, place, retries=3) for place in places))
    assert [told(each) for each in retried] == [told(clean)] * len(places)
    # What comes after the last reply of an episode is not read.
    noticed = retried[: None if fault in ("cut before", "delay") else last]
    repaired = [(each.recoveries, each.retries) for each in noticed]
    # The episode opens with the first two replies (reset and state); what is lost there starts it again.
    opening = 1 if fault == "cut after" else 2
    assert [sum(each) for each in repaired] == [1] * len(noticed), (
        "a fault that was not noticed, or that others followed"
    )
    if not fault.startswith("repeat"):
        assert repaired == [(0, 1)] * opening + [(1, 0)] * (len(noticed) - opening)


@pytest.mark.parametrize("fault", FAULTS)
async def test_without_retries_a_fault_is_a_fault_and_no_reward(server: tuple[Path, str], fault: Fault) -> None:
    home, url = server
    last = await replies_of_an_episode(home, url) - 1
    episodes = await asyncio.gather(*(damaged(home, url, fault, place, retries=0) for place in range(last)))
    kind = Status.ENVIRONMENT_ERROR if fault.startswith("repeat") else Status.SANDBOX_ERROR
    assert [(each.status, each.rewards) for each in episodes] == [(kind, None)] * last
    assert all(each.error for each in episodes)


@pytest.mark.parametrize("fault", ["repeat", "repeat late"])
async def test_shifted_replies_of_one_tool_leave_no_verdict(server: tuple[Path, str], fault: Fault) -> None:
    """Nothing in the replies of one tool tells them apart; an episode that ends without an answer is checked too."""
    home, url = server
    snapshot = LocalSnapshots(home).get(NAME)
    async with FaultyProxy(url, fault=fault, place=2).running() as proxy:
        environment = FinQAEnvironment(FinQAConfig(url=proxy.url), EnvironmentContext(snapshot=snapshot))
        task = environment.tasks(environment.splits()[0])[0]
        session = await environment.open(task, seed=1, sandbox=None)
        with pytest.raises(EnvironmentFault, match="violated the protocol"):
            for company in (task.cluster, "unknown", "nowhere"):
                await session.step(ToolCall(name="get_descriptions", arguments={"company_name": company}))
            await session.grade()
        await session.close()
