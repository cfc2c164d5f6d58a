from __future__ import annotations

import asyncio

import pytest
from fixtures.timed_environment import TimedEnvironment, TimedSession, run_timed
from fixtures.toy_environment import ToyChatEngine, ToyCodec, submit, task

from finqa_cli.contracts import Sandbox
from finqa_cli.errors import StorageError
from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.stream import streaming
from finqa_cli.types import Observation, Sampling, Task, ToolCall, Trajectory


class Numbered:
    """`count` attempts by name."""

    def __init__(self, name: str, count: int) -> None:
        self._left = [
            Attempt(id=f"{name}{number}", task=task(number), member=0, seed=number) for number in range(count)
        ][::-1]
        self.ended: list[str] = []

    def next(self) -> Attempt | None:
        return self._left.pop() if self._left else None

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        self.ended.append(attempt.id)


def player(length: int = 1, world: TimedEnvironment | None = None) -> Player:
    return Player(
        world or TimedEnvironment(length=lambda about, seed: length),
        Pool(),
        ToyChatEngine(submit(1)),
        ToyCodec(),
        limits=Limits(max_turns=99),
        sampling=Sampling(),
        max_retries=0,
    )


def test_what_was_added_first_is_asked_first_and_places_that_it_leaves_are_used() -> None:
    heard: list[str] = []

    async def play() -> None:
        async with streaming(player(), concurrency=2) as stream:
            first, second = Numbered("a", 3), Numbered("b", 3)
            ends = [stream.add(source, lambda trajectory: heard.append(trajectory.id)) for source in (first, second)]
            await ends[0]
            assert first.ended == ["a0", "a1", "a2"] and second.ended == ["b0"]
            await ends[1]

    _, seconds = run_timed(play())
    assert heard == ["a0", "a1", "a2", "b0", "b1", "b2"] and seconds == pytest.approx(3)


def test_a_source_that_is_added_while_others_play_takes_the_free_places() -> None:
    async def play() -> None:
        async with streaming(player(length=4), concurrency=3) as stream:
            slow = stream.add(Numbered("a", 1), lambda _: None)
            await asyncio.sleep(1)
            quick = Numbered("b", 2)
            await stream.add(quick, lambda _: None)
            assert slow.done() and quick.ended == ["b0", "b1"]

    assert run_timed(play())[1] == pytest.approx(5)


def test_an_empty_source_has_ended_and_an_idle_stream_knows_it() -> None:
    async def play() -> None:
        async with streaming(player(), concurrency=1) as stream:
            assert stream.add(Numbered("a", 0), lambda _: None).done()
            before = stream.idle_s
            await stream.drained()
            assert stream.idle_s > before
            playing = stream.add(Numbered("b", 1), lambda _: None)
            busy = stream.idle_s
            assert stream.idle_s == busy
            await playing

    run_timed(play())


def test_when_it_is_stopped_every_source_plays_out_what_runs() -> None:
    stopped = False

    async def play() -> None:
        nonlocal stopped
        async with streaming(player(length=2), concurrency=3, stopping=lambda: stopped) as stream:
            sources = Numbered("a", 2), Numbered("b", 9)
            ends = [stream.add(source, lambda _: None) for source in sources]
            await asyncio.sleep(1)
            stopped = True
            await stream.drained()
            assert all(end.done() for end in ends)
            assert [sorted(source.ended) for source in sources] == [["a0", "a1"], ["b0"]]
            assert stream.add(Numbered("c", 1), lambda _: None).done(), "nothing starts any more"

    assert run_timed(play())[1] == pytest.approx(2)


def test_a_listener_that_fails_ends_the_block_and_all_sources() -> None:
    heard: list[str] = []

    def full(trajectory: Trajectory) -> None:
        raise StorageError("no space left")

    async def play() -> None:
        async with streaming(player(length=3), concurrency=4) as stream:
            stream.add(Numbered("a", 1), full)
            stream.add(Numbered("b", 9), lambda trajectory: heard.append(trajectory.id))
            await asyncio.sleep(600)

    with pytest.raises(StorageError, match="no space left"):
        run_timed(play())
    assert len(heard) < 9


def test_a_block_that_fails_cancels_what_runs_and_raises_its_own_error() -> None:
    source = Numbered("a", 9)

    async def play() -> None:
        async with streaming(player(length=3), concurrency=4) as stream:
            stream.add(source, lambda _: None)
            await asyncio.sleep(1)
            raise StorageError("no space for the weights")

    with pytest.raises(StorageError, match="for the weights"):
        run_timed(play())
    assert not source.ended


class BrokenSession(TimedSession):
    """Breaks what its contract promises: it is cancelled by something of its own, or raises when it is closed."""

    def __init__(self, world: BrokenEnvironment, about: Task, seed: int) -> None:
        super().__init__(world, about, seed)
        self._how = world.how

    async def step(self, call: ToolCall) -> Observation:
        await asyncio.sleep(3)
        if self._how == "cancelled":
            helper = asyncio.ensure_future(asyncio.sleep(600))
            helper.cancel()
            await helper
        return await super().step(call)

    async def close(self) -> None:
        if self._how == "unclosable":
            raise OSError("the socket is gone")


class BrokenEnvironment(TimedEnvironment):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> TimedSession:  # type: ignore[override]
        return BrokenSession(self, task, seed)


def test_an_episode_that_something_else_cancelled_ends_the_block_instead_of_being_waited_for() -> None:
    async def play() -> None:
        async with streaming(player(world=BrokenEnvironment("cancelled")), concurrency=2) as stream:
            await stream.add(Numbered("a", 3), lambda _: None)

    with pytest.raises(RuntimeError, match="a0 was cancelled by a task"):
        run_timed(play())


@pytest.mark.parametrize("error", [StorageError("no space for the weights"), asyncio.CancelledError("Ctrl-C")])
def test_what_fails_while_episodes_are_cancelled_does_not_hide_why_they_are(error: BaseException) -> None:
    async def play() -> None:
        async with streaming(player(world=BrokenEnvironment("unclosable")), concurrency=2) as stream:
            stream.add(Numbered("a", 3), lambda _: None)
            await asyncio.sleep(1)
            raise error

    with pytest.raises(type(error)) as raised:
        run_timed(play())
    assert raised.value is error


def test_of_several_errors_the_first_is_told_with_its_cause() -> None:
    def full(trajectory: Trajectory) -> None:
        raise StorageError(f"no space for {trajectory.id}") from OSError(28, "ENOSPC")

    async def play() -> None:
        async with streaming(player(), concurrency=3) as stream:
            stream.add(Numbered("a", 3), full)
            try:
                await asyncio.sleep(600)
            finally:
                raise ValueError("the block's own clean-up fails as well")

    with pytest.raises(StorageError, match="for a0") as raised:
        run_timed(play())
    assert isinstance(raised.value.__cause__, OSError)


def test_an_episode_counts_once_what_its_listener_returned_is_awaited() -> None:
    async def play() -> None:
        source, written = Numbered("a", 2), asyncio.Event()

        async def record(trajectory: Trajectory) -> None:
            await written.wait()

        async with streaming(player(), concurrency=2) as stream:
            ended = stream.add(source, record)
            await asyncio.sleep(600)
            assert not source.ended and not ended.done()
            written.set()
            await ended
            assert len(source.ended) == 2

    run_timed(play())
