"""Evaluation: the rollout code of training without a learner, on a whole split or on one visible question."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment
from finqa_cli.errors import DataError
from finqa_cli.evaluation.cluster_nouns import cluster_noun
from finqa_cli.evaluation.reward_tests import reward_facts
from finqa_cli.extend import registry
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.measures import measured
from finqa_cli.rollout.seeds import derive, draw
from finqa_cli.rollout.stream import TrajectoryListener, play_all
from finqa_cli.runs.durable_files import write_csv, write_json
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import JsonlWriter
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import new_run, policy_inputs, write_manifest
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.statistics import (
    EvalReport,
    breakdown_rows,
    choose_samples,
    evaluation_metrics,
    item_rows,
    read_outcome,
    summarize,
)
from finqa_cli.types import DataInfo, PolicyVersion, Task, Trajectory, Turn
from finqa_cli.types.splits import choose_split
from finqa_cli.wiring.policies import resolve_for
from finqa_cli.wiring.stage import EpisodeCount, Stage, stage

OUTPUTS = (
    "report.json",
    "metrics.json",
    "breakdown.csv",
    "items.csv",
    "trajectories.jsonl",
    "samples/predictions.jsonl",
)
"""Files of an evaluation; the manifest has their digests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """An evaluation: its folder, what was asked (the split that the tasks name), and its report."""

    run: Path
    target: str
    data: DataInfo
    split: str
    report: EvalReport


async def evaluate(settings: Settings, target: str, run: Path, *, reporter: Reporter, stopper: Stopper) -> EvalResult:
    """Plays every question of the evaluation split; writes report.json, items.csv, manifest.json and `write_metrics`.

    Raises:
        DataError: The split has no questions.
        ConfigError: A component or its options are wrong; then there is no run folder.
        InterruptedRun: A signal stopped it; finished episodes are on disk.
    """
    policy = policy_of(target, settings.engine.name)
    inputs: dict[str, Any] = {"policy": await asyncio.to_thread(policy_inputs, policy)}
    parameters = _parameters(settings, target)
    trajectories: list[Trajectory] = []
    with new_run(run, command="eval", settings=settings) as folder:
        folder.link(target)
        tracking = Tracking(folder, (), reporter)

        async def record(trajectory: Trajectory) -> None:
            await asyncio.wrap_future(folder.trajectory(trajectory, phase="eval", iteration=0))
            trajectories.append(trajectory)
            tracking.trajectory(trajectory)

        with tracking.run(to_public_dict(settings)):
            async with stage(
                settings,
                policy,
                run_id=folder.path.name,
                reporter=reporter,
                check_stop=stopper.check,
                run_dir=folder.path,
                episodes=lambda environment: len(eval_tasks(environment, settings)) * settings.eval.attempts,
                on_event=lambda name, facts: folder.event(name, **facts),
            ) as parts:
                tasks = eval_tasks(parts.environment, settings)
                if not tasks:
                    split = eval_split(parts.environment, settings)
                    raise DataError(f"Split {split!r} of {parts.data.name!r} has no questions.")
                folder.plan(len(tasks) * settings.eval.attempts)
                inputs |= parts.inputs()
                write_manifest(folder.path, "eval", parameters=parameters, inputs=inputs)
                report = await evaluate_tasks(
                    parts, settings, tasks, on_trajectory=record, reporter=reporter, stopper=stopper, key="eval"
                )
                inputs |= parts.inputs()
                stopper.check(f"finished episodes are in {folder.path / 'trajectories.jsonl'}")
            facts = {"target": target, "data": asdict(parts.data), "split": tasks[0].split}
            write_json(folder.path / "report.json", {**facts, **report.to_dict()})
            trajectories.sort(key=lambda trajectory: trajectory.id)
            write_csv(folder.path / "items.csv", item_rows(trajectories))
            write_metrics(folder.path, trajectories, {**facts, "measures": report.measures})
            outputs = [folder.path / name for name in OUTPUTS]
            await asyncio.to_thread(
                write_manifest, folder.path, "eval", parameters=parameters, inputs=inputs, outputs=outputs
            )
            folder.finish("completed")
            tracking.evaluated(0, report.to_dict())
            return EvalResult(run=folder.path, target=target, data=parts.data, split=tasks[0].split, report=report)


async def evaluate_tasks(
    parts: Stage,
    settings: Settings,
    tasks: Sequence[Task],
    *,
    on_trajectory: TrajectoryListener,
    reporter: Reporter,
    stopper: Stopper,
    key: str,
) -> EvalReport:
    """Plays the tasks at the evaluation temperature, `eval.attempts` times each, and sums up."""
    attempts = [
        Attempt(
            id=f"{key}/{task.id}/{member}",
            task=task,
            member=member,
            seed=derive(settings.train.seed, "eval", task.id, member),
        )
        for task in tasks
        for member in range(settings.eval.attempts)
    ]
    shown = EpisodeCount(reporter, "eval", len(attempts))

    async def listen(trajectory: Trajectory) -> None:
        if (recorded := on_trajectory(trajectory)) is not None:
            await recorded
        shown.add(trajectory)

    trajectories = await play_all(
        parts.player(settings, temperature=settings.eval.temperature),
        attempts,
        concurrency=settings.pool.concurrency,
        on_trajectory=listen,
        stopping=lambda: stopper.requested,
    )
    reporter.finish("eval")
    environment = settings.environment
    return summarize(
        trajectories,
        measured(parts.environment, trajectories),
        clustered_by=cluster_noun(environment.name, environment.options),
    )


