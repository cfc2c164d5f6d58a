"""Files of runs that may be deleted: old checkpoints, and what killed processes left behind; not of runs in progress.

Everything that is needed to resume, evaluate, export or compare a run is kept: the newest valid checkpoint, every file
that the run's manifest lists, and every checkpoint that another run names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from finqa_cli.deletion import REMOVED, delete, lock_folder, owner_of, real_place, unlock_folder
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.processes import host_name, start_time
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import read_document
from finqa_cli.runs.links import LINKS, enclosing_runs
from finqa_cli.runs.run_folder import MANIFEST, read_run
from finqa_cli.runs.run_summary import RUNNING, disk_use

_DEFAULT_FOLDERS = ("runs", "outputs", "policies", "exports", "comparisons")
"""Folders below the working directory in which commands create runs by default; runs in them may name other runs."""

_SKIPPED = ("checkpoints", "policies", "start", "valid_samples", "samples", "logs")
"""Folders of a run that contain no runs."""

_DEEPEST = 5
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)(?P<folder>\.partial)?")
_OLD_S = 3600.0
"""Seconds after which an unchanged temporary folder outside runs counts as left over. It may belong to a process on
another machine, so the pid alone does not show that its process has ended."""

_SERVED = re.compile(r"v\d{5}")
_ENDED = ("completed", "interrupted", "failed", "crashed", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A file or folder that may be deleted.

    Attributes:
        path: Its path.
        what: Description for the user.
        size: Bytes on disk.
        within: Folder that must contain its real path; a run, which is then locked during the deletion.
        run: The run that it belongs to; None outside runs.
    """

    path: Path
    what: str
    size: int
    within: Path
    run: Path | None = None


def find_leftovers(folder: Path, *, keep: int) -> tuple[list[Leftover], list[str]]:
    """Return what may be deleted in a folder of runs or in a run, and notes on runs that were not searched.

    If a run has more than `keep` checkpoints, they are read completely to know which are valid.

    Args:
        folder: Folder of runs, or a run.
        keep: Number of newest valid checkpoints of each run that are kept, at least 1.

    Raises:
        OSError: The folder cannot be read.
    """
    notes: list[str] = []
    above = [run for run in enclosing_runs(folder.resolve()) if run != folder.resolve()]
    if busy := next((run for run in above if _state(run) not in _ENDED), None):
        return [], [f"{folder} is part of {busy}, which is {_state(busy)}"]
    folders = list(_folders(folder, _DEEPEST, notes))
    runs = [path for path in folders if (path / "run.json").exists()]
    named = _named_paths([*_all_runs([folder, *map(Path, _DEFAULT_FOLDERS)]), *above])
    found = [each for path in folders if path not in runs for each in _unfinished(path)]
    found += [each for run in runs for each in _of_run(run, keep, named)]
    return [each for each in found if _is_in_its_run(each, notes)], list(dict.fromkeys(notes))


def _is_in_its_run(item: Leftover, notes: list[str]) -> bool:
    """Whether no link above a leftover leads out of its folder or into another run; otherwise a note says so."""
    try:
        real = real_place(item.path, within=item.within)
    except DataError as error:
        notes.append(error.message)
        return False
    if real is not None and item.run is not None and owner_of(real) != item.run.resolve():
        notes.append(f"{item.path} belongs to the run {owner_of(real)}, so it is not deleted")
        return False
    return real is not None


def delete_leftovers(found: Sequence[Leftover]) -> tuple[list[Leftover], list[str]]:
    """Delete leftovers, each completely or not at all. A run that was resumed meanwhile is skipped.

    Returns:
        The deleted leftovers, and notes on runs that were skipped.

    Raises:
        StorageError: A leftover cannot be deleted; the ones after it are not deleted.
    """
    deleted: list[Leftover] = []
    notes: list[str] = []
    for run, items in groupby(found, key=lambda each: each.run):
        try:
            lock = None if run is None else lock_folder(run)
        except ConfigError as error:
            notes.append(error.message)
            continue
        try:
            for item in items:
                try:
                    delete(item.path, within=item.within, whole=True)
                    deleted.append(item)
                except (ConfigError, DataError) as error:
                    notes.append(error.message)
        finally:
            if lock is not None:
                unlock_folder(lock)
    return deleted, notes


def _state(run: Path) -> str:
    """Return the status of a run; `unknown` if its process is on another machine or its files cannot be read."""
    try:
        facts = read_run(run)
    except (DataError, OSError):
        return "unknown"
    elsewhere = facts.get("status") == RUNNING and facts.get("host", host_name()) != host_name()
    return "unknown" if elsewhere else str(facts.get("status"))


