"""Where a run's numbers go: the run folder first, then hooks and trackers, whose failures never stop a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from finqa_cli.contracts import Tracker
from finqa_cli.errors import InterruptedRun
from finqa_cli.statistics import EvalReport
from finqa_cli.extend import registry
from finqa_cli.algorithms.group_report import group_statistics, length_bias, staleness_metrics
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.types import PolicyVersion, Trajectory, UpdateReport
from finqa_cli.rollout.groups import Collected
from finqa_cli.runs.reporter import Reporter


class Observers:
    """Calls plugins' observing hooks. A plugin that raises is named once, then left out, and takes no other with it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._broken: set[tuple[str, str]] = set()

    def tell(self, hook: str, **facts: Any) -> None:
        """Calls the hook of every plugin that has it."""
        for plugin, caller in registry().each(hook):
            if (hook, plugin) in self._broken:
                continue
            try:
                caller(**facts)
            except Exception as error:  # a stranger's; it only looks on
                self._broken.add((hook, plugin))
                self._reporter.line(f"Plugin {plugin!r} failed in {hook}, which is left out from now on: {error}")


class Tracking:
    """Fans a run's events out. A tracker or plugin's hook that raises is named once and then left out."""

    def __init__(self, folder: RunFolder, trackers: Sequence[Tracker], reporter: Reporter) -> None:
        self._folder = folder
        self._trackers = list(trackers)
        self._reporter = reporter
        self._observers = Observers(reporter)

    @contextmanager
    def run(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """The run begins, and ends when the block does, however that comes about."""
        self._start(settings)
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, (KeyboardInterrupt, InterruptedRun, asyncio.CancelledError))
            self._end("interrupted" if stopped else "failed")
            raise
        self._end("completed")

    def _start(self, settings: Mapping[str, Any]) -> None:
        self._folder.event("run_start")
        self._observers.tell("on_run_start", run_id=self._folder.path.name, settings=settings)
        self._each_tracker(lambda tracker: tracker.on_run_start(settings))

    def _end(self, status: str) -> None:
        self._folder.event("run_end", status=status)
        self._observers.tell("on_run_end", run_id=self._folder.path.name, status=status)
        self._each_tracker(lambda tracker: tracker.on_run_end(status))

    def trajectory(self, trajectory: Trajectory) -> None:
        """An attempt ended."""
        self._observers.tell("on_trajectory", trajectory=trajectory)

    def update(self, iteration: int, report: UpdateReport) -> None:
        """The learner took a step."""
        self._observers.tell("on_update", iteration=iteration, report=report)

    def weights(self, policy: PolicyVersion, facts: Mapping[str, float]) -> None:
        """The engine serves another version; `facts` are bytes and seconds of the sync, and what its probe found."""
        self._folder.event("weights", version=policy.number, **facts)
        self._observers.tell("on_weights", policy=policy)

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """An iteration ended."""
        self.record(metrics)
        shown = {name: metrics[name] for name in ("reward_mean", "informative", "groups", "loss") if name in metrics}
        self._reporter.advance("train", metrics["iteration"], **shown)

    def evaluation(self, iteration: int, version: int, temperature: float, report: EvalReport) -> None:
        """An evaluation ended."""
        facts = report.to_dict()
        where = {"kind": "eval", "iteration": iteration, "policy_version": version, "temperature": temperature}
        self.record({**where, **facts})
        self.evaluated(iteration, facts)

    def evaluated(self, iteration: int, facts: Mapping[str, Any]) -> None:
        """As `evaluation`, where a file of its own holds the report."""
        self._observers.tell("on_eval", iteration=iteration, metrics=facts)

    def groups(self, collected: Collected) -> None:
        """The groups of an iteration stand."""
        for group in collected.groups:
            self._observers.tell("on_group", group=group)

    def record(self, record: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._folder.metrics(record)
        self._each_tracker(lambda tracker: tracker.on_metrics(record))

    def _each_tracker(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # a tracker is a copy; its failure must not cost the run
                self._trackers.remove(tracker)
                self._reporter.line(f"Tracker {type(tracker).__name__} failed and is left out: {error}")


def iteration_metrics(
    iteration: int,
    version: int,
    collected: Collected,
    ages: Counter[int],
    reports: Sequence[UpdateReport],
    found: Mapping[str, float],
    timing: dict[str, float],
    measures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One line of metrics.jsonl. Everything that a clock decides is under `timing`, so that runs can be compared."""
    episodes = [trajectory for group in collected.groups for trajectory in group.trajectories]
    turns = [len(trajectory.turns) for trajectory in episodes]
    metrics: dict[str, Any] = {
        "kind": "train",
        "iteration": iteration,
        "policy_version": version,
        "rounds": collected.rounds,
        "turns_mean": sum(turns) / len(turns) if turns else 0.0,
        "retries": sum(trajectory.retries for trajectory in episodes),
        "recoveries": sum(trajectory.recoveries for trajectory in episodes),
        **group_statistics(collected.groups, collected.credits).as_metrics(),
        **staleness_metrics(ages),
        "updates": len(reports),
        **found,
        **({"measures": dict(measures)} if measures else {}),
    }
    if reports:
        last = reports[-1]
        metrics |= {
            "loss": sum(report.loss for report in reports) / len(reports),
            "grad_norm": max(report.grad_norm for report in reports),
            "learning_rate": last.learning_rate,
            "tokens": sum(report.tokens for report in reports),
            "loss_tokens": sum(report.loss_tokens for report in reports),
            **reports[0].metrics,  # of the first step: later ones meet weights that it has changed
        }
    bias = length_bias(collected.groups, lambda trajectory: trajectory.seconds)
    metrics["timing"] = {name: round(value, 4) for name, value in (timing | {"length_bias_seconds": bias}).items()}
    return metrics
