"""The table of a sandbox's states: what it allows, and that a pool under random events never leaves it."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict

import pytest
from fixtures.fake_sandboxes import SPEC, FakeProvider
from fixtures.pool_play import Events
from fixtures.virtual_time import run_virtually
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.errors import FinqaError, SandboxError
from finqa_cli.rollout.pool import SandboxPool
from finqa_cli.rollout.pooled_sandboxes import (
    EVENTS,
    RUNNING,
    TRANSITIONS,
    IllegalTransitionError,
    PooledSandbox,
    SandboxState,
    event_of,
)
from finqa_cli.types import ExecutionSpec

S = SandboxState
ALLOWED = {
    "starting": {"ready", "failed", "closed"},
    "ready": {"suspect", "faulted", "spent", "closed"},
    "suspect": {"ready", "faulted", "spent", "lost", "closed"},
    "faulted": {"ready", "spent", "lost", "closed"},
    "spent": {"closed"},
    "lost": set(),
    "failed": set(),
    "closed": set(),
}
EVENT_OF_STATE = {
    S.READY: "sandbox_ready",
    S.FAILED: "sandbox_failed",
    S.SPENT: "sandbox_spent",
    S.LOST: "sandbox_lost",
}


def test_the_table_allows_exactly_these_transitions() -> None:
    assert {state.value: {to.value for to in after} for state, after in TRANSITIONS.items()} == ALLOWED


@pytest.mark.parametrize(("state", "to"), list(itertools.product(S, S)))
def test_a_transition_has_its_event_or_is_refused(state: SandboxState, to: SandboxState) -> None:
    if to.value not in ALLOWED[state.value]:
        with pytest.raises(IllegalTransitionError, match=f"from {state.value} to {to.value}"):
            event_of(state, to)
        return
    recovered = to is S.READY and state is not S.STARTING  # listeners do not receive that a check found it well
    assert event_of(state, to) == (None if recovered else EVENT_OF_STATE.get(to))


def test_only_a_sandbox_that_has_just_started_replaces_a_lost_one() -> None:
    assert event_of(S.STARTING, S.READY, replaces_lost=True) == "sandbox_replaced"
    assert event_of(S.SUSPECT, S.READY, replaces_lost=True) is None
    assert event_of(S.SUSPECT, S.LOST, replaces_lost=True) == "sandbox_lost"


def test_every_event_belongs_to_a_transition_and_every_state_can_be_reached() -> None:
    assert all(to in TRANSITIONS[state] for state, to in EVENTS)
    reached = {S.STARTING}
    for _ in S:
        reached |= {to for state in reached for to in TRANSITIONS[state]}
    assert reached == set(S)


def test_a_running_sandbox_can_always_be_closed_and_is_never_lost_without_a_sign() -> None:
    assert all(S.CLOSED in TRANSITIONS[state] for state in RUNNING)
    assert {state for state, after in TRANSITIONS.items() if S.LOST in after} == {S.SUSPECT, S.FAULTED}


class RecordingPool(SandboxPool):
    """Keeps each sandbox's states, and the moves that were refused."""

    refused: list[Exception]
    lives: defaultdict[PooledSandbox, list[SandboxState]]

    def move(self, sandbox: PooledSandbox, to: SandboxState, *args: object, **options: object) -> None:
        before = sandbox.state
        try:
            super().move(sandbox, to, *args, **options)  # type: ignore[arg-type]
        except Exception as error:
            self.refused.append(error)
            raise
        self.lives[sandbox].append(before)
        self.lives[sandbox].append(to)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "lease", "fault", "kill", "freeze", "revive", "sleep", "sleep", "close"]),
        st.integers(0, 20),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=150)
@given(st.booleans(), st.integers(1, 4), st.frozensets(st.integers(0, 12), max_size=6), STEPS)
def test_random_events_never_leave_the_table(
    fresh: bool, size: int, failing: frozenset[int], steps: list[tuple[str, int]]
) -> None:
    run_virtually(_play(fresh, size, failing, steps))


async def _play(fresh: bool, size: int, failing: frozenset[int], steps: list[tuple[str, int]]) -> None:
    provider = FakeProvider(failing=lambda n: SandboxError(f"start {n}") if n in failing else None, check_s=0.5)
    events = Events()
    spec, places = (ExecutionSpec(fresh=True), 1) if fresh else (SPEC, 2)
    pool = RecordingPool(
        provider,
        spec,
        size=size,
        max_concurrent_create=2,
        labels={},
        sessions_per_sandbox=places,
        health_check_s=5.0,
        breaker_share=0.9,
        on_event=events,
    )
    pool.refused, pool.lives = [], defaultdict(list)
    await pool.start()

    async def session(seconds: float, fails: bool) -> None:
        try:
            async with pool.lease():
                await asyncio.sleep(seconds)
                if fails:
                    raise SandboxError("the connection was lost")
        except FinqaError:
            pass

    sessions = []
    for step, number in steps:
        sandbox = provider.sandboxes[number % len(provider.sandboxes)] if provider.sandboxes else None
        if step in ("lease", "fault"):
            sessions.append(asyncio.create_task(session(number, step == "fault")))
        elif step == "sleep":
            await asyncio.sleep(number)
        elif step == "close":
            await pool.close()
        elif sandbox is not None:
            sandbox.dead, sandbox.frozen = step == "kill", step == "freeze"
    async with asyncio.timeout(3600):
        await asyncio.gather(*sessions)
    await pool.close()
    assert not pool.refused
    _judge(pool, events)


def _judge(pool: RecordingPool, events: Events) -> None:
    for life in pool.lives.values():
        assert life[0] is S.STARTING, "a sandbox was used that was never started"
        assert all(life[n] is life[n + 1] for n in range(1, len(life) - 1, 2)), "a state changed outside of move"
        assert life[-1] not in RUNNING, "a sandbox outlived the pool"
    moves = [move for life in pool.lives.values() for move in zip(life[::2], life[1::2], strict=True)]
    assert all(to in TRANSITIONS[state] for state, to in moves)
    for to, name in EVENT_OF_STATE.items():
        names = (name, "sandbox_replaced") if to is S.READY else (name,)
        told = sum(len(events.named(each)) for each in names)
        assert told == sum(EVENTS.get(move) == name for move in moves)
