"""The runs that are viewed, by ids: an address never contains a path, and only runs with an id can be read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from finqa_cli.publishing.view.followed_run import FollowedRun
from finqa_cli.publishing.view.viewed_files import FILES, is_inside, run_id, summarize_inside
from finqa_cli.runs.live_run import SUMMARY_S
from finqa_cli.runs.run_summary import RUNNING, UNKNOWN, RunSummary, find_runs

MOST_FOLLOWED = 8
"""Most runs whose attempts are kept in memory; the least recently requested one is dropped."""


class RunCatalog:
    """Lists the runs of some folders. Methods may be called from any thread."""

    def __init__(self, places: Sequence[Path], stopping: threading.Event | None = None) -> None:
        """Keeps the arguments; reads nothing.

        Args:
            places: Folders of runs, or single runs.
            stopping: Once it is set, reading ends.
        """
        self._places = tuple(places)
        self._stopping = stopping or threading.Event()
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._summaries: dict[Path, tuple[object, float, RunSummary]] = {}
        self._followed: dict[str, FollowedRun] = {}

    def listing(self) -> dict[str, Any]:
        """Returns the runs, newest first, each followed by its steps, and the names of folders that are not runs."""
        with self._lock:
            runs: list[dict[str, Any]] = []
            others: list[str] = []
            for place in self._places:
                found, foreign = _find(place)
                inside = [path for path in found if is_inside(path, place)]
                others += [path.name for path in (*foreign, *(path for path in found if path not in inside))]
                summaries = sorted(map(self._summary, inside), key=lambda each: each.created or 0.0, reverse=True)
                runs += [row for each in summaries for row in self._rows(each, place)]
            return {
                "folders": [str(place if place.name else place.resolve()) for place in self._places],
                "runs": runs,
                "others": others,
            }

    def follow(self, identity: str) -> FollowedRun:
        """Returns the run with an id.

        Raises:
            LookupError: There is no such run.
        """
        if identity not in self._paths:
            self.listing()  # the run may be new
        with self._lock:
            path = self._paths[identity]
            run = self._followed.pop(identity, None) or FollowedRun(path, self._stopping)
            self._followed[identity] = run  # the most recently requested run is the last
            while len(self._followed) > MOST_FOLLOWED:
                self._followed.pop(next(iter(self._followed)))
            return run

    def _summary(self, path: Path) -> RunSummary:
        """Returns the summary, which is made again if files of the run changed, and at intervals while it runs."""
        stamp, now = _stamp(path), time.monotonic()
        earlier = self._summaries.get(path)
        if earlier is not None:
            same, fresh = earlier[0] == stamp, now - earlier[1] < SUMMARY_S
            if (same and _is_over(earlier[2])) or (fresh and (same or earlier[2].status == RUNNING)):
                return earlier[2]
        summary = summarize_inside(path)
        self._summaries[path] = (stamp, now, summary)
        return summary

    def _rows(self, summary: RunSummary, folder: Path, depth: int = 0) -> Iterator[dict[str, Any]]:
        identity = run_id(summary.path)
        self._paths[identity] = summary.path
        name = summary.path.name if summary.path == folder else str(summary.path.relative_to(folder))
        yield {
            "id": identity,
            "name": name or str(folder),
            "command": summary.command,
            "status": summary.status,
            "state": summary.state,
            "reason": summary.reason,
            "progress": None if summary.progress is None else asdict(summary.progress),
            "score": None if summary.score is None else asdict(summary.score),
            "created": summary.created,
            "seconds": summary.seconds,
            "size": summary.size,
            "policy": summary.policy,
            "data": summary.data,
            "environment": summary.environment,
            "grader": summary.grader,
            "tags": list(summary.tags),
            "cost_usd": None if summary.use is None else summary.use.cost_usd,
            "depth": depth,
            "parent": folder.name if depth else "",
        }
        for nested in summary.nested:
            yield from self._rows(nested, summary.path, depth + 1)


def _find(place: Path) -> tuple[list[Path], list[Path]]:
    try:
        return find_runs(place)
    except OSError:  # it was deleted in the meantime
        return [], []


def _is_over(summary: RunSummary) -> bool:
    return summary.status not in (RUNNING, UNKNOWN) and all(map(_is_over, summary.nested))


def _stamp(path: Path) -> object:
    found = []
    for name in FILES:
        try:
            facts = (path / name).lstat()
            found.append((name, facts.st_mtime_ns, facts.st_size))
        except OSError:
            continue
    return tuple(found)
