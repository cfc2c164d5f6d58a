"""The training loop itself: one iteration after the other, each on disk before the next begins."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import Learner, Optimizer, TokenEngine
from finqa_cli.errors import ThresholdError
from finqa_cli.learn import credited_samples, pack
from finqa_cli.record import checkpoints
from finqa_cli.record.run_folder import RunFolder
from finqa_cli.settings import Settings
from finqa_cli.types import PolicyVersion, Sample, Status, Task, Trajectory, UpdateReport
from finqa_cli.workflows.evaluate import evaluate_tasks
from finqa_cli.workflows.groups import Collected, collect_groups
from finqa_cli.workflows.interrupts import Stopper
from finqa_cli.workflows.pool_watch import EpisodeCount
from finqa_cli.workflows.reporter import Reporter
from finqa_cli.workflows.tracking import Tracking, iteration_metrics
from finqa_cli.workflows.wiring import Stage


@dataclass(slots=True, kw_only=True)
class Progress:
    """What a checkpoint brings back besides weights.

    Attributes:
        iteration: Finished iterations.
        cursor: Place in the endless seeded walk over the tasks.
        policy: What the engine serves.
        published: Number of the newest published version; the engine lags behind it when `sync_every` is above 1.
        informative_share: Share of groups with signal that the next iteration expects; None before the first.
    """

    iteration: int = 0
    cursor: int = 0
    policy: PolicyVersion
    published: int = 0
    informative_share: float | None = None


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

    async def run(self, *, fresh: bool) -> None:
        """All iterations that are left. A fresh run is evaluated and saved before the first."""
        train = self.settings.train
        if fresh:
            await self._evaluate()
            await self._checkpoint()
        self.reporter.start("train", train.iterations)
        while self.progress.iteration < train.iterations:
            await self._iterate()
            iteration, last = self.progress.iteration, self.progress.iteration == train.iterations
            if last or (train.eval_every and iteration % train.eval_every == 0):
                await self._evaluate()
            if last or iteration % train.checkpoint_every == 0:
                await self._checkpoint()
        self.reporter.finish("train")

    async def _iterate(self) -> None:
        started = time.perf_counter()
        iteration = self.progress.iteration + 1
        shown = EpisodeCount(self.reporter, "rollout", None)

        def heard(trajectory: Trajectory) -> None:
            self._record(trajectory, "train", iteration)
            shown.add(trajectory)

        collected = await collect_groups(
            self.parts.player(self.settings, temperature=self.settings.generation.temperature),
            self.tasks,
            self.optimizer,
            self.settings,
            iteration=iteration,
            cursor=self.progress.cursor,
            expected_share=self.progress.informative_share,
            on_trajectory=heard,
            stopping=lambda: self.stopper.requested,
        )
        self.reporter.drop("rollout")
        self._check_stop()
        self._check_faults(collected)
        self.tracking.groups(collected)
        rolled_out = time.perf_counter()
        reports = await self._update(collected)
        updated = time.perf_counter()
        serving = self.progress.policy.number
        await self._sync(iteration, changed=bool(reports))
        self.progress.iteration, self.progress.cursor = iteration, collected.cursor
        self.progress.informative_share = collected.informative_share
        timing = {
            "rollout_s": rolled_out - started,
            "update_s": updated - rolled_out,
            "sync_s": time.perf_counter() - updated,
            "iteration_s": time.perf_counter() - started,
        }
        self.tracking.iteration(iteration_metrics(iteration, serving, collected, reports, timing))

    async def _update(self, collected: Collected) -> list[UpdateReport]:
        samples = credited_samples(collected.groups, collected.credits)
        loss = self.optimizer.loss()
        reports = []
        for part in _parts(samples, self.settings.train.updates_per_iteration):
            batch = pack(
                part,
                token_budget=self.settings.train.token_budget,
                max_rows=self.settings.train.grpo_update_batch_size,
            )
            reports.append(await asyncio.to_thread(self.learner.update, batch, loss))
            self.tracking.update(self.progress.iteration + 1, reports[-1])
        return reports

    async def _sync(self, iteration: int, *, changed: bool) -> None:
        self.progress.published += changed
        due = iteration % self.settings.train.sync_every == 0 or iteration == self.settings.train.iterations
        if not due or self.progress.policy.number == self.progress.published:
            return
        folder = self.folder.path / "policies" / f"v{self.progress.published:05d}"
        policy = await asyncio.to_thread(self.learner.publish, folder, self.progress.published)
        await self.engine.load(policy)
        previous, self.progress.policy = self.progress.policy, policy
        self.tracking.weights(policy)
        if previous.number:
            shutil.rmtree(folder.parent / f"v{previous.number:05d}", ignore_errors=True)

    async def _evaluate(self) -> None:
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
        self._check_stop()
        if report.faults > self.settings.pool.max_fault_share * report.episodes:
            raise ThresholdError(
                f"{report.faults} of {report.episodes} episodes of the evaluation ended in faults.",
                remedy=f"see their errors in {self.folder.path / 'trajectories.jsonl'}",
            )
        self.tracking.evaluation(iteration, self.progress.policy.number, self.settings.eval.temperature, report)

    async def _checkpoint(self) -> None:
        progress = self.progress
        state = {
            "cursor": progress.cursor,
            "informative_share": progress.informative_share,
            "policy_version": progress.published,
            "serving_version": progress.policy.number,
            "model": self.settings.model.name,
        }
        with checkpoints.writing(self.folder.path, progress.iteration, state) as folder:
            await asyncio.to_thread(self.learner.publish, folder / "policy", progress.published)
            await asyncio.to_thread(self.learner.save, folder / "learner")
            if progress.policy.number not in (0, progress.published):
                shutil.copytree(progress.policy.adapter or Path(progress.policy.model), folder / "serving")
        checkpoints.prune(self.folder.path, self.settings.train.keep_checkpoints)

    def _record(self, trajectory: Trajectory, phase: str, iteration: int) -> None:
        self.folder.trajectory(trajectory, phase=phase, iteration=iteration)
        self.tracking.trajectory(trajectory)

    def _check_stop(self) -> None:
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


def _parts(samples: Sequence[Sample], count: int) -> list[Sequence[Sample]]:
    """At most `count` parts of nearly equal size, every group spread over them; none is empty."""
    parts = [samples[start::count] for start in range(count)]
    return [part for part in parts if part]
