"""Rollouts of one iteration: rounds of groups until enough of them carry signal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from finqa_cli.contracts import Optimizer
from finqa_cli.learn import assign_credit
from finqa_cli.rollout.attempts import Attempt, Player, play_all
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.settings import Settings
from finqa_cli.types import Credit, Group, Rewards, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The groups of one iteration with their credit, and where the next draw goes on."""

    groups: tuple[Group, ...]
    credits: tuple[Credit, ...]
    rounds: int
    cursor: int


async def collect_groups(
    player: Player,
    tasks: Sequence[Task],
    optimizer: Optimizer,
    settings: Settings,
    *,
    iteration: int,
    cursor: int,
    on_trajectory: Callable[[Trajectory], None],
    stopping: Callable[[], bool],
) -> Collected:
    """Plays rounds of fresh tasks, each as a whole group, under the policy that the engine serves now.

    A round asks as many tasks as the sandboxes can hold groups, but no more than informative groups are missing. It
    ends with `target_groups_per_iter` informative groups (0: no target) or after `max_rollout_rounds` rounds.
    """
    train = settings.train
    groups: list[Group] = []
    credits: list[Credit] = []
    rounds = 0
    while rounds < train.max_rollout_rounds and not stopping():
        wanted = max(1, settings.pool.sandboxes // train.group_size)
        if train.target_groups_per_iter:
            missing = train.target_groups_per_iter - sum(not credit.dropped for credit in credits)
            if missing <= 0:
                break
            wanted = min(wanted, missing)
        drawn, cursor = draw(tasks, seed=derive(train.seed, "tasks"), position=cursor, count=wanted)
        attempts = _attempts(drawn, settings, iteration, rounds)
        trajectories = await play_all(
            player,
            attempts,
            concurrency=settings.pool.concurrency,
            on_trajectory=on_trajectory,
            stopping=stopping,
        )
        rounds += 1
        if len(trajectories) < len(attempts):
            break  # stopped: the iteration is not used, so half a group does no harm
        formed = _form_groups(drawn, trajectories, train.group_size)
        if train.shuffle_rewards:
            formed = shuffle_rewards(formed, seed=derive(train.seed, "shuffle", iteration, rounds))
        groups += formed
        credits += assign_credit(optimizer, formed)
    return Collected(groups=tuple(groups), credits=tuple(credits), rounds=rounds, cursor=cursor)


def shuffle_rewards(groups: Sequence[Group], *, seed: int) -> list[Group]:
    """The negative control: the rewards of a round dealt out again at random over all its graded episodes."""
    pool = [item.rewards for group in groups for item in group.trajectories if item.rewards is not None]
    random.Random(seed).shuffle(pool)
    dealt = iter(pool)

    def deal(trajectory: Trajectory) -> Trajectory:
        rewards: Rewards | None = next(dealt) if trajectory.rewards is not None else None
        return replace(trajectory, rewards=rewards)

    return [replace(group, trajectories=tuple(map(deal, group.trajectories))) for group in groups]


def _attempts(tasks: Sequence[Task], settings: Settings, iteration: int, round_: int) -> list[Attempt]:
    return [
        Attempt(
            id=f"train/{iteration:04d}/{round_}/{task.id}/{member}",
            task=task,
            member=member,
            seed=derive(settings.train.seed, "attempt", iteration, round_, task.id, member),
        )
        for task in tasks
        for member in range(settings.train.group_size)
    ]


def _form_groups(tasks: Sequence[Task], trajectories: Sequence[Trajectory], size: int) -> list[Group]:
    return [
        Group(task=task, trajectories=tuple(trajectories[index * size : (index + 1) * size]))
        for index, task in enumerate(tasks)
    ]