def _folders(folder: Path, depth: int, notes: list[str]) -> Iterator[Path]:
    """Yield a folder and the folders below it that may be or contain runs, without runs that may be running."""
    if (folder / "run.json").exists() and (state := _state(folder)) not in _ENDED:
        notes.append(f"{folder} is {state}, so none of its files are deleted")
        return
    yield folder
    for path in sorted(folder.iterdir()) if depth else ():
        skipped = path.name.startswith(".") or (path.name in _SKIPPED and (folder / "run.json").exists())
        if not skipped and path.is_dir() and not path.is_symlink():
            yield from _folders(path, depth - 1, notes)


def _all_runs(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield all runs in the folders, in any state."""
    for folder in folders:
        for file in folder.glob("**/run.json") if folder.is_dir() else ():
            yield file.parent


def _unfinished(folder: Path) -> Iterator[Leftover]:
    """Yield unfinished folders that killed processes left outside runs, for example of preference pairs."""
    for path in sorted(folder.iterdir()):
        if _is_of_dead_process(path) and path.is_dir() and time.time() - path.stat().st_mtime > _OLD_S:
            yield Leftover(path=path, what="left by a killed process", size=disk_use(path), within=folder)


def _is_of_dead_process(path: Path) -> bool:
    """Whether a path is a temporary file or folder (see `durable_files`) of a process that has ended."""
    parts = _TEMPORARY.fullmatch(path.name)
    return parts is not None and start_time(int(parts["pid"])) is None and path.is_dir() == bool(parts["folder"])


def _of_run(run: Path, keep: int, named: frozenset[Path]) -> Iterator[Leftover]:
    facts = read_run(run)
    folders = [run / "checkpoints", *(run / "checkpoints").glob("step_*")]
    if facts.get("host", host_name()) == host_name():
        for folder in (run, *(path for path in folders if path.is_dir())):
            for path in sorted(folder.iterdir()):
                if _is_of_dead_process(path):
                    yield Leftover(path=path, what="left by a killed process", size=disk_use(path), within=run, run=run)
    for path in sorted((run / "checkpoints").glob(f".*{REMOVED}")):
        yield Leftover(path=path, what="half-deleted checkpoint", size=disk_use(path), within=run, run=run)
    needed = frozenset({*named, *_outputs(run)})
    if len(checkpoints.iterations(run)) > keep:
        for path in checkpoints.surplus(run, keep):
            if not _needs(needed, path):
                yield Leftover(path=path, what="old checkpoint", size=disk_use(path), within=run, run=run)
    served = run / "policies"
    for path in sorted(served.iterdir()) if served.is_dir() and facts.get("command") in ("train", "sft", "dpo") else ():
        version = path.name.removeprefix(".").removesuffix(REMOVED)
        if _SERVED.fullmatch(version) and path.is_dir() and not _needs(needed, path):
            yield Leftover(path=path, what="copy for the engine", size=disk_use(path), within=run, run=run)


def _outputs(run: Path) -> Iterator[Path]:
    """Yield the files that the manifest lists; a run or a step counts as done by their digests."""
    outputs = read_document(run / MANIFEST).get("outputs")
    for name in outputs if isinstance(outputs, Mapping) else ():
        yield (run / str(name)).resolve()


def _named_paths(runs: Iterable[Path]) -> frozenset[Path]:
    """Return the files and folders that runs name: policies that they started from or evaluated, and data."""
    found: set[Path] = set()
    for run in runs:
        links = read_document(run / "run.json").get(LINKS)
        for link in links.values() if isinstance(links, Mapping) else ():
            if isinstance(link, Mapping):
                found |= {(run.resolve() / str(link.get("near"))).resolve(), Path(str(link.get("absolute")))}
        documents = [read_document(run / MANIFEST).get("inputs"), read_document(run / "settings.json").get("model")]
        documents += [read_document(file) for file in (run / "checkpoints").glob("step_*/state.json")]
        documents += [read_document(file) for file in (run / "checkpoints").glob("*/policy/adapter_config.json")]
        for text in _texts(documents):
            if "/" in text and len(text) < 4096 and "\0" not in text:
                found.add(Path(text).resolve())
    return frozenset(found)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(str(name))
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _needs(needed: frozenset[Path], path: Path) -> bool:
    """Whether a needed file or folder is this path or inside it."""
    place = path.resolve()
    return any(each == place or place in each.parents for each in needed)
