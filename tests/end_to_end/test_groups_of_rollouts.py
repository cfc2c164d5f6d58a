from __future__ import annotations

from collections import Counter

from fixtures.toy_environment import SANDBOX_TROUBLE, ToyChatEngine, ToyCodec, ToyEnvironment, submit

from finqa_cli.rollout.attempts import Player
from finqa_cli.rollout.episode import Limits
from finqa_cli.rollout.groups import Collected, Collection, shuffle_rewards
from finqa_cli.rollout.pool import Pool
from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.rollout.stream import streaming
from finqa_cli.settings import Settings
from finqa_cli.types import AssistantTurn, ChatRequest, Sampling, Trajectory
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig


class Sometimes(ToyChatEngine):
    """Right for even members of the tasks in `mixed`, wrong for the rest; right for all members of q0."""

    def __init__(self, mixed: set[str]) -> None:
        super().__init__()
        self._mixed = mixed

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        _, _, _, question, member = request.key.split("#")[0].split("/")
        right = question == "q0" or (question in self._mixed and int(member) % 2 == 0)
        return submit(42 if right else 0)


def settings(**train: object) -> Settings:
    return Settings.model_validate(
        {"train": {"group_size": 2, "seed": 1, **train}, "pool": {"sandboxes": 8, "max_play_retries": 0}}
    )


async def collect(
    environment: ToyEnvironment, mixed: set[str], chosen: Settings, walk: TaskWalk | None = None
) -> Collected:
    player = Player(
        environment,
        Pool(),
        Sometimes(mixed),
        ToyCodec(),
        limits=Limits(),
        sampling=Sampling(),
        max_retries=chosen.pool.max_play_retries,
    )
    heard: list[Trajectory] = []
    walk = walk or TaskWalk(environment.tasks("train"), seed=chosen.train.seed)
    async with streaming(player, concurrency=chosen.pool.concurrency) as stream:
        collected = await Collection(
            stream, walk, Grpo(GrpoConfig()), chosen, iteration=3, on_trajectory=heard.append
        ).collected()
    assert len({trajectory.id for trajectory in heard}) == len(heard), "every attempt has its own record"
    return collected


async def test_every_clean_episode_lands_in_a_group_of_its_own_task() -> None:
    collected = await collect(
        ToyEnvironment(boxed=False), set(), settings(target_groups_per_iter=0, max_rollout_rounds=2)
    )
    assert collected.rounds == 2 and len(collected.groups) == 8
    for group in collected.groups:
        assert [trajectory.member for trajectory in group.trajectories] == [0, 1]
        assert {trajectory.task.id for trajectory in group.trajectories} == {group.task.id}
    assert len({trajectory.seed for group in collected.groups for trajectory in group.trajectories}) == 16


async def test_uninformative_groups_are_replaced_by_fresh_tasks_until_the_target_stands() -> None:
    mixed = {"q1", "q5", "q7"}
    collected = await collect(ToyEnvironment(boxed=False), mixed, settings(target_groups_per_iter=3))
    informative = [
        group.task.id for group, credit in zip(collected.groups, collected.credits, strict=True) if not credit.dropped
    ]
    assert sorted(informative) == sorted(mixed)
    asked = Counter(group.task.id for group in collected.groups)
    assert len(asked) == 8 and max(asked.values()) <= 2, "the walk visits all before it repeats one"
    assert sum(asked.values()) <= 10, "not many more were started than it took"
    assert {credit.dropped for credit in collected.credits} == {"", "zero_variance"}


async def test_groups_are_bounded_when_nothing_is_informative() -> None:
    collected = await collect(
        ToyEnvironment(boxed=False), set(), settings(target_groups_per_iter=2, max_rollout_rounds=3)
    )
    assert collected.rounds == 3 and all(credit.dropped == "zero_variance" for credit in collected.credits)


async def test_the_next_iteration_continues_the_walk() -> None:
    chosen = settings(target_groups_per_iter=0, max_rollout_rounds=1)
    walk = TaskWalk(ToyEnvironment().tasks("train"), seed=1)
    first = await collect(ToyEnvironment(boxed=False), set(), chosen, walk)
    second = await collect(ToyEnvironment(boxed=False), set(), chosen, walk)
    ids = [group.task.id for collected in (first, second) for group in collected.groups]
    assert len(set(ids)) == 8


async def test_a_member_whose_sandbox_is_lost_for_a_moment_costs_nothing() -> None:
    environment = ToyEnvironment([SANDBOX_TROUBLE], boxed=False)
    collected = await collect(environment, {"q1"}, settings(target_groups_per_iter=0, max_rollout_rounds=1))
    assert all(trajectory.reward is not None for group in collected.groups for trajectory in group.trajectories)
    assert "too_few" not in {credit.dropped for credit in collected.credits}


async def test_the_control_deals_the_same_rewards_out_again() -> None:
    collected = await collect(
        ToyEnvironment(boxed=False), {"q1", "q2"}, settings(target_groups_per_iter=0, max_rollout_rounds=2)
    )
    shuffled = shuffle_rewards(collected.groups, seed=5)

    def rewards(groups: object) -> list[float]:
        return [t.reward for group in groups for t in group.trajectories]  # type: ignore[attr-defined]

    assert Counter(rewards(shuffled)) == Counter(rewards(collected.groups))
    assert rewards(shuffled) != rewards(collected.groups)
    assert rewards(shuffled) == rewards(shuffle_rewards(collected.groups, seed=5))