def eval_tasks(environment: Environment, settings: Settings) -> Sequence[Task]:
    """Returns the questions of the evaluation split, or `eval.limit` of them by `eval.seed`, alike for every seed."""
    return _limited(environment.tasks(eval_split(environment, settings)), settings)


def held_out_tasks(environment: Environment, settings: Settings) -> Sequence[Task]:
    """Returns the questions to evaluate on while training, as `eval_tasks`; none where there is no split for them."""
    split = held_out_split(environment, settings)
    return _limited(environment.tasks(split), settings) if split else ()


def eval_split(environment: Environment, settings: Settings) -> str:
    """Returns the split to evaluate on: of those that the settings name, the first that the environment has."""
    return choose_split(settings.data.eval_split, environment.splits())


def held_out_split(environment: Environment, settings: Settings) -> str:
    """Returns the split to evaluate on while training, or nothing.

    It is `eval_split`, but for the training split where that is a last resort instead of the one that was asked for.
    """
    split, asked = eval_split(environment, settings), settings.data.eval_split.partition(",")[0].strip()
    return "" if split == settings.data.train_split != asked else split


def _limited(tasks: Sequence[Task], settings: Settings) -> Sequence[Task]:
    if not settings.eval.limit:
        return tasks
    return draw(tasks, seed=derive(settings.eval.seed, "eval-limit"), position=0, count=settings.eval.limit)[0]


def is_engine(target: str) -> bool:
    """Whether the target is the name of an engine, such as `scripted`, instead of a policy."""
    return any(component.name == target for component in registry().components("engine"))


def policy_of(target: str, engine: str) -> PolicyVersion:
    """Resolves the policy of a target; an engine that needs none (`scripted`) has an empty one."""
    return PolicyVersion(number=0, model="") if is_engine(target) else resolve_for(engine, target)


async def play(
    settings: Settings,
    policy: PolicyVersion,
    *,
    question: str | None,
    reporter: Reporter,
    on_start: Callable[[Task], None],
    on_turn: Callable[[Turn], None],
) -> Trajectory:
    """Plays one question: the named one, or one of the evaluation split drawn by the seed.

    Raises:
        DataError: There is no such question.
    """
    chosen: list[Task] = []

    def count(environment: Environment) -> int:
        """The question is looked up before anything is started."""
        chosen.append(_choose_task(environment, settings, question))
        return 1

    async with stage(settings, policy, run_id="play", reporter=reporter, episodes=count) as parts:
        (task,) = chosen
        on_start(task)
        player = parts.player(settings, temperature=settings.eval.temperature)
        attempt = Attempt(id=f"play/{task.id}/0", task=task, member=0, seed=derive(settings.train.seed, "play"))
        with player.seat() as seat:
            return await player.play(attempt, seat, on_turn)


def _choose_task(environment: Environment, settings: Settings, question: str | None) -> Task:
    splits = environment.splits() if question else (eval_split(environment, settings),)
    tasks = [task for split in splits for task in environment.tasks(split)]
    if question is None:
        if not tasks:
            raise DataError(f"Split {splits[0]!r} of {environment.data().name!r} has no questions.")
        return draw(tasks, seed=derive(settings.train.seed, "play"), position=0, count=1)[0][0]
    task = next((task for task in tasks if task.id == question), None)
    if task is None:
        remedy = "leave --question out, and one is drawn"
        raise DataError(f"{environment.data().name!r} has no question {question!r}.", remedy=remedy)
    return task


def write_metrics(run: Path, trajectories: Sequence[Trajectory], facts: Mapping[str, Any]) -> None:
    """Writes metrics.json, breakdown.csv with a row per attempt, and samples/predictions.jsonl, some of each ending."""
    records = {trajectory.id: trajectory_record(trajectory) for trajectory in trajectories}
    outcomes = {name: read_outcome(record) for name, record in records.items()}
    write_json(run / "metrics.json", {"schema_version": 1, **facts, **evaluation_metrics(list(outcomes.values()))})
    write_csv(run / "breakdown.csv", breakdown_rows(list(outcomes.values())))
    names = {(outcome.question, outcome.member): name for name, outcome in outcomes.items()}
    samples = JsonlWriter(run / "samples" / "predictions.jsonl")
    for outcome in choose_samples(list(outcomes.values())):
        record = records[names[outcome.question, outcome.member]]
        samples.append({"failure_reason": outcome.reason, "answer": outcome.answer, **record})
    samples.close()


def _parameters(settings: Settings, target: str) -> dict[str, Any]:
    """Returns what the results depend on."""
    public = to_public_dict(settings)
    sections = ("eval", "generation", "environment", "engine", "codec")
    return {
        "target": target,
        "split": settings.data.eval_split,
        "seed": settings.train.seed,
        **{section: public[section] for section in sections},
        "reward": reward_facts(settings),
    }
