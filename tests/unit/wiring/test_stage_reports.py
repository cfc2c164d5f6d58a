"""What is told of sandboxes and episodes: enough to understand a run, and not a line more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from fixtures.fake_sandboxes import FakeProvider
from fixtures.pool_play import Events, filled, lease_for
from fixtures.toy_environment import task
from fixtures.virtual_time import run_virtually

from finqa_cli.commands.shared import output
from finqa_cli.commands.shared.output import PlainReporter
from finqa_cli.rollout.pool import Pool, SandboxPool
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.types import Status, Trajectory
from finqa_cli.wiring.stage import EpisodeCount, watch_pool


class Shown(NullReporter):
    """A live display that remembers."""

    live = True

    def __init__(self) -> None:
        self.states: list[Mapping[str, object]] = []
        self.open: set[str] = set()

    def start(self, phase: str, total: int | None, *, own_lines: bool = False) -> None:
        self.open.add(phase)

    def advance(self, phase: str, done: int, **fields: object) -> None:
        self.states.append({"done": done, **fields})

    def drop(self, phase: str) -> None:
        self.open.remove(phase)


async def eventful(pool: SandboxPool, provider: FakeProvider) -> None:
    """Five leases for two sandboxes, of which one dies; then a quiet hour."""
    leases = [asyncio.create_task(lease_for(pool, 20)) for _ in range(5)]
    await asyncio.sleep(5)
    provider.sandboxes[0].dead = True
    await asyncio.gather(*leases, return_exceptions=True)
    await asyncio.sleep(3600)


def test_sandboxes_by_state_and_waits_are_on_the_display_and_in_the_events() -> None:
    async def run() -> None:
        provider, events, shown = FakeProvider(start_s=5.0), Events(), Shown()
        pool = await filled(provider, 2, health_check_s=5.0)
        async with watch_pool(pool, 2, shown, events):
            await eventful(pool, provider)
        assert {"done": 2, "playing": 2, "waiting": 3} in shown.states
        assert {"done": 1, "starting": 1, "playing": 1, "waiting": 3, "lost": 1} in shown.states
        assert shown.states[-1] == {"done": 2, "idle": 2, "lost": 1}
        assert not shown.open
        told = events.named("pool")
        assert [told[-1][name] for name in ("size", "idle", "lost", "replaced", "waits")] == [2, 2, 1, 1, 3]
        assert any(fields["waiting"] == 3 for fields in told) and float(str(told[-1]["waited_s"])) > 30
        assert len(told) < 12, "nothing is told of an hour in which nothing happened"
        await pool.close()

    run_virtually(run())


def test_a_log_has_few_lines_and_the_last_state(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(output.time, "monotonic", asyncio.get_running_loop().time)
        provider = FakeProvider(start_s=3.0)
        pool = await filled(provider, 2, health_check_s=5.0)
        async with watch_pool(pool, 2, PlainReporter(), lambda name, fields: None):
            await eventful(pool, provider)
        await pool.close()

    run_virtually(run())
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("sandboxes: 2/2") and "lost=1" in lines[-1]
    assert 2 <= len(lines) <= 6


def test_an_environment_without_sandboxes_shows_none() -> None:
    async def run() -> None:
        shown, events = Shown(), Events()
        async with watch_pool(Pool(), 0, shown, events):
            await asyncio.sleep(30)
        assert (shown.states, events) == ([], [])

    run_virtually(run())


def test_episodes_are_counted_with_what_went_wrong_on_the_way() -> None:
    shown = Shown()
    count = EpisodeCount(shown, "rollout", None)
    for status, retries, recoveries in (
        (Status.COMPLETED, 0, 0),
        (Status.MAX_TURNS, 1, 2),
        (Status.SANDBOX_ERROR, 3, 0),
    ):
        count.add(
            Trajectory(
                id="t",
                task=task(),
                member=0,
                seed=0,
                status=status,
                turns=(),
                retries=retries,
                recoveries=recoveries,
            )
        )
    assert shown.states == [
        {"done": 1},
        {"done": 2, "recoveries": 2, "retries": 1},
        {"done": 3, "recoveries": 2, "retries": 4, "faults": 1},
    ]
