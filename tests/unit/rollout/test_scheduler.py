from __future__ import annotations

import asyncio

import pytest
from fixtures.timed_environment import TimedEnvironment, list_schedule, long_tailed, run_timed
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyTokenEngine, submit, task
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.errors import StorageError
from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.stream import play_all, play_stream
from finqa_cli.types import Sampling, Trajectory


def attempts(count: int) -> list[Attempt]:
    return [Attempt(id=f"t/{number:04d}", task=task(number), member=0, seed=number) for number in range(count)]


def player(environment: TimedEnvironment, engine: object | None = None) -> Player:
    return Player(
        environment,
        Pool(),
        engine or ToyChatEngine(submit(1)),  # type: ignore[arg-type]
        ToyCodec(),
        limits=Limits(max_turns=99, max_parse_errors=99),
        sampling=Sampling(),
        max_retries=0,
    )


@given(count=st.integers(1, 60), places=st.integers(1, 20))
@settings(max_examples=25)
def test_nobody_waits_for_the_slowest(count: int, places: int) -> None:
    world = TimedEnvironment()
    played, seconds = run_timed(
        play_all(player(world), attempts(count), concurrency=places, on_trajectory=lambda _: None)
    )
    lengths = [long_tailed(attempt.task, attempt.seed) for attempt in attempts(count)]
    assert seconds == pytest.approx(list_schedule(lengths, places))
    assert [trajectory.id for trajectory in played] == [attempt.id for attempt in attempts(count)]
    assert sorted(world.graded) == [attempt.seed for attempt in attempts(count)], "each is played to its verdict, once"


def test_a_barrier_would_have_cost_half_of_the_time() -> None:
    lengths = [long_tailed(attempt.task, attempt.seed) for attempt in attempts(200)]
    _, seconds = run_timed(
        play_all(player(TimedEnvironment()), attempts(200), concurrency=20, on_trajectory=lambda _: None)
    )
    barrier = sum(max(lengths[start : start + 20]) for start in range(0, 200, 20))
    assert seconds < 1.05 * list_schedule(lengths, 20) and seconds < 0.5 * barrier


class Waves:
    """Gives two attempts for each one that ended, up to `count`: at first only one."""

    def __init__(self, count: int) -> None:
        self._left = attempts(count)[::-1]
        self._open = 1
        self.running = 0
        self.most = 0

    def next(self) -> Attempt | None:
        if not self._open or not self._left:
            return None
        self._open -= 1
        self.running += 1
        self.most = max(self.most, self.running)
        return self._left.pop()

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        self.running -= 1
        self._open += 2


def test_places_that_were_left_free_are_filled_when_the_source_has_more() -> None:
    source, world = Waves(31), TimedEnvironment(length=lambda about, seed: 1)
    _, seconds = run_timed(play_stream(player(world), source, concurrency=8, on_trajectory=lambda _: None))
    assert len(world.graded) == 31 and source.most == 8
    assert seconds == pytest.approx(6), "1, 2, 4, 8, 8, 8"


@given(first=st.integers(0, 99), second=st.integers(100, 199), places=st.integers(1, 7))
@settings(max_examples=20)
def test_batches_in_lockstep_do_not_depend_on_who_ends_first(first: int, second: int, places: int) -> None:
    seen = []
    for delays in (first, second):
        engine = ToyTokenEngine()
        world = TimedEnvironment(delays=delays)
        source = Waves(12)
        run_timed(play_stream(player(world, engine), source, concurrency=places, on_trajectory=lambda _: None))
        assert engine.seats == 0
        seen.append(engine.batches)
    assert seen[0] == seen[1]
    assert {key.split("#")[0] for batch in seen[0] for key in batch} == {attempt.id for attempt in attempts(12)}


def test_a_disk_that_is_full_ends_everything_and_frees_every_seat() -> None:
    engine = ToyTokenEngine()

    def full(trajectory: Trajectory) -> None:
        raise StorageError("no space left")

    with pytest.raises(StorageError, match="no space left"):
        run_timed(play_all(player(TimedEnvironment(), engine), attempts(9), concurrency=3, on_trajectory=full))
    assert engine.seats == 0


def test_cancelling_it_cancels_every_episode_and_frees_every_seat() -> None:
    engine, heard = ToyTokenEngine(), list[Trajectory]()

    async def cancelled() -> None:
        work = asyncio.create_task(
            play_all(player(TimedEnvironment(), engine), attempts(9), concurrency=3, on_trajectory=heard.append)
        )
        await asyncio.sleep(1.5)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert engine.seats == 0 and asyncio.all_tasks() == {asyncio.current_task()}

    run_timed(cancelled())
    assert len(heard) < 9


def test_an_empty_list_is_played_at_once() -> None:
    played, seconds = run_timed(play_all(player(TimedEnvironment()), [], concurrency=3, on_trajectory=lambda _: None))
    assert (played, seconds) == ([], 0.0)
