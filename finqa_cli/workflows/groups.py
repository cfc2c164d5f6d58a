"""Rollouts of one iteration: groups of attempts, started until enough of them carry signal."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from finqa_cli.contracts import Optimizer
from finqa_cli.learn import assign_credit
from finqa_cli.rollout.attempts import Player
from finqa_cli.rollout.scheduler import play_stream
from finqa_cli.rollout.seeds import derive
from finqa_cli.settings import Settings
from finqa_cli.types import Credit, Group, Rewards, Task, Trajectory
from finqa_cli.workflows.group_source import GroupSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The groups of one iteration with their credit, and what the next one goes on from.

    Attributes:
        groups: In the order in which they were started.
        credits: One for each group.
        rounds: How often the sandboxes were filled with groups, begun ones included.
        cursor: Where the next draw of tasks goes on.
        informative_share: The estimate that the next iteration expects.
    """

    groups: tuple[Group, ...]
    credits: tuple[Credit, ...]
    rounds: int
    cursor: int
    informative_share: float


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
    expected_share: float | None = None,
) -> Collected:
    """Plays groups of fresh tasks under the policy that the engine serves now, without a barrier between them.

    As many start as `GroupSource` admits: until `target_groups_per_iter` of them are informative (0: no target), at
    most `max_rollout_rounds` times what the sandboxes hold. Each group that was started is finished and used.

    Args:
        player: Plays the attempts.
        tasks: Drawn from in an endless seeded walk.
        optimizer: Judges which groups are informative.
        settings: Of the run.
        iteration: Goes into ids and seeds.
        cursor: Place in the walk.
        on_trajectory: Hears each attempt as it ends, also one that faulted and is played once more.
        stopping: When it turns true no attempt starts any more; the groups that are whole by then are returned.
        expected_share: `Collected.informative_share` of the iteration before.
    """
    source = GroupSource(tasks, optimizer, settings, iteration=iteration, cursor=cursor, expected_share=expected_share)
    await play_stream(
        player,
        source,
        concurrency=settings.pool.concurrency,
        on_trajectory=on_trajectory,
        stopping=stopping,
    )
    groups, credits = source.groups, source.credits
    if settings.train.shuffle_rewards:
        # Afterwards: which groups are played is decided by the true rewards, as in the run that this is a control of.
        groups = tuple(shuffle_rewards(groups, seed=derive(settings.train.seed, "shuffle", iteration)))
        credits = assign_credit(optimizer, groups)
    return Collected(
        groups=groups,
        credits=credits,
        rounds=source.rounds,
        cursor=source.cursor,
        informative_share=source.informative_share,
    )


def shuffle_rewards(groups: Sequence[Group], *, seed: int) -> list[Group]:
    """The negative control: the rewards of an iteration dealt out again at random over all its graded episodes."""
    pool = [item.rewards for group in groups for item in group.trajectories if item.rewards is not None]
    random.Random(seed).shuffle(pool)
    dealt = iter(pool)

    def deal(trajectory: Trajectory) -> Trajectory:
        rewards: Rewards | None = next(dealt) if trajectory.rewards is not None else None
        return replace(trajectory, rewards=rewards)

    return [replace(group, trajectories=tuple(map(deal, group.trajectories))) for group in groups]
