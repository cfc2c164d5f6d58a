"""`finqa report` as a function: writes one HTML file from run folders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, DataError, UsageError
from finqa_cli.publishing.report.episode_details import episode_detail
from finqa_cli.publishing.report.report_advantages import recomputed_advantages
from finqa_cli.publishing.report.report_comparison import comparison_document
from finqa_cli.publishing.report.report_control import check_control, control_document
from finqa_cli.publishing.report.report_data import run_document, scored_episodes
from finqa_cli.publishing.report.report_page import GENERATOR, render_page
from finqa_cli.publishing.report.report_progress import progress_document
from finqa_cli.publishing.report.report_records import (
    TRAJECTORIES,
    Episode,
    RunRecords,
    read_details,
    read_records,
)
from finqa_cli.runs.durable_files import now, read_document, write_json, write_text
from finqa_cli.statistics import MALFORMED

MOST_EPISODES = 5_000
"""Most episodes of a run that a report contains in full, unless the user chooses another number."""

_CONTROL = "report_control.json"
"""File of a run that names the control which its report shows."""

_CHUNK = 50
"""Number of episodes whose details are in one part of the file, which the page unpacks when one of them is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A report that was written.

    Attributes:
        path: The file.
        size: Its size in bytes.
        runs: For each run its folder, the number of its episodes, and the number of those in the file.
        control: Folder of the control that it shows, which may be that of an earlier report; None: it shows none.
    """

    path: Path
    size: int
    runs: tuple[tuple[Path, int, int], ...]
    control: Path | None


def write_report(
    runs: Sequence[Path], out: Path | None = None, *, control: Path | None = None, episodes: int = MOST_EPISODES
) -> Report:
    """Writes the report of one run, or of two in comparison; an older report at the same path is replaced.

    Args:
        runs: One or two run folders.
        out: The file; None: `report.html` in the first run's folder, or a name with that of the second run for two.
        control: Folder of the same run on shuffled rewards, whose curves are drawn together with those of the run.
        episodes: Most episodes of a run in full. Above this number whole steps are left out, evenly over the training.

    Raises:
        UsageError: There are no runs, more than two, or the same one twice; or a control is given for two runs.
        DataError: A folder is not a run, has no records, or a record is damaged.
        ConfigError: `out` is a file that is not a report, or the control is not one of this run.
        StorageError: The file cannot be written.
    """
    if not 1 <= len(runs) <= 2:
        raise UsageError(
            f"A report shows one run or compares two runs, not {len(runs)}.",
            remedy=_for_several(runs),
        )
    if len(runs) == 2 and runs[0].resolve() == runs[1].resolve():
        raise UsageError("Both runs are the same folder.", remedy=f"finqa report {runs[0]}")
    if len(runs) == 2 and control is not None:
        raise UsageError(
            "A control belongs to one training, but two runs are given.",
            remedy=f"finqa report {runs[0]} --control {control}, or finqa report {runs[0]} {runs[1]}",
        )
    if len(runs) == 1 and out is None and control is None:
        control = remembered_control(runs[0])
    target = out or _default_path(runs)
    _check_target(target)
    records = [read_records(run) for run in runs]
    beside = None if control is None else _control(records[0], control)
    shown = [choose_episodes(each, episodes) for each in records]
    documents: list[dict[str, Any]] = []
    parts: dict[str, Any] = {}
    for place, (whole, kept) in enumerate(zip(records, shown, strict=True)):
        advantages, notes = recomputed_advantages(whole.episodes, whole.settings)
        document = run_document(whole, kept.episodes, advantages, [*_omitted(whole, kept), *notes])
        documents.append({**document, "control": beside, "chunk": _CHUNK})
        parts |= {f"details-{place}-{chunk}": texts for chunk, texts in enumerate(_details(kept))}
    scored = [scored_episodes(each) for each in records]
    comparison = comparison_document(*scored) if len(scored) == 2 else None
    head = {"made": now(), "runs": documents, "comparison": comparison}
    page = render_page({"report": head, **parts})
    write_text(target, page)
    if control is not None and out is None:
        write_json(runs[0] / _CONTROL, {"control": os.path.relpath(control.resolve(), runs[0].resolve())})
    counts = [(each.path, len(each.episodes), len(kept.episodes)) for each, kept in zip(records, shown, strict=True)]
    return Report(path=target, size=len(page.encode("utf-8")), runs=tuple(counts), control=control)


def remembered_control(run: Path) -> Path | None:
    """Returns the control that an earlier report of a run showed, if it still exists, so that none becomes poorer."""
    named = read_document(run / _CONTROL).get("control")
    place = run.resolve() / named if isinstance(named, str) else None
    return None if place is None or not (place / "run.json").is_file() else Path(os.path.relpath(place))


def _control(run: RunRecords, path: Path) -> dict[str, Any]:
    control = read_records(path)
    check_control(run, control)
    return control_document(control)


def choose_episodes(records: RunRecords, most: int) -> RunRecords:
    """Returns the records with at most `most` episodes: whole steps, evenly spread, always including the last step.

    If the last step alone has more, it is truncated. The examples before and after training on the first page are kept
    in addition.
    """
    if len(records.episodes) <= most:
        return records
    progress = progress_document(records)
    examples = set(chain.from_iterable(progress["examples"])) if progress else set()
    by_step: dict[int, list[Episode]] = {}
    for episode in records.episodes:
        by_step.setdefault(episode.iteration, []).append(episode)
    steps = sorted(by_step)
    stride = 1
    while sum(len(by_step[step]) for step in steps[::-1][::stride]) > most and stride < len(steps):
        stride += 1
    kept = sorted(steps[::-1][::stride])
    chosen = [episode for step in kept for episode in by_step[step]][-most:]
    lines = {episode.line for episode in chosen}
    found = (episode for episode in records.episodes if episode.line in lines or episode.id in examples)
    return replace(records, episodes=tuple(found))


def _omitted(whole: RunRecords, kept: RunRecords) -> list[str]:
    missing = len(whole.episodes) - len(kept.episodes)
    if not missing:
        return []
    return [
        f"{len(kept.episodes):,} of {len(whole.episodes):,} episodes are in this file; score and "
        "curves use all episodes. --episodes changes this limit."
    ]


def _for_several(runs: Sequence[Path]) -> str:
    """Returns the command to suggest for no run or for more than two; a run that is given twice counts once."""
    different = list(dict.fromkeys(runs))
    named = shlex.join(map(str, different[:9]))
    return f"finqa {'compare' if len(different) > 2 else 'report'} {named or 'RUN'}"


def _details(records: RunRecords) -> list[list[Mapping[str, Any] | None]]:
    """Returns the details of the episodes in chunks, in the order of the rows.

    Raises:
        DataError: A record is damaged.
    """
    found: list[Mapping[str, Any] | None] = [None] * len(records.episodes)
    lines = {episode.line: row for row, episode in enumerate(records.episodes)}
    for row, record in read_details(records.path, lines):
        try:
            found[row] = episode_detail(record, records.episodes[row].outcome.answer)
        except MALFORMED as error:
            file = records.path / TRAJECTORIES
            raise DataError(
                f"{file}, line {records.episodes[row].line}: not a trajectory record ({error!r}).",
                remedy=f"correct or remove that line of {file}",
            ) from error
    return [found[start : start + _CHUNK] for start in range(0, len(found), _CHUNK)]


def _default_path(runs: Sequence[Path]) -> Path:
    name = "report.html" if len(runs) == 1 else f"report_with_{runs[1].resolve().name}.html"
    return runs[0] / name


def _check_target(target: Path) -> None:
    """Raises ConfigError if the file exists and is not a report."""
    if target.is_dir():
        raise ConfigError(f"{target} is a folder.", remedy=f"--out {target / 'report.html'}")
    if not target.exists():
        return
    with target.open("rb") as file:
        if GENERATOR.encode() not in file.read(4096):
            raise ConfigError(f"{target} exists and is not a report.", remedy="choose another --out")
