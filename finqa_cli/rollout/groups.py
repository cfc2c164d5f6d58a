"""Rollouts of one iteration: groups of attempts, started until enough of them are informative.

The number of groups depends on settings and results, never on timing. Each group gets the next task of the walk. While
several iterations are played at once, the order in which groups turn out to be uninformative decides which iteration
gets which task.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from finqa_cli.algorithms.admission import admitted_groups, informative_share
from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.contracts import Optimizer
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import TaskWalk, derive
from finqa_cli.rollout.stream import Stream, TrajectoryListener
from finqa_cli.settings import Settings
from finqa_cli.types import Credit, Group, Rewards, Trajectory


@dataclass(slots=True)
class _Member:
    """One place in a group: its attempt, and the trajectory once it has ended."""

    group: int
    attempt: Attempt
    again: bool = False
    trajectory: Trajectory | None = None


@dataclass(slots=True)
class _Forming:
    """A group that was started. Its credit is assigned when every member has ended."""

    members: list[_Member] = field(default_factory=list)
    group: Group | None = None
    credit: Credit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The groups of one iteration with their credit, and the state that the next iteration continues from.

    Attributes:
        groups: Groups in the order in which they were started.
        credits: Credit of each group.
        rounds: Number of groups divided by the groups that fit the sandboxes at once, rounded up.
        places: Places of the walk that the groups play.
        informative_share: Estimated share of informative groups, for `expected_share` of the next iteration.
        seconds: Wall-clock seconds from the creation of the collection to the end of the last episode.
    """

    groups: tuple[Group, ...]
    credits: tuple[Credit, ...]
    rounds: int
    places: tuple[int, ...]
    informative_share: float
    seconds: float


class Collection:
    """Groups of fresh tasks for one iteration, played on a stream, without a barrier between them.

    It is the stream's source of attempts. Groups start until `target_groups_per_iter` of them are informative (0: no
    target; see `admitted_groups`), but at most `max_rollout_rounds` times the groups that fit the sandboxes. Each group
    that was started is finished and used.

    A member without retries left is played once more when nothing else is left to start, with the same task and seed
    and an id of its own. If it faults again, the fault stays: it is excluded from credit, and never a reward of 0.
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
        """Begin to play.

        Args:
            stream: Plays the attempts. When it is stopped, only groups that are complete by then are collected.
            walk: Source of the tasks.
            optimizer: Judges which groups are informative.
            settings: Settings of the run.
            iteration: Number of the iteration, part of ids and seeds.
            on_trajectory: Receives each attempt as it ends, also a faulted one that is played once more.
            expected_share: `Collected.informative_share` of the iteration before; None: there was none.
        """
        self._walk = walk
        self._optimizer = optimizer
        self._train = settings.train
        self._iteration = iteration
        self._expected = expected_share
        places = settings.pool.sandboxes * settings.pool.sessions_per_sandbox
        self._round = min(len(walk), max(1, places // self._train.group_size))
        self._places: list[int] = []
        self._forming: list[_Forming] = []
        self._uninformative: list[int] = []
        self._queue: deque[_Member] = deque()
        self._again: list[tuple[int, int]] = []
        self._playing: dict[str, _Member] = {}
        self._began = self._last_end = time.perf_counter()
        self._admit()
        self._ended = stream.add(self, on_trajectory)

    async def collected(self) -> Collected:
        """Return all groups, once every episode has ended."""
        await self._ended
        whole = [(forming.group, forming.credit) for forming in self._forming if forming.group and forming.credit]
        groups, credits = tuple(group for group, _ in whole), tuple(credit for _, credit in whole)
        share = informative_share(len(groups) - len(self._uninformative), len(groups), self._expected)
        if self._train.shuffle_rewards:
            # Only now: the true rewards must decide which groups are played, as in the run that this one controls.
            groups = tuple(shuffle_rewards(groups, seed=derive(self._train.seed, "shuffle", self._iteration)))
            credits = assign_credit(self._optimizer, groups)
        return Collected(
            groups=groups,
            credits=credits,
            rounds=-(-len(self._forming) // self._round) if self._round else 0,
            places=tuple(self._places),
            informative_share=share,
            seconds=self._last_end - self._began,
        )

    def next(self) -> Attempt | None:
        """Return the next attempt of the groups that may start, else one to play again; None if there is neither."""
        if self._queue:
            member = self._queue.popleft()
        elif self._again:
            group, place = heapq.heappop(self._again)
            member = self._forming[group].members[place]
        else:
            return None
        self._playing[member.attempt.id] = member
        return member.attempt

    def done(self, attempt: Attempt, trajectory: Trajectory) -> None:
        """Record a member's result; assign the group's credit when it is the last one."""
        self._last_end = time.perf_counter()
        member = self._playing.pop(attempt.id)
        if trajectory.status.is_fault and not member.again:
            member.again = True
            member.attempt = replace(attempt, id=f"{attempt.id}-again")
            heapq.heappush(self._again, (member.group, attempt.member))
            return
        member.trajectory = trajectory
        forming = self._forming[member.group]
        trajectories = [each.trajectory for each in forming.members if each.trajectory is not None]
        if len(trajectories) == len(forming.members):
            forming.group = Group(task=attempt.task, trajectories=tuple(trajectories))
            (forming.credit,) = assign_credit(self._optimizer, [forming.group])
            if forming.credit.dropped:
                self._uninformative.append(member.group)
                self._admit()

    def _admit(self) -> None:
        """Queue the attempts of as many further groups as may start."""
        admitted = admitted_groups(
            self._uninformative,
            target=self._train.target_groups_per_iter,
            most=self._train.max_rollout_rounds * self._round,
            expected=self._expected,
        )
        for number in range(len(self._forming), admitted):
            place, task = self._walk.next()
            self._places.append(place)
            forming = _Forming()
            for member in range(self._train.group_size):
                attempt = Attempt(
                    id=f"train/{self._iteration:04d}/{number}/{task.id}/{member}",
                    task=task,
                    member=member,
                    seed=derive(self._train.seed, "attempt", self._iteration, number, task.id, member),
                )
                forming.members.append(_Member(number, attempt))
            self._forming.append(forming)
            self._queue.extend(forming.members)


def shuffle_rewards(groups: Sequence[Group], *, seed: int) -> list[Group]:
    """Permute the rewards of an iteration at random over all its graded episodes: a negative control."""
    pool = [item.rewards for group in groups for item in group.trajectories if item.rewards is not None]
    random.Random(seed).shuffle(pool)
    shuffled = iter(pool)

    def assign(trajectory: Trajectory) -> Trajectory:
        rewards: Rewards | None = next(shuffled) if trajectory.rewards is not None else None
        return replace(trajectory, rewards=rewards)

    return [replace(group, trajectories=tuple(map(assign, group.trajectories))) for group in groups]
