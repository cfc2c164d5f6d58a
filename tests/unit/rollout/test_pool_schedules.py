"""Random schedules in virtual time: clients, deaths, failing starts, cancellations, and an end at any moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from fixtures.fake_sandboxes import SPEC, FakeProvider
from fixtures.virtual_time import run_virtually
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.errors import SandboxError, ServiceUnavailableError
from finqa_cli.rollout.pool import SandboxPool

SECONDS = st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 15.0, 16.0, 40.0])


@dataclass(frozen=True)
class Client:
    arrives: float
    holds: float
    ending: str  # fine, fault, or cancelled after `patience` seconds
    patience: float


@dataclass(frozen=True)
class Blow:
    at: float
    how: str
    sandbox: int


@dataclass(frozen=True)
class Schedule:
    size: int
    per_sandbox: int
    at_once: int
    health_check_s: float
    start_s: float
    failing: frozenset[int]
    clients: list[Client]
    blows: list[Blow]
    closes: float | None


schedules = st.builds(
    Schedule,
    size=st.integers(1, 4),
    per_sandbox=st.integers(1, 3),
    at_once=st.integers(1, 4),
    health_check_s=st.sampled_from([0.0, 5.0, 15.0]),
    start_s=st.sampled_from([0.0, 1.0, 7.0]),
    failing=st.frozensets(st.integers(0, 8), max_size=6),
    clients=st.lists(
        st.builds(
            Client,
            arrives=SECONDS,
            holds=SECONDS,
            ending=st.sampled_from(["fine", "fine", "fault", "cancelled"]),
            patience=SECONDS,
        ),
        max_size=12,
    ),
    blows=st.lists(
        st.builds(Blow, at=SECONDS, how=st.sampled_from(["dead", "frozen"]), sandbox=st.integers(0, 5)), max_size=5
    ),
    closes=st.one_of(st.none(), SECONDS),
)


@settings(deadline=None, max_examples=150)
@given(schedules)
def test_no_schedule_forgets_a_client_or_leaves_a_sandbox(schedule: Schedule) -> None:
    run_virtually(_play(schedule))


async def _play(schedule: Schedule) -> None:
    provider = FakeProvider(
        failing=lambda number: SandboxError(f"start {number}") if number in schedule.failing else None,
        start_s=schedule.start_s,
    )
    pool = SandboxPool(
        provider,
        SPEC,
        size=schedule.size,
        max_concurrent_create=schedule.at_once,
        labels={},
        sessions_per_sandbox=schedule.per_sandbox,
        health_check_s=schedule.health_check_s,
    )
    await pool.start()
    in_use: Counter[str] = Counter()
    clients = [asyncio.create_task(_visit(pool, client, schedule.per_sandbox, in_use)) for client in schedule.clients]
    blows = asyncio.create_task(_strike(provider, schedule.blows))
    if schedule.closes is not None:
        await asyncio.sleep(schedule.closes)
        await asyncio.gather(pool.close(), pool.close())
    async with asyncio.timeout(3600):  # of virtual time: a client that is still there was forgotten
        outcomes = await asyncio.gather(*clients)
    await blows
    _judge(schedule, outcomes)
    assert not +in_use and pool.stats().waiting == 0
    if schedule.closes is None:
        await _heals(pool, provider, schedule)
    await pool.close()
    assert provider.most_starting <= schedule.at_once
    assert provider.most_existing <= schedule.size
    assert provider.closed and not provider.existing
    assert pool.stats().sessions_active == 0


async def _visit(pool: SandboxPool, client: Client, per_sandbox: int, in_use: Counter[str]) -> str:
    await asyncio.sleep(client.arrives)

    async def lease() -> str:
        async with pool.lease() as sandbox:
            assert sandbox is not None
            in_use[sandbox.id] += 1
            assert in_use[sandbox.id] <= per_sandbox
            try:
                await asyncio.sleep(client.holds)
                if client.ending == "fault":
                    raise SandboxError("the connection was lost")
            finally:
                in_use[sandbox.id] -= 1
        return "fine"

    try:
        async with asyncio.timeout(client.patience if client.ending == "cancelled" else None):
            return await lease()
    except TimeoutError:
        return "cancelled"
    except SandboxError as error:
        return error.message
    except ServiceUnavailableError:
        return "closed"


async def _strike(provider: FakeProvider, blows: list[Blow]) -> None:
    began = asyncio.get_running_loop().time()
    for blow in sorted(blows, key=lambda blow: blow.at):
        await asyncio.sleep(max(0.0, began + blow.at - asyncio.get_running_loop().time()))
        if provider.sandboxes:
            setattr(provider.sandboxes[blow.sandbox % len(provider.sandboxes)], blow.how, True)


def _judge(schedule: Schedule, outcomes: list[str]) -> None:
    """Each outcome has a cause in the schedule."""
    for client, outcome in zip(schedule.clients, outcomes, strict=True):
        match outcome:
            case "fine":
                assert client.ending != "fault"
            case "cancelled":
                assert client.ending == "cancelled"
            case "the connection was lost":
                assert client.ending == "fault"
            case "closed" | "The pool of sandboxes was closed.":
                assert schedule.closes is not None
            case reason if reason.startswith("start "):
                assert len(schedule.failing) >= 3, "a waiting client was sent away before three starts had failed"
            case reason:
                assert "was lost" in reason and schedule.blows


async def _heals(pool: SandboxPool, provider: FakeProvider, schedule: Schedule) -> None:
    """Once the blows are over the pool comes back to its full size, where it looks for itself."""
    if not schedule.health_check_s:
        return
    await asyncio.sleep(600)
    assert pool.alive == schedule.size == len(provider.alive())
    stats = pool.stats()
    assert (stats.idle, stats.leased, stats.starting, stats.lost) == (schedule.size, 0, 0, stats.replaced)
