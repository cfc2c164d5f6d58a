"""Records of a run: written to the run folder first, then passed to hooks and trackers, which never stop a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NotRequired

from finqa_cli.contracts import Tracker
from finqa_cli.errors import InterruptedRun
from finqa_cli.extend import registry
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.statistics import EvalReport
from finqa_cli.types import Group, PolicyVersion, Trajectory, UpdateReport
from finqa_cli.types.run_events import RunEvent


class RunStart(RunEvent):
    """A process begins or resumes the run."""

    event: Literal["run_start"]


class RunEnd(RunEvent):
    """The process ends the run. It is missing after `kill -9`."""

    event: Literal["run_end"]
    status: Literal["completed", "interrupted", "failed"]
    """How the run ended."""


class Weights(RunEvent):
    """The engine serves a new policy version. Sizes, seconds and differences are those of `metrics.jsonl`."""

    event: Literal["weights"]
    version: int
    """Number of the policy."""
    sync_bytes: int
    """Bytes of weights that were written for the engine."""
    probe_difference: NotRequired[float]
    """Mean absolute difference of log-probabilities without outliers, in nats; absent without a probe."""
    probe_largest: NotRequired[float]
    """Largest absolute difference of any token, in nats; absent without a probe."""
    probe_looks: NotRequired[int]
    """Comparisons that were needed; absent without a probe."""
    publish_s: float
    """Seconds for writing the weights."""
    load_s: float
    """Seconds for loading them."""
    probe_s: float
    """Seconds of the probe."""


class Observers:
    """Calls the observing hooks of plugins. If a hook of a plugin raises, it is reported once and not called again."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._broken: set[tuple[str, str]] = set()

    def notify(self, hook: str, **facts: Any) -> None:
        """Call the hook of every plugin that implements it."""
        for plugin, caller in registry().each(hook):
            if (hook, plugin) in self._broken:
                continue
            try:
                caller(**facts)
            except Exception as error:  # a plugin only observes, so its failure must not stop the run
                self._broken.add((hook, plugin))
                failure = registry().describe_failure(plugin, hook, error)
                self._reporter.line(f"Plugin {plugin!r} failed in {hook}, which is not called again: it {failure}")


class Tracking:
    """Writes the records of a run, and copies them to trackers and to the hooks of plugins.

    A tracker or a hook that raises is reported once and not called again.
    """

    def __init__(self, folder: RunFolder, trackers: Sequence[Tracker], reporter: Reporter) -> None:
        self._folder = folder
        self._trackers = list(trackers)
        self._reporter = reporter
        self._observers = Observers(reporter)

    @contextmanager
    def run(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Record and pass on the beginning of the run, and its status at the end of the block."""
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
        """Pass an attempt that is on disk to the hooks, and with the added fields of its record to the reporter."""
        self._observers.notify("on_trajectory", trajectory=trajectory)
        self._reporter.episode(trajectory, facts)

    def update(self, iteration: int, report: UpdateReport) -> None:
        """Pass the report of an optimizer step to the hooks."""
        self._observers.notify("on_update", iteration=iteration, report=report)

    def weights(self, policy: PolicyVersion, facts: Mapping[str, float]) -> None:
        """Record that the engine serves a new version; `facts` are figures of the weight sync and its probe."""
        self._folder.event("weights", version=policy.number, **facts)
        self._observers.notify("on_weights", policy=policy)

    def evaluation(self, iteration: int, version: int, temperature: float, split: str, report: EvalReport) -> None:
        """Record an evaluation in metrics.jsonl, and pass it to trackers and hooks."""
        facts = report.to_dict()
        where = {"kind": "eval", "iteration": iteration, "policy_version": version, "temperature": temperature}
        self.record({**where, "split": split, **facts})
        self.evaluated(iteration, facts)

    def evaluated(self, iteration: int, facts: Mapping[str, Any]) -> None:
        """Pass an evaluation to the hooks, without a record in metrics.jsonl."""
        self._observers.notify("on_eval", iteration=iteration, metrics=facts)

    def groups(self, groups: Sequence[Group]) -> None:
        """Pass the groups of an iteration to the hooks."""
        for group in groups:
            self._observers.notify("on_group", group=group)

    def record(self, record: Mapping[str, Any]) -> None:
        """Write one line of metrics.jsonl, and pass it to the trackers."""
        self._folder.metrics(record)
        self._each_tracker(lambda tracker: tracker.on_metrics(record))

    def _each_tracker(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # trackers are only copies, so their failures must not stop the run
                self._trackers.remove(tracker)
                self._reporter.line(f"Tracker {tracker.__class__.__name__} failed and is not used: {error}")
