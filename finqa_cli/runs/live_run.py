"""The state of a running run, followed through its files: each look reads only what was appended since the last."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from finqa_cli.runs.run_nodes import PLACED_EVENTS, NodeState, RunNodes
from finqa_cli.runs.run_notes import ROUTINE
from finqa_cli.runs.run_summary import COMPLETED, PLAYED, RUNNING, RunSummary, summarize_run
from finqa_cli.types.token_use import TokenUse, recorded_use, total_use

WINDOW_S = 60.0
"""Seconds over which the rate of episodes is counted."""

SUMMARY_S = 5.0
"""Seconds between two updates of the slow figures: status, score and size on disk."""

RECENT = 5
"""Number of iterations for rates, times of phases and the remaining time, and number of notable events shown."""

CURVE = 40
"""Number of iterations whose rewards are shown."""

_PHASES = ("rollout_s", "learner_waits_s", "rollouts_wait_s", "update_s", "sync_s", "iteration_s")
_ALIVE = ("idle", "leased")


class AppendedLines:
    """Reads the lines that a process appends to a file. A line counts only when it is complete.

    Attributes:
        restarts: How often the file was replaced or became shorter, as when a run is resumed.
        position: Position in bytes after the last line that was yielded.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = 0
        self.position = 0
        self.restarts = 0

    def read(self) -> Iterator[bytes]:
        """Yield the complete lines since the last call; if `restarts` increases, all lines of the file."""
        try:
            with self._path.open("rb") as file:
                facts = os.fstat(file.fileno())
                if self._file and (facts.st_ino != self._file or facts.st_size < self.position):
                    self.position = 0
                    self.restarts += 1
                self._file = facts.st_ino
                file.seek(self.position)
                torn = b""  # an incomplete line is read again next time: after a crash, the writer removes it
                for block in iter(lambda: file.read(1 << 20), b""):
                    *lines, torn = (torn + block).split(b"\n")
                    for line in lines:
                        self.position += len(line) + 1
                        yield line
        except OSError:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a run at one moment.

    Attributes:
        summary: Summary of the run.
        phase: Its present phase, as far as its files show; empty if it is not running.
        remaining_s: Estimated seconds to its end, at the speed of the last iterations or the last minute; None if not
            known.
        episodes: Recorded episodes.
        episodes_per_minute: Rate in the last minute, or of the last iterations until that is known; None if not known.
        tokens_per_second: Sampled tokens of the last iterations, divided by their time; None if not known.
        phases: Mean seconds of each phase in the last iterations.
        rewards: Mean reward of each of the last iterations, oldest first.
        sandboxes: Figures of the pool in its last event; empty without sandboxes.
        engine: The last event about the engine or its weights; empty if there was none.
        sampled_tokens: Sampled tokens that were used for training.
        use: Tokens and cost of the episodes of an evaluation; None if they are unknown, and for other runs.
        trained_tokens: Tokens that the learner processed, prompts included.
        sandbox_hours: Hours of all sandboxes together.
        troubles: Number of notable events by name.
        last_troubles: The last notable events, oldest first.
        nodes: Nodes of the cluster and what they run; empty for a run on one machine.
    """

    summary: RunSummary
    phase: str
    remaining_s: float | None
    episodes: int
    episodes_per_minute: float | None
    tokens_per_second: float | None
    phases: Mapping[str, float]
    rewards: tuple[float, ...]
    sandboxes: Mapping[str, Any]
    engine: Mapping[str, Any]
    sampled_tokens: int
    trained_tokens: int
    use: TokenUse | None
    sandbox_hours: float
    troubles: Mapping[str, int]
    last_troubles: tuple[Mapping[str, Any], ...]
    nodes: tuple[NodeState, ...]


@dataclass(slots=True)
class LiveRun:
    """Follows one run. It only reads files, so that it does not affect the run.

    Attributes:
        path: Folder of the run.
    """

    path: Path
    _metrics: AppendedLines = field(init=False)
    _events: AppendedLines = field(init=False)
    _attempts: AppendedLines = field(init=False)
    _iterations: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    _episodes: int = 0
    _use: TokenUse | None = None
    _seen: deque[tuple[float, int]] = field(default_factory=deque)
    _pool: Mapping[str, Any] = field(default_factory=dict)
    _engine: Mapping[str, Any] = field(default_factory=dict)
    _sandbox_s: float = 0.0
    _nodes: RunNodes = field(default_factory=RunNodes)
    _troubles: Counter[str] = field(default_factory=Counter)
    _summary: RunSummary | None = None
    _summarized: float = 0.0
    _last: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def __post_init__(self) -> None:
        self._metrics = AppendedLines(self.path / "metrics.jsonl")
        self._events = AppendedLines(self.path / "events.jsonl")
        self._attempts = AppendedLines(self.path / "trajectories.jsonl")

    def look(self, now: float | None = None) -> LiveState:
        """Read what was appended and return the state; `now` is a monotonic time in seconds."""
        now = time.monotonic() if now is None else now
        restarts = self._metrics.restarts
        records = list(_records(self._metrics.read()))
        if self._metrics.restarts > restarts:
            self._iterations.clear()
        for record in records:
            if record.get("kind") not in ("eval", "validation") and isinstance(record.get("iteration"), int):
                self._iterations[record["iteration"]] = record
        for record in _records(self._events.read()):
            self._take_event(record)
        restarts = self._attempts.restarts
        lines = list(self._attempts.read())
        if self._attempts.restarts > restarts:
            self._episodes = 0
            self._use = None
            self._seen.clear()
        self._episodes += len(lines)
        self._seen.append((now, self._episodes))
        while self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        if self._summary is None or now - self._summarized >= SUMMARY_S:
            self._summary, self._summarized = summarize_run(self.path, episodes=self._episodes), now
        summary = self._summary
        if summary.command in PLAYED and lines:  # a training run has millions of lines, and its own count of tokens
            uses = [use for record in _records(lines) if (use := _use_of(record)) is not None]
            self._use = total_use([*([self._use] if self._use else []), *uses])
        recent = [self._iterations[number] for number in sorted(self._iterations)[-CURVE:]]
        running = summary.status == RUNNING
        rate = self._rate(recent[-RECENT:], running)
        return LiveState(
            summary=summary,
            phase=self._phase() if running else "",
            remaining_s=_remaining(summary, recent[-RECENT:], rate) if running else None,
            episodes=self._episodes,
            episodes_per_minute=rate,
            tokens_per_second=_per_second(recent[-RECENT:], "loss_tokens"),
            phases=_phases(recent[-RECENT:]),
            rewards=tuple(float(each["reward_mean"]) for each in recent if _number(each.get("reward_mean"))),
            sandboxes={name: value for name, value in self._pool.items() if name not in ("event", "schema_version")},
            engine=self._engine,
            sampled_tokens=self._sum("loss_tokens"),
            trained_tokens=self._sum("tokens"),
            use=self._use,
            sandbox_hours=self._sandbox_s / 3600,
            troubles=dict(self._troubles.most_common()),
            last_troubles=tuple(self._last),
            nodes=self._nodes.states(),
        )

    def _take_event(self, record: Mapping[str, Any]) -> None:
        name = str(record.get("event"))
        if name == "pool":
            before, after = self._pool.get("time"), record.get("time")
            if _number(before) and _number(after) and after > before:
                self._sandbox_s += (after - before) * sum(int(self._pool.get(each, 0)) for each in _ALIVE)
            self._pool = record
        elif name == "run_start":
            self._pool = {}  # no sandbox of an earlier session runs
        self._nodes.take(record)
        if name == "weights" or (name.startswith("engine_") and name not in PLACED_EVENTS):
            self._engine = record
        if name not in ROUTINE:
            self._troubles[name] += 1
            self._last.append(record)

    def _phase(self) -> str:
        """Return the phase by the last state of the pool: if no sandbox is leased, the learner may be at work."""
        if str(self._engine.get("event")) in ("engine_away", "engine_left_out"):
            return "waiting for the engine"
        if not self._pool:
            return "starting" if not self._episodes else "playing"
        if self._pool.get("leased"):
            return "playing"
        return "starting sandboxes" if self._pool.get("starting") else "updating, or between rollouts"

    def _rate(self, recent: list[Mapping[str, Any]], running: bool) -> float | None:
        (first, before), (last, count) = self._seen[0], self._seen[-1]
        if running and last - first >= 10:
            return (count - before) / (last - first) * 60
        rate = _per_second(recent, "episodes")
        return None if rate is None else rate * 60

    def _sum(self, name: str) -> int:
        return sum(int(each[name]) for each in self._iterations.values() if _number(each.get(name)))


def _records(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _use_of(record: Mapping[str, Any]) -> TokenUse | None:
    try:
        return recorded_use(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # written by another version, or by hand


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float)


def _timing(record: Mapping[str, Any]) -> Mapping[str, Any]:
    timing = record.get("timing")
    return timing if isinstance(timing, Mapping) else {}


def _phases(recent: list[Mapping[str, Any]]) -> dict[str, float]:
    found = {name: [_timing(each)[name] for each in recent if _number(_timing(each).get(name))] for name in _PHASES}
    return {name: statistics.fmean(values) for name, values in found.items() if values}


def _per_second(recent: list[Mapping[str, Any]], name: str) -> float | None:
    timed = [each for each in recent if _number(_timing(each).get("iteration_s")) and _number(each.get(name))]
    seconds = sum(_timing(each)["iteration_s"] for each in timed)
    return sum(each[name] for each in timed) / seconds if seconds > 0 else None


def _remaining(summary: RunSummary, recent: list[Mapping[str, Any]], rate: float | None) -> float | None:
    """Estimate the seconds to the end: by the rate of episodes, or for training runs by the last iterations."""
    progress = summary.progress
    if progress is None or progress.total is None or summary.status == COMPLETED:
        return None
    left = progress.total - progress.done
    if progress.unit == "episode":
        return left / rate * 60 if rate else None
    seconds = _phases(recent).get("iteration_s")
    return left * seconds if seconds is not None else None
