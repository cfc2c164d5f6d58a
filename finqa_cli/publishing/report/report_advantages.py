"""Computes the advantages of a training's attempts again, from the recorded rewards and by the run's own optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.algorithms.credit import assign_credit, attempt_weight, batch_credit
from finqa_cli.contracts import Optimizer
from finqa_cli.publishing.report.report_records import Episode
from finqa_cli.types import Credit, Group, Rewards, Task, Trajectory
from finqa_cli.wiring.build import make_optimizer_by_name


def recomputed_advantages(
    episodes: Sequence[Episode], settings: Mapping[str, Any]
) -> tuple[dict[str, float | None], list[str]]:
    """Returns the advantage of each trained attempt by id, and notes for the reader.

    Records contain rewards and no advantages, but an optimizer is a pure function of a step's groups. Parts that need
    the learner are not computed again: a KL penalty in the reward, and a value function.

    Args:
        episodes: The attempts of the run; those of evaluations are left out.
        settings: The settings of the run.
    """
    trained = [episode for episode in episodes if episode.phase == "train"]
    if not trained:
        return {}, []
    try:
        choice = settings["optimizer"]
        optimizer = make_optimizer_by_name(choice["name"], choice["options"])
        if optimizer.estimation() is not None:
            return {}, [
                f"{choice['name']} computes an advantage per token with its value function; these are not shown."
            ]
        found = {key: value for step in _by_step(trained) for key, value in _of_step(optimizer, step).items()}
    except Exception as error:  # a plugin's optimizer may be missing, or raise any exception
        return {}, [f"Advantages cannot be computed here: {error}"]
    notes = ["Advantages are recomputed from the recorded rewards with the optimizer of the run."]
    if settings.get("train", {}).get("shuffle_rewards"):
        return {}, ["The run shuffled its rewards, so advantages cannot be recomputed from the records."]
    if optimizer.kl_penalty() is not None:
        notes.append("They do not include the KL penalty on rewards, which the learner computed.")
    return found, notes


def _by_step(episodes: Sequence[Episode]) -> list[list[Episode]]:
    found: dict[int, list[Episode]] = defaultdict(list)
    for episode in episodes:
        found[episode.iteration].append(episode)
    return [found[step] for step in sorted(found)]


def _of_step(optimizer: Optimizer, episodes: Sequence[Episode]) -> dict[str, float | None]:
    members: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        members[episode.group].append(episode)
    groups = [_group(attempts) for attempts in members.values()]
    credits: tuple[Credit, ...] = batch_credit(optimizer, groups, assign_credit(optimizer, groups))
    return {
        attempt.id: None if credit.dropped or advantage is None else advantage * attempt_weight(attempt)
        for group, credit in zip(groups, credits, strict=True)
        for attempt, advantage in zip(group.trajectories, credit.advantages, strict=True)
    }


def _group(attempts: Sequence[Episode]) -> Group:
    first = attempts[0].outcome
    task = Task(id=first.question, prompt=first.prompt, split=first.split, cluster=first.company, kind=first.kind)
    return Group(task=task, trajectories=tuple(_trajectory(task, attempt) for attempt in attempts))


def _trajectory(task: Task, attempt: Episode) -> Trajectory:
    one = attempt.outcome
    rewards = None
    if one.reward is not None:
        rewards = Rewards(total=one.reward, components=one.components, weight=attempt.weight)
    return Trajectory(id=attempt.id, task=task, member=one.member, seed=0, status=one.status, rewards=rewards, turns=())
