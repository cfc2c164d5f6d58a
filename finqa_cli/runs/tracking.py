"""Records of a run: the run folder first, then hooks and trackers, whose failures never stop a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from finqa_cli.contracts import Tracker
from finqa_cli.errors import InterruptedRun
from finqa_cli.extend import registry
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.statistics import EvalReport
from finqa_cli.types import Group, PolicyVersion, Trajectory, UpdateReport


class Observers:
    """Calls plugins' observing hooks. A plugin that raises is named once, then left out, and takes no other with it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._broken: set[tuple[str, str]] = set()

    def notify(self, hook: str, **facts: Any) -> None:
        """Calls the hook of every plugin that has it."""
        for plugin, caller in registry().each(hook):
            if (hook, plugin) in self._broken:
                continue
            try:
                caller(**facts)
            except Exception as error:  # of a plugin, which only observes
                self._broken.add((hook, plugin))
                failure = registry().describe_failure(plugin, hook, error)
                self._reporter.line(f"Plugin {plugin!r} failed in {hook}, which is not called again: it {failure}")


class Tracking:
    """Writes the records of a run, and copies them to trackers and to the hooks of plugins.

    A tracker or a hook that raises is named once and then left out.
    """

    def __init__(self, folder: RunFolder, trackers: Sequence[Tracker], reporter: Reporter) -> None:
        self._folder = folder
        self._trackers = list(trackers)
        self._reporter = reporter
        self._observers = Observers(reporter)

    @contextmanager
    def run(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Records and passes on that the run begins, and how the block ended."""
        run_id = self._folder.path.name
        self._folder.event("run_start")
        self._observers.notify("on_run_start", run_id=run_id, settings=settings)
        self._each_tracker(lambda tracker: tracker.on_run_start(settings))
        status = "completed"
        try:
            yield
        except BaseException as error:
            stopped = isinstance(error, (KeyboardInterrupt, InterruptedRun, asyncio.CancelledError))
            status = "interrupted" if stopped else "failed"
            raise
        finally:
            self._folder.event("run_end", status=status)
            self._observers.notify("on_run_end", run_id=run_id, status=status)
            self._each_tracker(lambda tracker: tracker.on_run_end(status))

    def trajectory(self, trajectory: Trajectory, facts: Mapping[str, Any]) -> None:
        """Passes an attempt that is on disk to the hooks, and with the further facts of its record to the reporter."""
        self._observers.notify("on_trajectory", trajectory=trajectory)
        self._reporter.episode(trajectory, facts)

    def update(self, iteration: int, report: UpdateReport) -> None:
        """Passes a step of the learner to the hooks."""
        self._observers.notify("on_update", iteration=iteration, report=report)

    def weights(self, policy: PolicyVersion, facts: Mapping[str, float]) -> None:
        """Records that the engine serves another version; `facts` has the sync's bytes and seconds, and its probe."""
        self._folder.event("weights", version=policy.number, **facts)
        self._observers.notify("on_weights", policy=policy)

    def evaluation(self, iteration: int, version: int, temperature: float, split: str, report: EvalReport) -> None:
        """Records an evaluation and passes it on."""
        facts = report.to_dict()
        where = {"kind": "eval", "iteration": iteration, "policy_version": version, "temperature": temperature}
        self.record({**where, "split": split, **facts})
        self.evaluated(iteration, facts)

    def evaluated(self, iteration: int, facts: Mapping[str, Any]) -> None:
        """Passes an evaluation to the hooks where a file of its own has the report."""
        self._observers.notify("on_eval", iteration=iteration, metrics=facts)

    def groups(self, groups: Sequence[Group]) -> None:
        """Passes the groups of an iteration to the hooks."""
        for group in groups:
            self._observers.notify("on_group", group=group)

    def record(self, record: Mapping[str, Any]) -> None:
        """Writes one line of metrics.jsonl and copies it to the trackers."""
        self._folder.metrics(record)
        self._each_tracker(lambda tracker: tracker.on_metrics(record))

    def _each_tracker(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # a tracker is a copy; its failure must not cost the run
                self._trackers.remove(tracker)
                self._reporter.line(f"Tracker {type(tracker).__name__} failed and is not used: {error}")
