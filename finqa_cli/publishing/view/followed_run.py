"""Follows the files of one viewed run: what is appended to them is read once, and sent once to each page."""

from __future__ import annotations

import copy
import hashlib
import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.errors import DataError, FinqaError
from finqa_cli.masking import masked
from finqa_cli.publishing.report.episode_details import episode_detail
from finqa_cli.publishing.report.report_advantages import recomputed_advantages
from finqa_cli.publishing.report.report_control import control_document
from finqa_cli.publishing.report.report_data import (
    COLUMNS,
    figures,
    flatten,
    questions_of,
    row_of,
    scored_episodes,
    steps,
)
from finqa_cli.publishing.report.report_records import METRICS, TRAJECTORIES, Episode, RunRecords, read_episode
from finqa_cli.publishing.view.viewed_files import FILES, refused_files, run_id, summarize_inside
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.live_run import AppendedLines
from finqa_cli.runs.run_folder import MANIFEST, read_run, read_settings
from finqa_cli.runs.run_nodes import FOLLOWED, RunNodes
from finqa_cli.runs.run_summary import RunSummary
from finqa_cli.statistics import MALFORMED

MOST_ROWS = 20_000
"""Most episodes for which a page gets a row, the last ones of the file; score and curves are those of all."""

VIEW_COLUMNS = (*COLUMNS, "line")
"""Fields of a row: those of a report, and the line in trajectories.jsonl, which identifies the row to replace."""


EVENTS = "events.jsonl"

_FOLLOWED = tuple(f'"{name}"'.encode() for name in FOLLOWED)
"""Only events that contain one of these are parsed: most events are about the sandbox pool, several in a second."""


class ViewStopped(Exception):
    """Raised when the server ends while a file is being read."""


@dataclass(frozen=True, slots=True)
class PageVersion:
    """How much of a run a page has already received.

    Attributes:
        epoch: Number that changes when reading starts again; a page with another epoch gets everything.
        lines: Number of lines of trajectories.jsonl.
        questions: Number of questions.
        groups: Number of groups.
        metrics: Number of lines of metrics.jsonl.
    """

    epoch: int = -1
    lines: int = 0
    questions: int = 0
    groups: int = 0
    metrics: int = 0

    @classmethod
    def parse(cls, text: str) -> PageVersion:
        """Returns the version that a text from an address states; that of an empty page if the text is malformed."""
        numbers = text.split(".")
        if len(numbers) != 5 or not all(each.isascii() and each.isdecimal() and len(each) < 19 for each in numbers):
            return cls()
        return cls(*map(int, numbers))

    def __str__(self) -> str:
        return ".".join(str(each) for each in (self.epoch, self.lines, self.questions, self.groups, self.metrics))


