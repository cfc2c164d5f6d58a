"""The rollouts of training without its updates: the same groups of the same tasks, played by any engine."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from finqa_cli.errors import ThresholdError
from finqa_cli.extend import registry
from finqa_cli.rollout.attempts import Attempt
from finqa_cli.rollout.measures import measured
from finqa_cli.rollout.seeds import TaskWalk, derive
from finqa_cli.rollout.stream import play_all
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.runs.run_folder import new_run, policy_inputs, write_manifest
from finqa_cli.runs.spending import SPENT, make_meter
from finqa_cli.runs.tracking import Tracking
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.training.rl.iteration_records import iteration_line, success
from finqa_cli.training.running_learner import rate_words
from finqa_cli.training.training_data import split_tasks, training_tasks
from finqa_cli.training.training_loop import RunContext
from finqa_cli.types import PolicyVersion, Trajectory
from finqa_cli.wiring.build import make_trackers, open_environment
from finqa_cli.wiring.policies import resolve_for
from finqa_cli.wiring.stage import EpisodeCount, Stage, stage

COMMAND = "train --dry-run"
_RULE = 60


@dataclass(slots=True, kw_only=True)
class DryRunResult:
    """The result of a dry run.

    Attributes:
        run: Folder of the run.
        planned: Planned steps.
        steps: Steps that were played completely.
        trajectories: Number of attempts, faults included.
        successful: Number of right attempts.
        reward_mean: Mean reward of the graded attempts; None without one.
        faults: Number of attempts that ended in faults.
        measures: The environment's own figures of all attempts.
        seconds: Wall-clock seconds.
    """

    run: Path
    planned: int
    steps: int = 0
    trajectories: int = 0
    successful: int = 0
    reward_mean: float | None = None
    faults: int = 0
    measures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


async def dry_run(settings: Settings, run: Path, *, reporter: Reporter, stopper: Stopper) -> DryRunResult:
    """Play the rollouts of a training run without updates, and write trajectories.jsonl and metrics.jsonl.

    There are `train.iterations` steps. Each plays `train.target_groups_per_iter` tasks (0: as many as fit the
    sandboxes), and each task `train.group_size` times.

    Raises:
        DataError: The training split has no tasks.
        ConfigError: A component or its options are wrong; then there is no run folder.
        InterruptedRun: A signal stopped it; running episodes have finished and are on disk, and the summary was shown.
        ThresholdError: More episodes of a step ended in faults than the settings allow.
    """
    problems = len(split_tasks(open_environment(settings, reporter), settings))  # a mistake leaves no folder
    policy = _policy(settings)
    inputs: dict[str, Any] = {"policy": await asyncio.to_thread(policy_inputs, policy)}
    meter = make_meter(settings, reporter, stopper)
    with new_run(run, command=COMMAND, settings=settings) as folder:
        meter.keep_in(partial(folder.note, SPENT))
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        context = RunContext(settings=settings, folder=folder, tracking=tracking, reporter=reporter, stopper=stopper)
        with tracking.run(to_public_dict(settings)):
            async with stage(
                settings,
                policy,
                run_id=run.name,
                reporter=reporter,
                run_dir=run,
                check_stop=stopper.check,
                episodes=lambda environment: _batch(settings) * settings.train.group_size,
                on_event=lambda name, facts: folder.event(name, **facts),
                meter=meter,
            ) as parts:
                inputs |= parts.inputs()
                write_manifest(run, COMMAND, parameters=to_public_dict(settings), inputs=inputs)
                _head(settings, run, problems, reporter)
                meter.plan(settings.train.iterations * _batch(settings) * settings.train.group_size, run, settings)
                result = await _Rollouts(context, parts).play()
                inputs |= parts.inputs()
        outputs = [run / "metrics.jsonl", run / "trajectories.jsonl"]
        write_manifest(run, COMMAND, parameters=to_public_dict(settings), inputs=inputs, outputs=outputs)
        folder.finish("completed")
    return result


def closing(result: DryRunResult) -> str:
    """Return the summary as text."""
    graded = result.trajectories - result.faults
    share = result.successful / graded if graded else 0.0
    lines = [
        f"  Total trajectories: {result.trajectories}",
        f"  Successful: {result.successful} ({share:.1%})",
        f"  Iterations completed: {result.steps}",
    ]
    if result.faults:
        lines.insert(2, f"  Faults, not scored: {result.faults}")
    return "\n".join(lines)


class _Rollouts:
    def __init__(self, context: RunContext, parts: Stage) -> None:
        self._context = context
        self._settings = context.settings
        self._parts = parts
        self._played: list[Trajectory] = []

    async def play(self) -> DryRunResult:
        began = time.perf_counter()
        train = self._settings.train
        tasks = await training_tasks(self._parts, self._settings, self._context.reporter)
        walk = TaskWalk(tasks, seed=train.seed)
        result = DryRunResult(run=self._context.folder.path, planned=train.iterations)
        self._context.reporter.start("train", train.iterations, own_lines=True)
        for step in range(train.iterations):
            attempts = self._attempts(walk, step)
            played = await self._step(step, attempts)
            result.steps += len(played) == len(attempts)
            if self._context.stopper.requested:
                break
        self._context.reporter.finish("train")
        self._sum_up(result, seconds=time.perf_counter() - began)
        if self._context.stopper.requested:
            self._context.reporter.line(f"{'-' * _RULE}\nStopped.\n{closing(result)}")
            self._context.stopper.check(f"played episodes are in {self._context.folder.path}")
        return result

    def _attempts(self, walk: TaskWalk, step: int) -> list[Attempt]:
        """Return the attempts of a step with the ids and seeds of training, where a policy plays the same episodes."""
        train, attempts = self._settings.train, []
        iteration = step + 1
        for number in range(_batch(self._settings)):
            _, task = walk.next()
            attempts += [
                Attempt(
                    id=f"train/{iteration:04d}/{number}/{task.id}/{member}",
                    task=task,
                    member=member,
                    seed=derive(train.seed, "attempt", iteration, number, task.id, member),
                )
                for member in range(train.group_size)
            ]
        return attempts

    async def _step(self, step: int, attempts: Sequence[Attempt]) -> list[Trajectory]:
        """Play and record the attempts; if a stop is requested, only those that were running."""
        began = time.perf_counter()
        shown = EpisodeCount(self._context.reporter, "rollout", len(attempts))

        async def record(trajectory: Trajectory) -> None:
            truth = compare_with_truth(self._parts.environment, trajectory)
            facts = {"phase": "train", "iteration": step + 1, **truth}
            recorded = self._context.folder.trajectory(trajectory, **facts)
            await asyncio.wrap_future(recorded)
            self._context.tracking.trajectory(trajectory, facts)
            shown.add(trajectory)

        with (
            self._context.work(f"rollouts of step {step + 1}", shown=False),
            self._context.stopper.keeping(self._parts.costs_money),
        ):
            played = await play_all(
                self._parts.player(self._settings, temperature=self._settings.generation.temperature),
                attempts,
                concurrency=self._settings.pool.concurrency,
                on_trajectory=record,
                stopping=lambda: self._context.stopper.requested,
            )
        self._context.reporter.drop("rollout")
        if played:
            seconds = time.perf_counter() - began
            self._played += played
            metrics = self._metrics(step, played, seconds)
            self._context.tracking.record(metrics)
            self._context.reporter.advance("train", step + 1, reward_mean=metrics["reward_mean"])
            self._context.reporter.line(iteration_line(step + 1, played, seconds=seconds))
            self._check_faults(step, played)
        return played

    def _metrics(self, step: int, played: Sequence[Trajectory], seconds: float) -> dict[str, Any]:
        graded = [each for each in played if each.rewards is not None]
        metrics = {
            "kind": "rollout",
            "iteration": step + 1,
            "episodes": len(played),
            "faults": len(played) - len(graded),
            **success(played),
            "reward_mean": sum(each.reward or 0.0 for each in graded) / len(graded) if graded else 0.0,
            "turns_mean": sum(len(each.turns) for each in played) / len(played),
        }
        measures = measured(self._parts.environment, played)
        return metrics | ({"measures": measures} if measures else {}) | {"timing": {"rollout_s": round(seconds, 4)}}

    def _check_faults(self, step: int, played: Sequence[Trajectory]) -> None:
        faults = [each for each in played if each.status.is_fault]
        if len(faults) > self._settings.pool.max_fault_share * len(played):
            raise ThresholdError(
                f"{len(faults)} of {len(played)} episodes of iteration {step + 1} ended in faults. "
                f"The first: {faults[0].error}",
                remedy=f"finqa show {shlex.quote(str(self._context.folder.path))} lists the errors",
            )

    def _sum_up(self, result: DryRunResult, *, seconds: float) -> None:
        graded = [each for each in self._played if each.rewards is not None]
        result.trajectories = len(self._played)
        result.successful = int(success(graded)["successful"])
        result.faults = len(self._played) - len(graded)
        result.reward_mean = sum(each.reward or 0.0 for each in graded) / len(graded) if graded else None
        result.measures = measured(self._parts.environment, self._played)
        result.seconds = seconds


def _head(settings: Settings, run: Path, problems: int, reporter: Reporter) -> None:
    engine, rule = settings.engine.name, "=" * _RULE
    lines = (
        f"Dry run ({run.name}): rollouts without training",
        rule,
        f"Model: {f'the {engine} engine' if _is_modelless(engine) else settings.model.name}",
        f"Problems: {problems}",
        f"Iterations: {settings.train.iterations}",
        f"Batch size: {_batch(settings)}",
        f"Learning rate: {rate_words(settings)}",
        rule,
    )
    reporter.line("\n".join(lines))


def _batch(settings: Settings) -> int:
    """Return the number of tasks of a step."""
    places = settings.pool.sandboxes * settings.pool.sessions_per_sandbox
    return settings.train.target_groups_per_iter or max(1, places // settings.train.group_size)


def _policy(settings: Settings) -> PolicyVersion:
    """Return the policy that plays; a modelless engine, such as `scripted`, needs none."""
    name = settings.engine.name
    return PolicyVersion(number=0, model="") if _is_modelless(name) else resolve_for(name, settings.model.name)


def _is_modelless(engine: str) -> bool:
    return registry().find("engine", engine).modelless
