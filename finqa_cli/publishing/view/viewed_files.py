"""Decides which files of a run may be read: regular files in its folder, not targets of links outside of it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from finqa_cli.publishing.report.report_records import METRICS, TRAJECTORIES
from finqa_cli.runs.run_folder import MANIFEST
from finqa_cli.runs.run_summary import DAMAGED, RunSummary, disk_use, summarize_run

FILES = ("run.json", "settings.json", MANIFEST, "report.json", METRICS, TRAJECTORIES, "events.jsonl")
"""Files of a run that its pages are made from."""


def run_id(path: Path) -> str:
    """Returns the id of a run in addresses, which is always the same for the same folder."""
    return hashlib.blake2s(os.fsencode(path.resolve()), digest_size=8).hexdigest()


def is_inside(path: Path, folder: Path) -> bool:
    """Returns whether a path, with all links resolved, is in a folder or is the folder."""
    try:
        return path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):  # circular links raise a RuntimeError before Python 3.13
        return False


def refused_files(run: Path) -> tuple[str, ...]:
    """Returns the names of the run's files that exist and may not be read."""
    return tuple(
        name
        for name in FILES
        if ((file := run / name).is_symlink() or file.exists()) and not (is_inside(file, run) and file.is_file())
    )


def summarize_inside(run: Path, *, episodes: int | None = None) -> RunSummary:
    """Returns the summary of a run, or the files that are refused; steps that are links to elsewhere are left out.

    Args:
        run: Its folder.
        episodes: Number of its recorded episodes, if it is known.
    """
    if refused := refused_files(run):
        reason = f"not read, because it is not a file in this folder: {', '.join(refused)}"
        return RunSummary(path=run, command="", status=DAMAGED, reason=reason, size=disk_use(run))
    return _without_links(summarize_run(run, episodes=episodes), run)


def _without_links(summary: RunSummary, run: Path) -> RunSummary:
    nested = [each for each in summary.nested if is_inside(each.path, run) and not refused_files(each.path)]
    return replace(summary, nested=tuple(_without_links(each, run) for each in nested))
