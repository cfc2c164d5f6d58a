"""Check before training: a few groups are played, and training does not start if nothing can be learned from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import NothingToLearnError
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.seeds import TaskWalk, derive
from finqa_cli.rollout.stream import play_all
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.training.estimate import Pace
from finqa_cli.types import Credit, Group, Task, Trajectory
from finqa_cli.wiring.stage import EpisodeCount, Stage

LONGEST_S = 20.0
"""Seconds after which the played groups are judged, so that a command that cannot train ends within half a minute."""

MOST_GROUPS = 8
"""Groups that are played before training is refused, if none is informative."""

FEWEST_GROUPS = 4
"""Groups that are enough to refuse training when the time is over."""

FEWEST_EPISODES = 16
"""Episodes that are enough to refuse training when the time is over, or when calls are unreadable."""

UNREADABLE = 0.9
"""Share of turns without a readable call from which on the policy counts as unable to write calls."""

PHASE = "preflight"


async def check_learnable(
    parts: Stage,
    settings: Settings,
    tasks: Sequence[Task],
    optimizer: Optimizer,
    reporter: Reporter,
    stopper: Stopper,
) -> Pace:
    """Play groups until one is informative. Their ids and seeds differ from those of training.

    Args:
        parts: Plays the episodes.
        settings: Settings of the run.
        tasks: Training tasks.
        optimizer: Judges which groups are informative.
        reporter: Shows the progress.
        stopper: Stops the check after signals.

    Returns:
        The episodes that were played and their time, by which the length of the run is estimated.

    Raises:
        NothingToLearnError: `MOST_GROUPS` groups were played, or fewer within `LONGEST_S`, and none is informative; or
            episodes have no readable calls.
    """
    train = settings.train
    walk = TaskWalk(tasks, seed=derive(train.seed, PHASE))
    most = min(MOST_GROUPS, len(tasks))
    width = max(1, min(most, settings.pool.concurrency // train.group_size))
    groups: dict[str, list[Trajectory]] = {}
    shown = EpisodeCount(reporter, PHASE, None)

    pace = Pace()

    def add(trajectory: Trajectory) -> None:
        pace.add(trajectory)
        shown.add(trajectory)
        groups.setdefault(trajectory.task.id, []).append(trajectory)
        played = [each for members in groups.values() for each in members]
        if len(played) >= FEWEST_EPISODES and (obstacle := find_unreadable(played, len(groups))) is not None:
            raise obstacle

    def whole() -> list[Group]:
        return [
            Group(task=members[0].task, trajectories=tuple(sorted(members, key=lambda each: each.member)))
            for members in groups.values()
            if len(members) == train.group_size
        ]

    late = asyncio.timeout(LONGEST_S)
    try:
        async with late:
            while len(groups) < most and not stopper.requested:
                fresh = [walk.next()[1] for _ in range(min(width, most - len(groups)))]
                with reporter.work("preflight", shown=False):
                    await play_all(
                        parts.player(settings, temperature=settings.generation.temperature),
                        [attempt for task in fresh for attempt in _attempts(task, settings)],
                        concurrency=settings.pool.concurrency,
                        on_trajectory=add,
                        stopping=lambda: stopper.requested,
                    )
                if is_informative(whole(), assign_credit(optimizer, whole())):
                    return pace
    except TimeoutError:
        if not late.expired():
            raise
    finally:
        reporter.drop(PHASE)
    if stopper.requested:
        return pace
    played = whole()
    enough = len(played) >= FEWEST_GROUPS and len(played) * train.group_size >= FEWEST_EPISODES
    if len(played) < most and not enough:
        reporter.line(f"Preflight: {len(played)} groups were played in {LONGEST_S:g} s, too few for a decision.")
    elif not is_informative(played, assign_credit(optimizer, played)) and (
        obstacle := find_obstacle(played, own_reward(settings))
    ):
        raise obstacle
    return pace


def is_informative(groups: Sequence[Group], credits: Sequence[Credit]) -> bool:
    """Return whether the optimizer would learn from a group: it drops not all of them, and rewards differ."""
    rewards = {each.reward for group in groups for each in group.trajectories if each.reward is not None}
    return len(rewards) > 1 and any(not credit.dropped for credit in credits)


def own_reward(settings: Settings) -> str:
    """Return the file or function of the user that computes the reward; empty for a reward of finqa or a plugin."""
    if settings.reward.name == "function":
        return str(settings.reward.options["function"])
    name = settings.environment.name
    return f"reward() of {name}" if name.endswith(".py") else ""


def find_obstacle(groups: Sequence[Group], own: str = "") -> NothingToLearnError | None:
    """Return why nothing can be learned from groups that are all uninformative; None if every episode was a fault.

    Args:
        groups: The groups that were played.
        own: See `own_reward`.
    """
    episodes = [each for group in groups for each in group.trajectories if each.reward is not None]
    if not episodes:
        return None
    if (unreadable := find_unreadable(episodes, len(groups))) is not None:
        return unreadable
    rewards = sorted({each.reward for each in episodes if each.reward is not None})
    span = f"{rewards[0]:g}" if len(rewards) == 1 else f"the same in its group, {rewards[0]:g} to {rewards[-1]:g}"
    return NothingToLearnError(
        f"Every attempt of {_count(episodes, len(groups))} earned {span}, so no group shows which attempt is better.",
        remedy=f"{advise_on_reward(own)}choose questions that the policy answers sometimes, or train it by imitation "
        "first: finqa sft DEMONSTRATIONS; "
        "--no-preflight, which trains anyway",
    )


def advise_on_reward(own: str) -> str:
    """Return the first step of a remedy where the user's own reward may give all attempts the same."""
    return f"correct {own} if right and wrong answers earn the same; " if own else ""


def find_unreadable(episodes: Sequence[Trajectory], questions: int) -> NothingToLearnError | None:
    """Return the error for episodes in which nearly no turn has a readable call and all rewards are equal; else None.

    Args:
        episodes: The episodes.
        questions: Number of their questions.
    """
    graded = [each for each in episodes if each.reward is not None]
    turns = [turn for each in graded for turn in each.turns]
    unreadable = sum(bool(turn.parse_error) for turn in turns)
    if not turns or unreadable < UNREADABLE * len(turns) or len({each.reward for each in graded}) > 1:
        return None
    return NothingToLearnError(
        f"{unreadable} of the policy's {len(turns)} turns have no valid tool call "
        f"({_count(graded, questions)}): it does not know the format of calls, and without calls all "
        "rewards are equal.",
        remedy="teach it the format: finqa sft DEMONSTRATIONS, or train another --model; --no-preflight trains anyway",
    )


def _count(episodes: Sequence[Trajectory], questions: int) -> str:
    return f"{len(episodes)} episodes at {questions} questions"


def _attempts(task: Task, settings: Settings) -> list[Attempt]:
    return [
        Attempt(
            id=f"{PHASE}/{task.id}/{member}",
            task=task,
            member=member,
            seed=derive(settings.train.seed, PHASE, task.id, member),
        )
        for member in range(settings.train.group_size)
    ]
