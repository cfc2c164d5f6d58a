"""A look before training: a few groups are played; where nothing can be learned from them it does not begin."""

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
from finqa_cli.types import Credit, Group, Task
from finqa_cli.wiring.stage import EpisodeCount, Stage

LONGEST_S = 25.0
"""Time after which training begins with what is known: long episodes cannot be judged in half a minute."""

MOST_GROUPS = 8
"""Groups without a difference in rewards after which nothing is expected of further ones."""

UNREADABLE = 0.9
"""Share of turns without a readable call from which the policy is taken not to know the form of calls."""

PHASE = "preflight"


async def check_learnable(
    parts: Stage,
    settings: Settings,
    tasks: Sequence[Task],
    optimizer: Optimizer,
    reporter: Reporter,
    stopper: Stopper,
) -> None:
    """Play groups until one is informative; ids and seeds are no ones of training.

    Raises:
        NothingToLearnError: `MOST_GROUPS` groups were played, and none is informative.
    """
    train = settings.train
    walk = TaskWalk(tasks, seed=derive(train.seed, PHASE))
    most = min(MOST_GROUPS, len(tasks))
    width = max(1, min(most, settings.pool.concurrency // train.group_size))
    groups: list[Group] = []
    shown = EpisodeCount(reporter, PHASE, None)
    try:
        async with asyncio.timeout(LONGEST_S):
            while len(groups) < most and not stopper.requested:
                fresh = [walk.next()[1] for _ in range(min(width, most - len(groups)))]
                played = await play_all(
                    parts.player(settings, temperature=settings.generation.temperature),
                    [attempt for task in fresh for attempt in _attempts(task, settings)],
                    concurrency=settings.pool.concurrency,
                    on_trajectory=shown.add,
                    stopping=lambda: stopper.requested,
                )
                groups += [
                    Group(task=task, trajectories=tuple(each for each in played if each.task.id == task.id))
                    for task in fresh
                ]
                if is_informative(groups, assign_credit(optimizer, groups)):
                    return
    except TimeoutError:
        return
    finally:
        reporter.drop(PHASE)
    if not stopper.requested and (obstacle := find_obstacle(groups)) is not None:
        raise obstacle


def is_informative(groups: Sequence[Group], credits: Sequence[Credit]) -> bool:
    """Whether the method would learn from one of the groups: it keeps one, and rewards differ."""
    rewards = {each.reward for group in groups for each in group.trajectories if each.reward is not None}
    return len(rewards) > 1 and any(not credit.dropped for credit in credits)


def find_obstacle(groups: Sequence[Group]) -> NothingToLearnError | None:
    """Return why nothing can be learned from groups of which none is informative; None where all ended in faults."""
    episodes = [each for group in groups for each in group.trajectories if each.reward is not None]
    if not episodes:
        return None
    turns = [turn for each in episodes for turn in each.turns]
    unreadable = sum(bool(turn.parse_error) for turn in turns)
    played = f"{len(episodes)} episodes at {len(groups)} questions"
    if turns and unreadable >= UNREADABLE * len(turns):
        return NothingToLearnError(
            f"{unreadable} of the policy's {len(turns)} turns have no readable tool call ({played}): it does not know "
            "the form of calls, and without calls no reward differs from another.",
            remedy="teach it the form: finqa sft, or train another --model; --no-preflight trains anyway",
        )
    rewards = sorted({each.reward for each in episodes if each.reward is not None})
    span = f"{rewards[0]:g}" if len(rewards) == 1 else f"the same in its group, {rewards[0]:g} to {rewards[-1]:g}"
    return NothingToLearnError(
        f"Every attempt of {played} earned {span}, so no group shows what is better.",
        remedy="choose questions that the policy answers at times, or teach it first: finqa sft; "
        "--no-preflight trains anyway",
    )


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
