"""Plays one episode that the user watches: of a named question, or of one drawn by the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME
from finqa_cli.errors import ConfigError, DataError, FinqaError
from finqa_cli.evaluation.evaluate import eval_split
from finqa_cli.rollout.attempts import Attempt, Player
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion, Task, Trajectory, Turn
from finqa_cli.wiring.stage import stage


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedEpisode:
    """An episode that the user watched.

    Attributes:
        trajectory: The episode.
        truth: Result of `compare_with_truth` for the episode.
        has_expert: Whether the environment can demonstrate the task.
        lacks_experts: Whether the environment cannot demonstrate some question of the evaluation split; not looked up
            if a model played.
    """

    trajectory: Trajectory
    truth: Mapping[str, Any]
    has_expert: bool
    lacks_experts: bool = False


async def play(
    settings: Settings,
    policy: PolicyVersion,
    *,
    question: str | None,
    reporter: Reporter,
    on_start: Callable[[Task], None],
    on_turn: Callable[[Turn], None],
) -> WatchedEpisode:
    """Plays one question: the named one, or one of the evaluation split drawn by the seed.

    Raises:
        DataError: There is no such question.
        ConfigError: `cluster.rollout_workers` is not 0.
    """
    if settings.cluster.rollout_workers:
        raise ConfigError(
            "One episode that is watched is played by this process, not by rollout workers.",
            remedy="--set cluster.rollout_workers=0",
        )
    chosen: list[Task] = []

    def count(environment: Environment) -> int:
        """Looks the question up, before anything is started, and returns the number of episodes."""
        chosen.append(_choose_task(environment, settings, question))
        return 1

    async with stage(settings, policy, run_id="play", reporter=reporter, episodes=count) as parts:
        (task,) = chosen
        on_start(task)
        player = parts.player(settings, temperature=settings.eval.temperature)
        assert isinstance(player, Player), "without rollout workers"
        attempt = Attempt(id=f"play/{task.id}/0", task=task, member=0, seed=derive(settings.train.seed, "play"))
        with player.seat() as seat:
            trajectory = await player.play(attempt, seat, on_turn)
        return WatchedEpisode(
            trajectory=trajectory,
            truth=compare_with_truth(parts.environment, trajectory),
            has_expert=_has_expert(parts.environment, trajectory),
            lacks_experts=settings.engine.name in ("human", "scripted") and _lacks_experts(parts.environment, settings),
        )


def _has_expert(environment: Environment, trajectory: Trajectory) -> bool:
    if environment.data().name == DEFAULT_NAME and trajectory.tools:
        return True  # the scripted engine reads the wording of generated questions
    try:
        return environment.demonstrate_task(trajectory.task.id, trajectory.messages) is not None
    except FinqaError:
        return False  # for example, the data has no gold query for this question


def _lacks_experts(environment: Environment, settings: Settings) -> bool:
    """Returns whether the environment refuses to demonstrate a question that `finqa eval scripted` would play."""
    try:
        for task in environment.tasks(eval_split(environment, settings)):
            if (prompt := environment.opening(task)) is not None:
                environment.demonstrate_task(task.id, prompt.messages)
    except FinqaError:
        return True
    return False


def _choose_task(environment: Environment, settings: Settings, question: str | None) -> Task:
    splits = environment.splits() if question else (eval_split(environment, settings),)
    tasks = [task for split in splits for task in environment.tasks(split)]
    if question is None:
        if not tasks:
            raise DataError(f"Split {splits[0]!r} of {environment.data().name!r} has no questions.")
        return draw(tasks, seed=derive(settings.train.seed, "play"), position=0, count=1)[0][0]
    task = next((task for task in tasks if task.id == question), None)
    if task is None:
        remedy = "leave --question out for a random question"
        raise DataError(f"{environment.data().name!r} has no question {question!r}.", remedy=remedy)
    return task
