"""The training loop of reinforcement learning: one update after the other, each recorded on disk before the next."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from finqa_cli.algorithms.group_report import token_ages, without_over_age
from finqa_cli.contracts import Learner, Optimizer, TokenEngine
from finqa_cli.errors import FinqaError, ThresholdError
from finqa_cli.evaluation.evaluate import evaluate_tasks
from finqa_cli.rollout.groups import Collected, Collection
from finqa_cli.rollout.measures import measured
from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.rollout.stream import Stream, streaming
from finqa_cli.runs.durable_files import storage
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.right_answers import compare_with_truth
from finqa_cli.statistics import describe_cut_replies
from finqa_cli.training.estimate import Estimate, Pace, RolloutPlan, estimate_iterations
from finqa_cli.training.rl.device_turns import turn_of_learner
from finqa_cli.training.rl.iteration_records import iteration_line, iteration_metrics, success, summary
from finqa_cli.training.rl.probe import Probe
from finqa_cli.training.rl.updates import Updates, training_passes
from finqa_cli.training.rl.weight_sync import Synced, sync_weights
from finqa_cli.training.training_loop import RunContext, TrainingLoop
from finqa_cli.types import Status, Task, Trajectory, UpdateReport
from finqa_cli.wiring.stage import EpisodeCount, Stage

SHOWN = ("reward_mean", "informative", "groups", "loss")
"""Metrics of an iteration that are shown with the progress."""


class Trainer(TrainingLoop):
    """The training loop of reinforcement learning.

    It combines these components:

    - `walk` (`TaskWalk`) returns the tasks, each once per epoch in a seeded order.
    - `Stream` plays episodes on the sandboxes and the engine of `parts`, without a barrier between them.
    - `Collection` collects the groups of one iteration and their credit, up to `train.max_staleness` iterations before
      the learner needs them.
    - `updates` (`Updates`) takes the optimizer steps on the groups.
    - `sync_weights` publishes the new weights and loads them into the engine; `probe` (`Probe`) checks the result.
    - `evaluate_tasks` plays the held-out questions.

    Attributes:
        parts: Environment, sandboxes, engine and codec, started.
        tasks: Tasks to train on.
        held_out: Tasks to evaluate on.
        policy: The version that the engine serves.
        published: Number of the newest version; the engine lags behind it when `train.sync_every` is above 1.
        pace: Episodes of the preflight, or of the newest evaluation, and their time.
        informative_share: Share of groups with signal that the next iteration expects; None before the first.
    """

    phase = "train"
    own_lines = True

    def __init__(
        self,
        context: RunContext,
        parts: Stage,
        learner: Learner,
        optimizer: Optimizer,
        tasks: Sequence[Task],
        held_out: Sequence[Task],
    ) -> None:
        train = context.settings.train
        super().__init__(
            context,
            learner,
            total=train.iterations,
            evaluate_every=train.eval_every,
            checkpoint_every=train.checkpoint_every,
        )
        assert isinstance(parts.engine, TokenEngine), "for training, `stage` accepts no other engine"
        self.parts = parts
        self.engine: TokenEngine = parts.engine
        self.optimizer = optimizer
        self.tasks = tasks
        self.held_out = held_out
        self.policy = parts.policy
        self.published = 0
        self.pace = Pace()
        self.informative_share: float | None = None
        self.walk = TaskWalk(tasks, seed=train.seed)
        self.updates = Updates(learner, optimizer, train, max_gen_tokens=context.settings.generation.max_gen_tokens)
        self.probe = self._make_probe(None)
        self._stream: Stream
        self._collections: deque[Collection] = deque()

    def state(self) -> dict[str, Any]:
        """Return the position in the walk over the tasks, the policy versions, and measured figures."""
        return {
            "cursor": self.walk.cursor,
            "unsettled": self.walk.unsettled,
            "informative_share": self.informative_share,
            "policy_version": self.published,
            "serving_version": self.policy.number,
            "probe_tolerance": self.probe.state,
            "model": self.context.settings.model.name,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint, whose `serving_version` the engine already serves."""
        self.walk = TaskWalk(
            self.tasks,
            seed=self.context.settings.train.seed,
            cursor=int(state["cursor"]),
            unsettled=state.get("unsettled", ()),
        )
        self.published = int(state["policy_version"])
        self.informative_share = state.get("informative_share")
        self.probe = self._make_probe(state.get("probe_tolerance"))

    async def run(self) -> None:
        """Run all remaining iterations, with all episodes on one stream, and show the summary."""
        context = self.context
        async with streaming(
            self.parts.player(context.settings, temperature=context.settings.generation.temperature),
            concurrency=context.settings.pool.concurrency,
            stopping=lambda: context.stopper.requested,
            admits=self.parts.admits,
        ) as self._stream:
            await super().run()
        records = read_jsonl(context.folder.path / "metrics.jsonl")
        context.reporter.line(summary([record for record in records if record["kind"] == "train"]))

    async def begin(self) -> None:
        """Check that the engine serves the learner's weights. In a new run, evaluate and save the first policy."""
        if self.policy.number == self.published:
            with self.context.work("comparing the engine with the learner", yields=True):
                await self.probe.begin(self.policy)
        if self.fresh:
            await self.evaluate()
            await self.checkpoint()

    async def estimate(self) -> Estimate | None:
        """Estimate the iterations that are left by episodes that were played and by one measured micro-batch."""
        if self.engine.sleeps:
            return None  # the engine has the device
        settings, left = self.context.settings, self.total - self.done
        train = settings.train
        evaluated = range(self.done + 1, self.total + 1)
        plan = RolloutPlan(
            iterations=left,
            groups=train.target_groups_per_iter or len(self.tasks),
            group_size=train.group_size,
            passes=training_passes(self.optimizer, train).epochs,
            evaluations=sum(self._falls_due(done, train.eval_every) for done in evaluated),
            held_out=len(self.held_out) * settings.eval.attempts,
        )
        return await estimate_iterations(self.learner, self.pace, plan, train.token_budget)

    async def step(self, number: int) -> Mapping[str, object]:
        """Run one iteration: groups, updates, weight sync, record.

        Raises:
            ThresholdError: More episodes ended in faults than the settings allow.
            FinqaError: An update failed; the message names the iteration and the newest checkpoint.
            InterruptedRun: A stop was requested.
        """
        context = self.context
        started, idle = time.perf_counter(), self._stream.idle_s
        self._start_rollouts(trained=number - 1)
        with context.work(f"rollouts of iteration {number}", shown=False):
            collected = await self._collections[0].collected()
        context.reporter.drop(self._rollout_phase(number))
        if context.stopper.requested:
            await self.stop()
        episodes = [trajectory for group in collected.groups for trajectory in group.trajectories]
        self._check_faults(episodes)
        collected = await asyncio.to_thread(self._within_age, collected)  # reads the turns that workers packed
        context.tracking.groups(collected.groups)
        waited = time.perf_counter()
        reports = await self._update(collected, number)
        updated = time.perf_counter()
        serving, learnt = self.policy.number, self.published
        synced = await self._sync(number, changed=bool(reports))
        found = {**self.updates.metrics, **(synced.metrics if synced else {})}
        ended = time.perf_counter()
        self.walk.settle(collected.places)
        self.informative_share = collected.informative_share
        self._collections.popleft()
        if context.settings.train.max_staleness:
            self._start_rollouts(trained=number)
        timing = {
            "rollout_s": collected.seconds,
            "learner_waits_s": waited - started,
            "rollouts_wait_s": self._stream.idle_s - idle,
            "update_s": updated - waited,
            "sync_s": ended - updated,
            **(synced.timing if synced else {}),
            "iteration_s": time.perf_counter() - started,
        }
        ages = token_ages(collected.groups, collected.credits, version=learnt)
        measures = measured(self.parts.environment, episodes)
        metrics = iteration_metrics(number, serving, collected, ages, reports, found, timing, measures)
        context.tracking.record({**metrics, **success(episodes)})
        shown = {name: metrics[name] for name in SHOWN if name in metrics}
        context.reporter.line(iteration_line(number, episodes, seconds=timing["iteration_s"], metrics=shown))
        return shown

    async def evaluate(self) -> None:
        """Play the held-out questions, if there are any, and record the evaluation.

        Raises:
            ThresholdError: More episodes ended in faults than the settings allow.
            InterruptedRun: A stop was requested.
        """
        if not self.held_out:
            return
        context, iteration = self.context, self.done
        pace = Pace()

        async def record(trajectory: Trajectory) -> None:
            pace.add(trajectory)
            await self._record(trajectory, "eval", iteration)

        report = await evaluate_tasks(
            self.parts,
            context.settings,
            self.held_out,
            on_trajectory=record,
            reporter=context.reporter,
            stopper=context.stopper,
            key=f"eval/{iteration:04d}",
        )
        if context.stopper.requested:
            await self.stop()
        if report.faults > context.settings.pool.max_fault_share * report.episodes:
            raise ThresholdError(
                f"{report.faults} of {report.episodes} episodes of the evaluation ended in faults.",
                remedy=f"finqa show {shlex.quote(str(context.folder.path))} lists the errors",
            )
        self.pace = pace
        temperature, split = context.settings.eval.temperature, self.held_out[0].split
        context.tracking.evaluation(iteration, self.policy.number, temperature, split, report)
        played = {kind: facts.episodes for kind, facts in report.by_kind.items()}
        if cut := describe_cut_replies(report.cut_replies, played, context.settings.generation.max_gen_tokens):
            context.reporter.line(f"Evaluation after {iteration} iterations: {cut}")

    async def stop(self) -> None:
        """Wait until all running episodes, including those of later iterations, are on disk, and raise.

        Raises:
            InterruptedRun: Always.
        """
        await self._stream.drained()
        self.context.check_stop()

    def add_files(self, folder: Path) -> None:
        """Copy the version that the engine serves, if it is not the newest one."""
        if self.policy.number not in (0, self.published):
            with storage(folder):
                shutil.copytree(self.policy.adapter or Path(self.policy.model), folder / "serving")

    def _start_rollouts(self, *, trained: int) -> None:
        """Start to collect the groups of all iterations that may begin after `trained` iterations.

        The groups of iteration k start when k - 1 - `max_staleness` iterations are trained. So their tokens are sampled
        by weights that are at most `max_staleness` iterations older than the weights that they update. The age is
        bounded by when an episode starts, not by discarding finished episodes. With 0, the rollouts of an iteration
        start after the update before, as in a synchronous loop.
        """
        context = self.context
        started = trained + len(self._collections)
        for iteration in range(started + 1, min(trained + 1 + context.settings.train.max_staleness, self.total) + 1):
            shown = EpisodeCount(context.reporter, self._rollout_phase(iteration), None)

            async def record(trajectory: Trajectory, iteration: int = iteration, shown: EpisodeCount = shown) -> None:
                await self._record(trajectory, "train", iteration)
                shown.add(trajectory)

            self._collections.append(
                Collection(
                    self._stream,
                    self.walk,
                    self.optimizer,
                    context.settings,
                    iteration=iteration,
                    on_trajectory=record,
                    expected_share=self.informative_share,
                )
            )

    def _check_faults(self, episodes: Sequence[Trajectory]) -> None:
        faults = [trajectory for trajectory in episodes if trajectory.status.is_fault]
        if len(faults) > self.context.settings.pool.max_fault_share * len(episodes):
            counts = ", ".join(
                f"{sum(fault.status is status for fault in faults)} {status}" for status in Status if status.is_fault
            )
            raise ThresholdError(
                f"{len(faults)} of {len(episodes)} episodes ended in faults ({counts}). The first: {faults[0].error}",
                remedy=f"{self.context.resume_command}, or another --run-dir after a change of the code"
                if faults[0].status is Status.ENVIRONMENT_ERROR
                else self.context.resume_command,
            )

    def _within_age(self, collected: Collected) -> Collected:
        """Drop groups with tokens that are too old."""
        train = self.context.settings.train
        most = train.max_staleness + train.sync_every - 1
        credits = without_over_age(collected.groups, collected.credits, version=self.published, most=most)
        return replace(collected, credits=credits)

    async def _update(self, collected: Collected, number: int) -> list[UpdateReport]:
        """Take the optimizer steps of an iteration while an engine on the same device sleeps."""
        reports: list[UpdateReport] = []
        async with turn_of_learner(self.engine, self.learner):
            try:
                with self.context.work(f"update of iteration {number}", yields=True):
                    async for report in self.updates.take(collected.groups, collected.credits, iteration=number):
                        reports.append(report)
                        self.context.tracking.update(number, report)
            except FinqaError as error:
                if type(error) is not FinqaError:  # such as a wrong setting, which the iteration did not cause
                    raise
                message = f"Iteration {number}: {error.message}{self.context.newest_policy()}"
                raise FinqaError(message, remedy=error.remedy) from error
        return reports

    async def _sync(self, iteration: int, *, changed: bool) -> Synced | None:
        """Load the new weights into the engine if a sync is due, while episodes continue."""
        self.published += changed
        due = iteration % self.context.settings.train.sync_every == 0 or iteration == self.total
        if not due or self.policy.number == self.published:
            return None
        with self.context.work(f"loading policy version {self.published} into the engine", yields=True):
            synced = await sync_weights(self.context, self.learner, self.engine, self.probe, self.published)
        self.policy = synced.policy
        self.context.tracking.weights(synced.policy, {**synced.metrics, **synced.timing})
        return synced

    async def _record(self, trajectory: Trajectory, phase: str, iteration: int) -> None:
        truth = compare_with_truth(self.parts.environment, trajectory)
        facts = {"phase": phase, "iteration": iteration, **truth}
        await asyncio.wrap_future(self.context.folder.trajectory(trajectory, **facts))
        self.context.tracking.trajectory(trajectory, facts)

    def _rollout_phase(self, iteration: int) -> str:
        return f"rollout {iteration}" if self.context.settings.train.max_staleness else "rollout"

    def _make_probe(self, state: Mapping[str, Any] | None) -> Probe:
        assert self.parts.codec is not None, "`stage` gives every token engine a codec"
        return Probe(self.context, self.engine, self.learner, self.parts.codec, self.tasks, state)
