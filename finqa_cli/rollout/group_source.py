"""Which attempts an iteration plays.

How many groups depends on settings and results, never on timing. Their tasks are the walk's next ones: while several
iterations are played at once, the order in which groups turn out to carry no signal decides which of them gets which.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace

from finqa_cli.algorithms.admission import admitted_groups, informative_share
from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.contracts import Optimizer
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import derive
from finqa_cli.rollout.task_walk import TaskWalk
from finqa_cli.settings import Settings
from finqa_cli.types import Credit, Group, Trajectory


@dataclass(slots=True)
class _Member:
    """One place in a group: what is played for it, and how that ended at last."""

    group: int
    attempt: Attempt
    again: bool = False
    trajectory: Trajectory | None = None


@dataclass(slots=True)
class _Forming:
    """A group that was started. Its credit stands once every member has ended."""

    members: list[_Member] = field(default_factory=list)
    group: Group | None = None
    credit: Credit | None = None


class GroupSource:
    """A source for a `Stream`: whole groups of fresh tasks, as many as `admitted_groups` lets start.

    A member whose retries are spent is played once more when nothing else is left to start: same task, seed and policy
    version, an id of its own. If that faults as well the fault stays, excluded from credit and never a reward of 0.

    Attributes:
        places: Of the walk, that its groups stand on.
    """

    def __init__(
        self,
        walk: TaskWalk,
        optimizer: Optimizer,
        settings: Settings,
        *,
        iteration: int,
        expected_share: float | None,
    ) -> None:
        self._walk = walk
        self._optimizer = optimizer
        self._train = settings.train
        self._iteration = iteration
        self._expected = expected_share
        self.places: list[int] = []
        places = settings.pool.sandboxes * settings.pool.sessions_per_sandbox
        self._round = min(len(walk), max(1, places // self._train.group_size))
        self._forming: list[_Forming] = []
        self._uninformative: list[int] = []
        self._queue: deque[_Member] = deque()
        self._again: list[tuple[int, int]] = []
        self._playing: dict[str, _Member] = {}
        self._admit()

    @property
    def groups(self) -> tuple[Group, ...]:
        """The whole ones, in the order in which they were started."""
        return tuple(forming.group for forming in self._forming if forming.group is not None)

    @property
    def credits(self) -> tuple[Credit, ...]:
        """One for each of `groups`."""
        return tuple(forming.credit for forming in self._forming if forming.credit is not None)

    @property
    def rounds(self) -> int:
        """How many times the sandboxes were filled with groups, rounded up."""
        return -(-len(self._forming) // self._round) if self._round else 0

    @property
    def informative_share(self) -> float:
        """Share of informative groups, as estimated from these and what was expected."""
        count = len(self.groups)
        return informative_share(count - len(self._uninformative), count, self._expected)

    def next(self) -> Attempt | None:
        """The next member of the groups that may start, else one that is to be played again."""
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
        """Takes a member's result; judges its group when it is the last one."""
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
        admitted = admitted_groups(
            self._uninformative,
            target=self._train.target_groups_per_iter,
            most=self._train.max_rollout_rounds * self._round,
            expected=self._expected,
        )
        while len(self._forming) < admitted:
            self._begin(number=len(self._forming))

    def _begin(self, number: int) -> None:
        place, task = self._walk.next()
        self.places.append(place)
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
