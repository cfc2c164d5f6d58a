"""Rollouts of one iteration: groups of attempts, started until enough of them carry signal."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.contracts import Optimizer
from finqa_cli.rollout.group_source import GroupSource
from finqa_cli.rollout.seeds import derive
from finqa_cli.rollout.stream import Stream, TrajectoryListener
from finqa_cli.rollout.task_walk import TaskWalk
from finqa_cli.settings import Settings
from finqa_cli.types import Credit, Group, Rewards, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The groups of one iteration with their credit, and what the next one goes on from.

    Attributes:
        groups: In the order in which they were started.
        credits: One for each group.
        rounds: How often the sandboxes were filled with groups, begun ones included.
        places: Of the walk, that the groups stand on.
        informative_share: The estimate that the next iteration expects.
        seconds: From when they might begin, behind the groups of earlier iterations, to the last episode's end.
    """

    groups: tuple[Group, ...]
    credits: tuple[Credit, ...]
    rounds: int
    places: tuple[int, ...]
    informative_share: float
    seconds: float


class Collection:
    """Groups of fresh tasks for one iteration, played on a stream, without a barrier between them.

    As many start as `GroupSource` admits: until `target_groups_per_iter` of them are informative (0: no target), at
    most `max_rollout_rounds` times what the sandboxes hold. Each group that was started is finished and used.
    """

    def __init__(
        self,
        stream: Stream,
        walk: TaskWalk,
        optimizer: Optimizer,
        settings: Settings,
        *,
        iteration: int,
        on_trajectory: TrajectoryListener,
        expected_share: float | None = None,
    ) -> None:
        """Starts to play.

        Args:
            stream: Plays the attempts; when it is stopped, groups that are whole by then are collected.
            walk: Tasks are taken from it.
            optimizer: Judges which groups are informative.
            settings: Of the run.
            iteration: Goes into ids and seeds.
            on_trajectory: Hears each attempt as it ends, also one that faulted and is played once more.
            expected_share: `Collected.informative_share` of the iteration before.
        """
        self._optimizer = optimizer
        self._train = settings.train
        self._iteration = iteration
        self._source = GroupSource(walk, optimizer, settings, iteration=iteration, expected_share=expected_share)
        self._began = time.perf_counter()
        self._seconds = 0.0
        self._ended = stream.add(self._source, on_trajectory)
        self._ended.add_done_callback(self._clock)

    def _clock(self, _: asyncio.Future[None]) -> None:
        self._seconds = time.perf_counter() - self._began

    async def collected(self) -> Collected:
        """All groups, once every episode has ended."""
        await self._ended
        source = self._source
        groups, credits = source.groups, source.credits
        if self._train.shuffle_rewards:
            # Afterwards: which groups are played is decided by the true rewards, as in the run it is a control of.
            groups = tuple(shuffle_rewards(groups, seed=derive(self._train.seed, "shuffle", self._iteration)))
            credits = assign_credit(self._optimizer, groups)
        return Collected(
            groups=groups,
            credits=credits,
            rounds=source.rounds,
            places=tuple(source.places),
            informative_share=source.informative_share,
            seconds=self._seconds,
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
