"""The training loop itself: one update after the other, each on disk before the next; rollouts may run ahead."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finqa_cli.algorithms.group_report import token_ages, without_over_age
from finqa_cli.contracts import Learner, Optimizer, Sleeper, TokenEngine
from finqa_cli.errors import FinqaError, ThresholdError
from finqa_cli.evaluation.evaluate import evaluate_tasks
from finqa_cli.rollout.groups import Collected, Collection
from finqa_cli.rollout.measures import measured
from finqa_cli.rollout.stream import Stream, streaming
from finqa_cli.rollout.task_walk import TaskWalk
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import storage
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.tracking import Tracking, iteration_metrics
from finqa_cli.settings import Settings
from finqa_cli.training.rl.lookahead import Lookahead
from finqa_cli.training.rl.probe import Probe
from finqa_cli.training.rl.steps import step_line, success, summary
from finqa_cli.training.rl.updates import Updates
from finqa_cli.training.rl.weight_sync import Synced, load_version, sync_weights
from finqa_cli.types import PolicyVersion, Status, Task, Trajectory, UpdateReport
from finqa_cli.wiring.pool_watch import EpisodeCount
from finqa_cli.wiring.stage import Stage


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a checkpoint brings back besides weights.

    Attributes:
        iteration: Finished iterations.
        cursor: Place in the endless seeded walk over the tasks.
        unsettled: Places below the cursor that are still to be trained on; see `TaskWalk`.
        policy: What the engine serves.
        published: Number of the newest published version; the engine lags behind it when `sync_every` is above 1.
        informative_share: Share of groups with signal that the next iteration expects; None before the first.
        probe_tolerance: What was measured when the run began; see `Probe.state`.
    """

    iteration: int = 0
    cursor: int = 0
    unsettled: Sequence[int] = ()
    policy: PolicyVersion
    published: int = 0
    informative_share: float | None = None
    probe_tolerance: Mapping[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Drives the components of one run. They know nothing of each other or of it."""

    settings: Settings
    parts: Stage
    engine: TokenEngine
    learner: Learner
    optimizer: Optimizer
    tasks: Sequence[Task]
    held_out: Sequence[Task]
    folder: RunFolder
    tracking: Tracking
    reporter: Reporter
    stopper: Stopper
    progress: Progress
    walk: TaskWalk = field(init=False)
    updates: Updates = field(init=False)
    probe: Probe = field(init=False)

    def __post_init__(self) -> None:
        train = self.settings.train
        self.walk = TaskWalk(
            self.tasks, seed=train.seed, cursor=self.progress.cursor, unsettled=self.progress.unsettled
        )
        longest = self.settings.generation.max_gen_tokens
        self.updates = Updates(self.learner, self.optimizer, train, max_gen_tokens=longest)
        assert self.parts.codec is not None, "the stage gives every token engine a codec"
        codec, probed = self.parts.codec, self.progress.probe_tolerance
        self.probe = Probe(self.engine, self.learner, codec, self.tasks, self.settings, self.folder, probed)

    async def run(self, *, fresh: bool) -> None:
        """All iterations that are left. A fresh run is evaluated and saved before the first."""
        train = self.settings.train
        async with streaming(
            self.parts.player(self.settings, temperature=self.settings.generation.temperature),
            concurrency=self.settings.pool.concurrency,
            stopping=lambda: self.stopper.requested,
        ) as stream:
            if self.progress.policy.number == self.progress.published:
                await self.probe.begin(self.progress.policy)
            if fresh:
                await self._evaluate(stream)
                await self._checkpoint()
            self.reporter.start("train", train.iterations)
            rollouts = Lookahead(
                lambda iteration: self._collect(stream, iteration),
                trained=self.progress.iteration,
                iterations=train.iterations,
                ahead=train.max_staleness,
            )
            while self.progress.iteration < train.iterations:
                await self._iterate(stream, rollouts)
                iteration, last = self.progress.iteration, self.progress.iteration == train.iterations
                if last or (train.eval_every and iteration % train.eval_every == 0):
                    await self._evaluate(stream)
                if last or iteration % train.checkpoint_every == 0:
                    await self._checkpoint()
            self.reporter.finish("train")
        records = read_jsonl(self.folder.path / "metrics.jsonl")
        self.reporter.line(summary([record for record in records if record["kind"] == "train"]))

    def _collect(self, stream: Stream, iteration: int) -> Collection:
        shown = EpisodeCount(self.reporter, self._rollout_phase(iteration), None)

        async def heard(trajectory: Trajectory) -> None:
            await self._record(trajectory, "train", iteration)
            shown.add(trajectory)

        return Collection(
            stream,
            self.walk,
            self.optimizer,
            self.settings,
            iteration=iteration,
            on_trajectory=heard,
            expected_share=self.progress.informative_share,
        )

    async def _iterate(self, stream: Stream, rollouts: Lookahead) -> None:
        started, idle = time.perf_counter(), stream.idle_s
        iteration = self.progress.iteration + 1
        collected = await rollouts.next()
        self.reporter.drop(self._rollout_phase(iteration))
        await self._check_stop(stream)
        self._check_faults(collected)
        collected = self._within_age(collected)
        self.tracking.groups(collected)
        waited = time.perf_counter()
        reports: list[UpdateReport] = []
        async with self._engine_asleep():
            try:
                async for report in self.updates.take(collected.groups, collected.credits, iteration=iteration):
                    reports.append(report)
                    self.tracking.update(iteration, report)
            except FinqaError as error:
                raise _of_iteration(error, iteration, self.folder.path) from error
        updated = time.perf_counter()
        serving, learnt = self.progress.policy.number, self.progress.published
        synced = await self._sync(iteration, changed=bool(reports))
        found = {**self.updates.metrics, **(synced.metrics if synced else {})}
        ended = time.perf_counter()
        self.walk.settle(collected.places)
        self.progress.iteration = iteration
        self.progress.informative_share = collected.informative_share
        rollouts.advance()
        timing = {
            "rollout_s": collected.seconds,
            "learner_waits_s": waited - started,
            "rollouts_wait_s": stream.idle_s - idle,
            "update_s": updated - waited,
            "sync_s": ended - updated,
            **(synced.timing if synced else {}),
            "iteration_s": time.perf_counter() - started,
        }
        ages = token_ages(collected.groups, collected.credits, version=learnt)
        episodes = [trajectory for group in collected.groups for trajectory in group.trajectories]
        measures = measured(self.parts.environment, episodes)
        metrics = iteration_metrics(iteration, serving, collected, ages, reports, found, timing, measures)
        self.tracking.iteration({**metrics, **success(episodes)})
        self.reporter.line(step_line(iteration - 1, episodes, seconds=timing["iteration_s"]))

    def _within_age(self, collected: Collected) -> Collected:
        train = self.settings.train
        credits = without_over_age(
            collected.groups,
            collected.credits,
            version=self.progress.published,
            most=train.max_staleness + train.sync_every - 1,
        )
        return replace(collected, credits=credits)

    @asynccontextmanager
    async def _engine_asleep(self) -> AsyncIterator[None]:
        """An engine that shares its device with the learner gives it up for this block.

        A block that fails leaves it asleep: the run ends, and the learner may still hold the device.
        """
        engine = self.engine
        if not (isinstance(engine, Sleeper) and engine.sleeps):
            yield
            return
        await engine.sleep()
        yield
        await engine.wake()

    async def _sync(self, iteration: int, *, changed: bool) -> Synced | None:
        """Gives the engine the new weights when that is due, while episodes go on."""
        self.progress.published += changed
        train, version = self.settings.train, self.progress.published
        due = iteration % train.sync_every == 0 or iteration == train.iterations
        if not due or self.progress.policy.number == version:
            return None
        synced = await sync_weights(
            self.learner,
            self._load,
            self.probe,
            version,
            policies=self.folder.path / "policies",
            keep=1 + train.max_staleness,
        )
        self.progress.policy = synced.policy
        self.tracking.weights(synced.policy, {**synced.metrics, **synced.timing})
        return synced

    async def _load(self, policy: PolicyVersion) -> None:
        await load_version(self.engine, policy, self.settings.train.sync_wait_s, self.folder, self.stopper)

    async def _evaluate(self, stream: Stream) -> None:
        if not self.held_out:
            return
        iteration = self.progress.iteration
        report = await evaluate_tasks(
            self.parts,
            self.settings,
            self.held_out,
            on_trajectory=lambda trajectory: self._record(trajectory, "eval", iteration),
            reporter=self.reporter,
            stopper=self.stopper,
            key=f"eval/{iteration:04d}",
        )
        await self._check_stop(stream)
        if report.faults > self.settings.pool.max_fault_share * report.episodes:
            raise ThresholdError(
                f"{report.faults} of {report.episodes} episodes of the evaluation ended in faults.",
                remedy=f"see their errors in {self.folder.path / 'trajectories.jsonl'}",
            )
        self.tracking.evaluation(iteration, self.progress.policy.number, self.settings.eval.temperature, report)

    async def _checkpoint(self) -> None:
        progress = self.progress
        state = {
            "cursor": self.walk.cursor,
            "unsettled": self.walk.unsettled,
            "informative_share": progress.informative_share,
            "policy_version": progress.published,
            "serving_version": progress.policy.number,
            "probe_tolerance": self.probe.state,
            "model": self.settings.model.name,
        }
        # in a thread as a whole: episodes that go on meanwhile do not wait for checksums and disk
        await asyncio.to_thread(self._write_checkpoint, state)

    def _write_checkpoint(self, state: Mapping[str, Any]) -> None:
        progress = self.progress
        with checkpoints.writing(self.folder.path, progress.iteration, state) as folder:
            self.learner.publish(folder / "policy", progress.published)
            self.learner.save(folder / "learner")
            if progress.policy.number not in (0, progress.published):
                with storage(folder):
                    shutil.copytree(progress.policy.adapter or Path(progress.policy.model), folder / "serving")
        checkpoints.prune(self.folder.path, self.settings.train.keep_checkpoints)

    async def _record(self, trajectory: Trajectory, phase: str, iteration: int) -> None:
        await asyncio.wrap_future(self.folder.trajectory(trajectory, phase=phase, iteration=iteration))
        self.tracking.trajectory(trajectory)

    def _rollout_phase(self, iteration: int) -> str:
        return f"rollout {iteration}" if self.settings.train.max_staleness else "rollout"

    async def _check_stop(self, stream: Stream) -> None:
        if self.stopper.requested:
            await stream.drained()  # what runs ahead may finish as well, so that it is on disk
        self.stopper.check(f"finqa train --resume {self.folder.path}")

    def _check_faults(self, collected: Collected) -> None:
        episodes = [trajectory for group in collected.groups for trajectory in group.trajectories]
        faults = [trajectory for trajectory in episodes if trajectory.status.is_fault]
        if len(faults) > self.settings.pool.max_fault_share * len(episodes):
            counts = ", ".join(
                f"{sum(fault.status is status for fault in faults)} {status}" for status in Status if status.is_fault
            )
            raise ThresholdError(
                f"{len(faults)} of {len(episodes)} episodes ended in faults ({counts}). The first: {faults[0].error}",
                remedy=f"finqa train --resume {self.folder.path}",
            )


def _of_iteration(error: FinqaError, iteration: int, run: Path) -> FinqaError:
    """A step that failed, with the iteration that it was of and the policy that is left. Settings that are wrong, and
    whatever else has a kind of its own, are of no iteration.
    """
    if type(error) is not FinqaError:
        return error
    newest = checkpoints.latest(run)
    kept = f" The newest good policy is {newest.path}." if newest else ""
    return FinqaError(f"Iteration {iteration}: {error.message}{kept}", remedy=error.remedy)
