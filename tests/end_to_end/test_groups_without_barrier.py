"""Groups of an iteration on a virtual clock: what is played depends on no episode's speed, and none waits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from fixtures.fake_sandboxes import FakeProvider
from fixtures.pool_play import filled
from fixtures.timed_environment import TimedEnvironment, list_schedule, long_tailed, run_timed
from fixtures.toy_environment import ToyChatEngine, ToyCodec, ToyTokenEngine, submit
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from finqa_cli.algorithms.group_report import group_statistics
from finqa_cli.rollout.attempts import Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.groups import Collected, Collection
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.rollout.stream import streaming
from finqa_cli.settings import Settings
from finqa_cli.types import Group, Sampling, Status, Task, Trajectory
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig


def timed_settings(*, sandboxes: int = 24, sessions: int = 1, **train: Any) -> Settings:
    return Settings.model_validate(
        {
            "train": {"group_size": 3, "seed": 1, **train},
            "pool": {"sandboxes": sandboxes, "sessions_per_sandbox": sessions, "max_play_retries": 0},
        }
    )


async def _collect(
    world: TimedEnvironment,
    chosen: Settings,
    engine: object | None = None,
    expected: float | None = None,
    pool: Pool | None = None,
) -> tuple[Collected, list[Trajectory]]:
    player = Player(
        world,
        pool or Pool(),
        engine or ToyChatEngine(submit(1)),  # type: ignore[arg-type]
        ToyCodec(),
        limits=Limits(max_turns=99, max_parse_errors=99),
        sampling=Sampling(),
        max_retries=chosen.pool.max_play_retries,
    )
    heard: list[Trajectory] = []
    walk = TaskWalk(world.tasks("train"), seed=chosen.train.seed, cursor=5)
    async with streaming(player, concurrency=chosen.pool.concurrency) as stream:
        collected = await Collection(
            stream,
            walk,
            Grpo(GrpoConfig()),
            chosen,
            iteration=3,
            on_trajectory=heard.append,
            expected_share=expected,
        ).collected()
    assert walk.unsettled == sorted(collected.places) and walk.cursor == max(collected.places) + 1
    return collected, heard


def timed(
    world: TimedEnvironment, chosen: Settings, engine: object | None = None, expected: float | None = None
) -> tuple[Collected, list[Trajectory], float]:
    """What was collected, each attempt that was heard, and the virtual seconds it took."""
    (collected, heard), seconds = run_timed(_collect(world, chosen, engine, expected))
    return collected, heard, seconds


def ids(collected: Collected) -> list[str]:
    return [trajectory.id for group in collected.groups for trajectory in group.trajectories]


def rewards_of(group: Group) -> list[float | None]:
    return [trajectory.reward for trajectory in group.trajectories]


def facts(collected: Collected) -> list[Any]:
    """All that an update and the next iteration depend on."""
    played = [
        (trajectory.id, trajectory.seed, trajectory.status, trajectory.reward, trajectory.turns[-1].completion_ids)
        for group in collected.groups
        for trajectory in group.trajectories
    ]
    return [played, collected.credits, collected.rounds, collected.places, collected.informative_share]


@given(
    delays=st.lists(st.integers(0, 999), min_size=2, max_size=2, unique=True),
    right=st.sampled_from([0.1, 0.5, 0.9]),
    target=st.integers(0, 12),
    places=st.integers(1, 24),
    expected=st.sampled_from([None, 0.5]),
)
@examples(max_examples=25)
def test_what_is_played_does_not_depend_on_timing(
    delays: list[int], right: float, target: int, places: int, expected: float | None
) -> None:
    """Groups, seeds, ids, credit and cursor; on an engine in lockstep every batch too, so every bit of a run."""
    chosen = timed_settings(sandboxes=places, target_groups_per_iter=target, max_rollout_rounds=3)
    seen = []
    for delay in delays:
        engine = ToyTokenEngine()
        world = TimedEnvironment(delays=delay, right=right)
        collected, heard, _ = timed(world, chosen, engine, expected)
        assert sorted(trajectory.id for trajectory in heard) == sorted(ids(collected))
        assert len(world.graded) == world.opened == len(heard), "what was begun was finished, and used"
        assert group_statistics(collected.groups, collected.credits).length_bias == 0.0
        seen.append([facts(collected), engine.batches])
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("sandboxes", "sessions"), [(1, 1), (3, 1), (2, 3), (8, 1)])
def test_in_lockstep_a_pool_smaller_than_the_concurrency_gives_the_same_batches(sandboxes: int, sessions: int) -> None:
    """Eight episodes want a sandbox; timing decides neither whose turn it is nor who has a seat of the engine."""
    chosen = timed_settings(sandboxes=8, target_groups_per_iter=6, max_rollout_rounds=3)

    async def played(delays: int) -> list[Any]:
        engine = ToyTokenEngine()
        pool = await filled(FakeProvider(), sandboxes, sessions_per_sandbox=sessions, health_check_s=3.0)
        collected, heard = await _collect(TimedEnvironment(delays=delays), chosen, engine, pool=pool)
        assert sorted(trajectory.id for trajectory in heard) == sorted(ids(collected))
        assert bool(pool.stats().waits) == (sandboxes * sessions < 8)
        await pool.close()
        return [facts(collected), engine.batches]

    first, *others = [run_timed(played(delays))[0] for delays in range(4)]
    assert all(other == first for other in others)


@given(places=st.integers(1, 40), delays=st.integers(0, 99))
@examples(max_examples=15)
def test_without_lockstep_the_groups_are_the_same_on_any_number_of_places(places: int, delays: int) -> None:
    """`max_rollout_rounds` counts in places, so the cap is kept out of the way."""
    chosen = timed_settings(sandboxes=places, target_groups_per_iter=6, max_rollout_rounds=99)
    one = timed_settings(sandboxes=3, target_groups_per_iter=6, max_rollout_rounds=99)
    many, *_ = timed(TimedEnvironment(delays=delays), chosen)
    few, *_ = timed(TimedEnvironment(), one)
    assert ids(many) == ids(few) and many.credits == few.credits
    assert sum(not credit.dropped for credit in many.credits) >= 6


@pytest.mark.parametrize(("share", "most"), [(None, 1.35), (0.75, 1.05)])
def test_an_iteration_is_as_fast_as_a_list_of_its_episodes(share: float | None, most: float) -> None:
    """Against list scheduling of the very same episodes: once the share is known the target costs next to nothing."""
    chosen = timed_settings(sandboxes=60, target_groups_per_iter=60, max_rollout_rounds=99)
    world = TimedEnvironment(count=400)
    collected, _, seconds = timed(world, chosen, expected=share)
    played = [trajectory for group in collected.groups for trajectory in group.trajectories]
    ideal = list_schedule([long_tailed(each.task, each.seed) for each in played], 60)
    assert ideal <= seconds <= most * ideal
    assert 60 <= sum(not credit.dropped for credit in collected.credits) <= 75
    assert collected.informative_share == pytest.approx(0.75, abs=0.1)


def test_sessions_that_share_a_sandbox_make_rounds_larger() -> None:
    plain, shared = (
        timed(TimedEnvironment(), timed_settings(sandboxes=6, sessions=each, target_groups_per_iter=0))[0]
        for each in (1, 4)
    )
    assert [len(plain.groups), len(shared.groups)] == [2 * 8, 8 * 8] and plain.rounds == shared.rounds == 8


def test_a_data_set_smaller_than_the_sandboxes_is_asked_once_a_round() -> None:
    world = TimedEnvironment(count=3, length=lambda about, seed: 1)
    collected, *_ = timed(world, timed_settings(max_rollout_rounds=2, target_groups_per_iter=0))
    assert (len(collected.groups), collected.rounds, collected.places) == (2 * 3, 2, (5, 6, 7, 8, 9, 10))
    assert len({group.task.id for group in collected.groups}) == 3


def test_a_missing_member_is_played_again_and_only_then_excluded() -> None:
    """One member faults once, another each time; both tries are on record, and none is scored by its fault."""
    chosen = timed_settings(target_groups_per_iter=0, max_rollout_rounds=1)
    clean, records, _ = timed(TimedEnvironment(), chosen)
    once, always = clean.groups[2].trajectories[1].seed, clean.groups[3].trajectories[0].seed
    tried: Counter[int] = Counter()

    def fails(about: Task, seed: int) -> bool:
        tried[seed] += 1
        return seed == always or (seed == once and tried[seed] == 1)

    collected, heard, _ = timed(TimedEnvironment(fails=fails), chosen)
    assert collected.groups[2].trajectories[1].id == clean.groups[2].trajectories[1].id + "-again"
    assert [rewards_of(group) for group in collected.groups[:3]] == [rewards_of(group) for group in clean.groups[:3]]
    lost = collected.groups[3].trajectories[0]
    assert (lost.status, lost.reward, lost.member) == (Status.ENVIRONMENT_ERROR, None, 0)
    assert collected.credits[3].advantages[0] is None
    assert len(heard) == len(records) + 2 and len({trajectory.id for trajectory in heard}) == len(heard)
    assert {trajectory.id for trajectory in heard if trajectory.status.is_fault} == {
        clean.groups[2].trajectories[1].id,
        clean.groups[3].trajectories[0].id,
        clean.groups[3].trajectories[0].id + "-again",
    }
    assert collected.places == clean.places


def test_the_control_plays_the_same_groups_as_what_it_controls() -> None:
    chosen: dict[str, Any] = {"target_groups_per_iter": 4, "max_rollout_rounds": 9}
    real, *_ = timed(TimedEnvironment(), timed_settings(**chosen))
    control, *_ = timed(TimedEnvironment(), timed_settings(**chosen, shuffle_rewards=True))
    assert ids(real) == ids(control) and real.places == control.places
    given = [[rewards for group in each.groups for rewards in rewards_of(group)] for each in (real, control)]
    assert Counter(given[0]) == Counter(given[1]) and given[0] != given[1]
