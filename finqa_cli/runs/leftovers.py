"""What may be deleted of runs: old checkpoints, and what killed processes left. Nothing of a run that may be running.

What a run needs to be resumed, evaluated, exported or compared stays: the newest checkpoint that can be loaded, every
file that its manifest lists, and every checkpoint that another run names.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, DataError
from finqa_cli.processes import host_name, start_time
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import lock_folder, read_document, storage
from finqa_cli.runs.links import LINKS, enclosing_runs
from finqa_cli.runs.run_folder import MANIFEST, read_run
from finqa_cli.runs.run_summary import RUNNING, disk_use

_DEFAULT_FOLDERS = ("runs", "outputs", "policies", "exports", "comparisons")
"""Folders below the working directory in which commands write runs that were given no folder; they may name others."""

_SKIPPED = ("checkpoints", "policies", "start", "valid_samples", "samples", "logs")
"""Folders of a run that contain no runs."""

_DEEPEST = 5
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)(?P<folder>\.partial)?")
_OLD_S = 3600.0
"""Age from which a temporary folder outside runs is left over: its process may be on another machine."""

_SERVED = re.compile(r"v\d{5}")
_ENDED = ("completed", "interrupted", "failed", "crashed", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A file or folder that may be deleted.

    Attributes:
        path: Where it is.
        what: What it is, in words.
        size: Bytes on disk.
        run: The run that it is of, which is locked while it is deleted; None outside runs.
    """

    path: Path
    what: str
    size: int
    run: Path | None = None


def find_leftovers(folder: Path, *, keep: int) -> tuple[list[Leftover], list[str]]:
    """Returns what may be deleted in a folder of runs, or in a run, and why other things are not looked at.

    Checkpoints are read as a whole where there are more than `keep`, to know which can be loaded.

    Args:
        folder: Folder of runs, or a run.
        keep: Newest checkpoints of each run that stay, at least 1; damaged ones do not count.

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
    return found + [each for run in runs for each in _of_run(run, keep, named)], notes


def delete_leftovers(found: Sequence[Leftover]) -> tuple[list[Leftover], list[str]]:
    """Deletes leftovers, each as a whole or not at all; a run that was resumed meanwhile is skipped.

    Returns:
        What was deleted, and why something was not.

    Raises:
        StorageError: Something cannot be deleted; what comes after it stays.
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
                _delete(item.path)
                deleted.append(item)
        finally:
            if lock is not None:
                os.close(lock)
    return deleted, notes


def _delete(path: Path) -> None:
    with storage(path):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        elif path.name.startswith("."):
            shutil.rmtree(path)
    if path.is_dir():
        checkpoints.remove(path)


def _state(run: Path) -> str:
    """Returns the status of a run; `unknown` for one whose process is on another machine, or that cannot be read."""
    try:
        facts = read_run(run)
    except (DataError, OSError):
        return "unknown"
    elsewhere = facts.get("status") == RUNNING and facts.get("host", host_name()) != host_name()
    return "unknown" if elsewhere else str(facts.get("status"))


def _folders(folder: Path, depth: int, notes: list[str]) -> Iterator[Path]:
    """Yields a folder and those in it that may contain runs, without runs that may be running and their contents."""
    if (folder / "run.json").exists() and (state := _state(folder)) not in _ENDED:
        notes.append(f"{folder} is {state}, so none of its files are deleted")
        return
    yield folder
    for path in sorted(folder.iterdir()) if depth else ():
        skipped = path.name.startswith(".") or (path.name in _SKIPPED and (folder / "run.json").exists())
        if not skipped and path.is_dir() and not path.is_symlink():
            yield from _folders(path, depth - 1, notes)


def _all_runs(folders: Iterable[Path]) -> Iterator[Path]:
    """Yields the runs in folders, in any state."""
    for folder in folders:
        for file in folder.glob("**/run.json") if folder.is_dir() else ():
            yield file.parent


def _unfinished(folder: Path) -> Iterator[Leftover]:
    """Yields what processes that were killed left of folders that are written at once, such as pairs."""
    for path in sorted(folder.iterdir()):
        if _is_of_dead_process(path) and path.is_dir() and time.time() - path.stat().st_mtime > _OLD_S:
            yield Leftover(path=path, what="left by a killed process", size=disk_use(path))


def _is_of_dead_process(path: Path) -> bool:
    """Whether this is a temporary file or folder of a process that is not running; see `durable_files`."""
    parts = _TEMPORARY.fullmatch(path.name)
    return parts is not None and start_time(int(parts["pid"])) is None and path.is_dir() == bool(parts["folder"])


def _of_run(run: Path, keep: int, named: frozenset[Path]) -> Iterator[Leftover]:
    facts = read_run(run)
    folders = [run / "checkpoints", *(run / "checkpoints").glob("step_*")]
    if facts.get("host", host_name()) == host_name():
        for folder in (run, *(path for path in folders if path.is_dir())):
            for path in sorted(folder.iterdir()):
                if _is_of_dead_process(path):
                    yield Leftover(path=path, what="left by a killed process", size=disk_use(path), run=run)
    for path in sorted((run / "checkpoints").glob(f".*{checkpoints.REMOVED}")):
        yield Leftover(path=path, what="half-deleted checkpoint", size=disk_use(path), run=run)
    needed = frozenset({*named, *_outputs(run)})
    if len(checkpoints.iterations(run)) > keep:
        for path in checkpoints.surplus(run, keep):
            if not _needs(needed, path):
                yield Leftover(path=path, what="old checkpoint", size=disk_use(path), run=run)
    served = run / "policies"
    for path in sorted(served.iterdir()) if served.is_dir() and facts.get("command") in ("train", "sft", "dpo") else ():
        version = path.name.removeprefix(".").removesuffix(checkpoints.REMOVED)
        if _SERVED.fullmatch(version) and path.is_dir() and not _needs(needed, path):
            yield Leftover(path=path, what="copy for the engine", size=disk_use(path), run=run)


def _outputs(run: Path) -> Iterator[Path]:
    """Yields the files of the manifest, by whose digests a run or a step counts as done."""
    outputs = read_document(run / MANIFEST).get("outputs")
    for name in outputs if isinstance(outputs, Mapping) else ():
        yield (run / str(name)).resolve()


def _named_paths(runs: Iterable[Path]) -> frozenset[Path]:
    """Returns the files and folders that runs name: policies that they began from or evaluated, and data."""
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
    """Whether something that is needed is the path or in it."""
    place = path.resolve()
    return any(each == place or place in each.parents for each in needed)