class FollowedRun:
    """Follows the files of one run for its pages. Methods may be called from any thread.

    Attributes:
        path: Folder of the run.
    """

    def __init__(self, path: Path, stopping: threading.Event | None = None) -> None:
        """Keeps the arguments; reads nothing.

        Args:
            path: Folder of the run.
            stopping: Once it is set, reading ends with `ViewStopped`.
        """
        self.path = path
        self._stopping = stopping or threading.Event()
        self._lock = threading.Lock()
        self._attempt_lines = AppendedLines(path / TRAJECTORIES)
        self._metric_lines = AppendedLines(path / METRICS)
        self._event_lock = threading.Lock()  # a lock of its own, so that `stamp` does not wait for the attempts
        self._event_lines = AppendedLines(path / EVENTS)
        self._nodes = RunNodes()
        self._epoch = secrets.randbelow(2**31)  # random, because a page may come from an earlier start of the server
        self._clear()

    def stamp(self) -> str:
        """Returns a text that changes whenever the files, the status or the nodes of the run change.

        Reads run.json and what was appended to the events, which tell the state of the nodes.

        Raises:
            ViewStopped: The server ends.
        """
        facts: list[object] = [_status(self.path)]
        for name in FILES:
            if name == EVENTS:
                continue
            try:
                found = (self.path / name).stat()
            except OSError:
                facts.append(None)
            else:
                facts.append((found.st_mtime_ns, found.st_size, found.st_ino))
        nodes = self._read_nodes(refused_files(self.path))
        facts.append((nodes.states(), len(nodes.changes), list(nodes.changes)[-1:]))
        return hashlib.blake2s(repr(facts).encode(), digest_size=12).hexdigest()

    def document(self, since: str = "") -> dict[str, Any]:
        """Returns everything that a report has of a run, or only what a page lacks.

        Args:
            since: The `version` of the document that the page has; empty for a page that has nothing.

        Returns:
            With `full`, everything. Without it, all figures and those rows, questions, groups and steps that were added
            or changed; a row replaces that of the same line.

        Raises:
            ViewStopped: The server ends.
        """
        with self._lock:
            refused = refused_files(self.path)
            self._read(refused)
            summary = summarize_inside(self.path, episodes=len(self._episodes))
            records = self._records(refused)
            before = PageVersion.parse(since)
            full = not self._continues(before)
            if full:
                before = PageVersion()
            return {
                "full": full,
                "version": str(self._version()),
                **self._figures(records, summary),
                "notes": self._notes(refused, summary),
                "columns": list(VIEW_COLUMNS),
                "questions": list(self._questions.values())[before.questions :],
                "groups": list(self._groups)[before.groups :],
                "rows": list(self._rows(before.lines)),
                "steps": steps(self._metrics[before.metrics :]),
                **({"settings": flatten(records.settings)} if full else {}),
            }

    def as_control(self) -> dict[str, Any]:
        """Returns what the page of a training run shows of this run as its control.

        Raises:
            ViewStopped: The server ends.
        """
        with self._lock:
            refused = refused_files(self.path)
            self._read(refused)
            return control_document(self._records(refused))

    def scored(self) -> tuple[Episode, ...]:
        """Returns the attempts that the score is computed from, as they were last read."""
        with self._lock:
            return scored_episodes(RunRecords(path=self.path, facts={}, episodes=self._ordered()))

    def episode(self, line: int) -> dict[str, Any]:
        """Returns what the page of an attempt shows in addition to its row, read from its place in the file.

        Raises:
            DataError: There is no attempt on that line, or the file was replaced in the meantime.
        """
        with self._lock:
            place = self._places.get(line)
            if place is None or TRAJECTORIES in refused_files(self.path):
                raise DataError(f"There is no attempt on line {line}.")
            episode, start, length = place
            try:
                with (self.path / TRAJECTORIES).open("rb") as file:
                    file.seek(start)
                    record = json.loads(file.read(length))
                if str(record["id"]) == episode.id:
                    return episode_detail(record, episode.outcome.answer)
            except (OSError, *MALFORMED):
                pass
            raise DataError(f"Line {line} no longer contains the attempt {episode.id}.")

    def _clear(self) -> None:
        self._epoch += 1
        self._lines = 0
        self._episodes: list[Episode] = []
        self._places: dict[int, tuple[Episode, int, int]] = {}
        self._questions: dict[str, dict[str, str]] = {}
        self._groups: dict[str, int] = {}
        self._changed: dict[int, int] = {}
        self._stale: set[int] = set()
        self._advantages: dict[str, float | None] = {}
        self._advantage_notes: list[str] = []
        self._damaged: list[str] = []
        self._metrics: list[dict[str, Any]] = []

    def _read(self, refused: tuple[str, ...]) -> None:
        restarts = self._attempt_lines.restarts, self._metric_lines.restarts
        attempts = self._attempt_lines.read() if TRAJECTORIES not in refused else iter(())
        for line in attempts:
            if self._stopping.is_set():
                raise ViewStopped
            if self._attempt_lines.restarts != restarts[0]:
                restarts = self._begin_again()
            self._take(line, self._attempt_lines.position)
        if self._attempt_lines.restarts != restarts[0]:
            restarts = self._begin_again()
        records = list(self._metric_lines.read()) if METRICS not in refused else []
        if self._metric_lines.restarts != restarts[1]:
            self._metrics, self._epoch = [], self._epoch + 1
        self._metrics += [record for line in records if (record := _record(line)) is not None]

    def _read_nodes(self, refused: tuple[str, ...]) -> RunNodes:
        """Reads the events that were appended, and returns a copy of the nodes of the run."""
        with self._event_lock:
            restarts = self._event_lines.restarts
            for line in self._event_lines.read() if EVENTS not in refused else iter(()):
                if self._stopping.is_set():
                    raise ViewStopped
                if self._event_lines.restarts != restarts:
                    self._nodes, restarts = RunNodes(), self._event_lines.restarts
                if any(name in line for name in _FOLLOWED) and (record := _record(line)) is not None:
                    self._nodes.take(record)
            if self._event_lines.restarts != restarts:  # the file was replaced by one without lines
                self._nodes = RunNodes()
            return copy.deepcopy(self._nodes)

    def _begin_again(self) -> tuple[int, int]:
        """Forgets what was read from a file that was replaced, as by a resumed run; metrics are read again as well."""
        self._clear()
        self._metric_lines = AppendedLines(self.path / METRICS)
        return self._attempt_lines.restarts, 0

    def _take(self, line: bytes, end: int) -> None:
        self._lines += 1
        try:
            episode = read_episode(json.loads(line), self._lines)
        except (*MALFORMED, RecursionError):
            self._damaged.append(f"{TRAJECTORIES}, line {self._lines}")
            return
        self._episodes.append(episode)
        self._places[self._lines] = (episode, end - len(line) - 1, len(line))
        for question in questions_of([episode]):
            self._questions.setdefault(question["id"], question)
        self._groups.setdefault(episode.group, len(self._groups))
        if episode.phase == "train":  # its advantage depends on the other attempts of the step
            self._changed[episode.iteration] = self._lines
            self._stale.add(episode.iteration)

    def _records(self, refused: tuple[str, ...]) -> RunRecords:
        return RunRecords(
            path=self.path,
            facts=_facts(self.path) if "run.json" not in refused else {},
            settings=masked(_settings(self.path)) if "settings.json" not in refused else {},
            manifest=masked(read_document(self.path / MANIFEST)) if MANIFEST not in refused else {},
            report=read_document(self.path / "report.json") if "report.json" not in refused else {},
            metrics=tuple(self._metrics),
            episodes=self._ordered(),
            nodes=self._read_nodes(refused),
        )

    def _ordered(self) -> tuple[Episode, ...]:
        return tuple(sorted(self._episodes, key=lambda episode: episode.order))

    def _figures(self, records: RunRecords, summary: RunSummary) -> dict[str, Any]:
        if self._stale:
            stale = [each for each in records.episodes if each.phase == "train" and each.iteration in self._stale]
            found, self._advantage_notes = recomputed_advantages(stale, records.settings)
            self._advantages |= found
            self._stale.clear()
        found_figures = figures(records)
        head = found_figures["head"]
        head |= {"command": summary.command or head["command"], "status": summary.status, "state": summary.state}
        head["cost"]["seconds"] = summary.seconds
        head["steps"] = [
            {
                "id": run_id(each.path),
                "name": str(each.path.relative_to(self.path)),
                "command": each.command,
                "status": each.status,
                "state": each.state,
                "score": None if each.score is None else asdict(each.score),
            }
            for each in summary.nested
        ]
        return found_figures

    def _notes(self, refused: tuple[str, ...], summary: RunSummary) -> list[str]:
        notes = [summary.reason] if summary.reason else []
        if self._damaged:
            more = f" and {len(self._damaged) - 1} more" if len(self._damaged) > 1 else ""
            notes.append(f"Skipped, because it is not the record of an attempt: {self._damaged[0]}{more}.")
        if self._episodes and "settings.json" not in refused and not (self.path / "settings.json").is_file():
            notes.append("This run has no settings.json.")
        if len(self._episodes) > MOST_ROWS:
            notes.append(
                f"The last {MOST_ROWS:,} of {len(self._episodes):,} episodes are listed; score and "
                "curves use all episodes."
            )
        return [*notes, *self._advantage_notes]

    def _rows(self, lines: int) -> Iterator[list[Any]]:
        changed = {iteration for iteration, line in self._changed.items() if line > lines}
        places = {question: place for place, question in enumerate(self._questions)}
        for episode in self._episodes[-MOST_ROWS:]:
            if episode.line > lines or (episode.phase == "train" and episode.iteration in changed):
                advantage = self._advantages.get(episode.id)
                group = self._groups[episode.group]
                yield [*row_of(episode, places[episode.outcome.question], group, advantage), episode.line]

    def _version(self) -> PageVersion:
        counts = self._lines, len(self._questions), len(self._groups), len(self._metrics)
        return PageVersion(self._epoch, *counts)

    def _continues(self, before: PageVersion) -> bool:
        now = self._version()
        return before.epoch == now.epoch and all(
            earlier <= later
            for earlier, later in (
                (before.lines, now.lines),
                (before.questions, now.questions),
                (before.groups, now.groups),
                (before.metrics, now.metrics),
            )
        )


def _facts(path: Path) -> dict[str, Any]:
    try:
        return read_run(path)
    except (FinqaError, OSError):
        return {}


def _status(path: Path) -> str:
    return str(_facts(path).get("status", "")) if "run.json" not in refused_files(path) else "refused"


def _settings(path: Path) -> dict[str, Any]:
    try:
        return read_settings(path)
    except (FinqaError, OSError, *MALFORMED):
        return {}


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
