from __future__ import annotations

import asyncio
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.rollout.pooled_sandboxes import Places, PooledSandbox, SandboxState

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "withdraw", "take", "take", "release", "release", "wait", "wait", "cancel", "tick"]),
        st.integers(0, 30),
    ),
    min_size=30,
    max_size=150,
)


class Model:
    """Plays steps on `Places` and keeps its own account of who waits and who holds what."""

    def __init__(self, sandboxes: int, per_sandbox: int) -> None:
        self.places = Places(per_sandbox)
        self.per_sandbox = per_sandbox
        self.sandboxes = [PooledSandbox() for _ in range(sandboxes)]
        self.held: list[PooledSandbox] = []
        self.line: deque[asyncio.Task[PooledSandbox]] = deque()
        self.served: list[asyncio.Task[PooledSandbox]] = []

    async def play(self, step: Step) -> None:
        name, number = step
        sandbox = self.sandboxes[number % len(self.sandboxes)]
        if name == "offer":
            sandbox.state = SandboxState.READY
            self.places.update(sandbox)
        elif name == "withdraw":
            sandbox.state = SandboxState.SUSPECT
            self.places.update(sandbox)
        elif name == "take":
            self._take()
        elif name == "release" and self.held:
            self.places.release(self.held.pop(number % len(self.held)))
        elif name == "wait" and self._lightest() is None:
            self.line.append(asyncio.create_task(self.places.wait()))
            await asyncio.sleep(0)
        elif name == "cancel" and self.line:
            self.line[number % len(self.line)].cancel()
        elif name == "tick":
            await self.settle()

    def _lightest(self) -> int | None:
        ready = (sandbox.sessions for sandbox in self.sandboxes if sandbox.state is SandboxState.READY)
        return min((sessions for sessions in ready if sessions < self.per_sandbox), default=None)

    def _take(self) -> None:
        lightest = self._lightest()
        taken = self.places.take()
        assert (taken.sessions - 1 if taken else None) == lightest
        if taken:
            self.held.append(taken)

    async def settle(self) -> None:
        """Lets every task run; the one that was served must be the first in line of those not cancelled."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = [task for task in self.line if task.done()]
        served = [task for task in done if not task.cancelled()]
        left = [task for task in self.line if not task.done()]
        order = [task for task in self.line if not (task.done() and task.cancelled())]
        assert order == served + left, "a task was served before those that came earlier"
        for task in served:
            self.held.append(task.result())
        self.line = deque(left)
        assert self.places.waiting == len(left)
        assert not left or self._lightest() is None, "a place is free and a task waits"
        assert all(sandbox.sessions == self.held.count(sandbox) <= self.per_sandbox for sandbox in self.sandboxes)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3), st.integers(1, 3), STEPS)
def test_places_are_counted_and_served_in_order(sandboxes: int, per_sandbox: int, steps: list[Step]) -> None:
    async def run() -> None:
        model = Model(sandboxes, per_sandbox)
        for step in steps:
            await model.play(step)
        await model.settle()
        for task in model.line:
            task.cancel()
        await asyncio.gather(*model.line, return_exceptions=True)
        await model.settle()

    asyncio.run(run())


async def test_a_waiter_that_is_cancelled_with_a_place_in_hand_passes_it_on() -> None:
    places = Places(1)
    sandbox = PooledSandbox()
    first, second = (asyncio.create_task(places.wait()) for _ in range(2))
    await asyncio.sleep(0)
    sandbox.state = SandboxState.READY
    places.update(sandbox)
    first.cancel()
    assert await second is sandbox
    assert first.cancelled() and sandbox.sessions == 1


async def test_a_session_whose_limited_wait_ends_as_it_gets_a_place_does_not_wait_beside_a_free_one() -> None:
    places = Places(1)
    sandbox = PooledSandbox()
    waiter = asyncio.create_task(places.wait())
    await asyncio.sleep(0)
    sandbox.state = SandboxState.READY
    places.update(sandbox)
    waiter.cancel()  # as the timeout of a limited wait does
    await asyncio.gather(waiter, return_exceptions=True)
    async with asyncio.timeout(5):
        assert await places.wait() is sandbox
    assert sandbox.sessions == 1 and places.waiting == 0


async def test_those_who_are_sent_away_hear_why() -> None:
    places = Places(1)
    waiters = [asyncio.create_task(places.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[1].cancel()
    reason = RuntimeError("there is nothing")
    places.dismiss(reason)
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert outcomes[0] is outcomes[2] is reason and isinstance(outcomes[1], asyncio.CancelledError)
    assert places.waiting == 0
