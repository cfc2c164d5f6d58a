"""Checkpoints: each is complete or absent, and is checked against its manifest before it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.deletion import REMOVED, try_delete
from finqa_cli.errors import DataError
from finqa_cli.runs.durable_files import new_folder, sha256_of, storage, write_json, write_text

log = structlog.get_logger(__name__)

LATEST = "latest_checkpointed_iteration.txt"
"""File with the number of the newest checkpoint, for tools of other trainers. finqa itself searches the folders, so
that it can skip a damaged checkpoint."""


SCHEMA_VERSION = 1
"""Version of the format of the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        path: `checkpoints/step_N`, with `policy/` (an adapter or a model) and `learner/` inside.
        iteration: N, the number of completed iterations or steps.
        state: What a resumed run needs besides weights, such as the policy version.
    """

    path: Path
    iteration: int
    state: Mapping[str, Any]


@contextmanager
def writing(run: Path, iteration: int, state: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a folder to fill; if the block succeeds, it becomes `checkpoints/step_N` with a manifest.

    The run is locked, so unfinished files there were left by a killed process; they are deleted first.

    Args:
        run: Folder of the run.
        iteration: N.
        state: Content of state.json, besides the iteration.

    Raises:
        StorageError: The checkpoint cannot be written.
    """
    for pattern in (".step_*.partial", f".step_*{REMOVED}"):
        for unfinished in (run / "checkpoints").glob(pattern):
            try_delete(unfinished, within=run)
    for unfinished in (run / "checkpoints").glob(f".{LATEST}.*"):
        try_delete(unfinished, within=run)
    with new_folder(folder_of(run, iteration)) as folder:
        yield folder
        if (settings := run / "settings.json").is_file():  # so that a copy outside of its run is evaluated like the run
            with storage(settings):
                shutil.copyfile(settings, folder / settings.name)
        write_json(folder / "state.json", {"iteration": iteration, **state})
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        digests = {str(path.relative_to(folder)): sha256_of(path) for path in files}
        write_json(folder / "manifest.json", {"schema_version": SCHEMA_VERSION, "files": digests})
    _point_to_latest(run)


def folder_of(run: Path, iteration: int) -> Path:
    """Folder of the checkpoint of an iteration."""
    return run / "checkpoints" / f"step_{iteration}"


def latest(run: Path) -> Checkpoint | None:
    """The newest checkpoint whose files all match its manifest. Damaged ones are skipped with a warning.

    Returns:
        The checkpoint; None when there are no checkpoints.

    Raises:
        DataError: There are checkpoints, and every one is damaged.
    """
    folders = sorted(_folders(run), key=_number, reverse=True)
    for folder in folders:
        try:
            return verified(folder)
        except DataError as error:
            # Log: A checkpoint is damaged; an older one is used.
            log.warning("checkpoint skipped", checkpoint=str(folder), reason=error.message)
    if folders:
        raise DataError(
            f"Every checkpoint of {run} is damaged.",
            remedy=f"restore one in {run / 'checkpoints'} from a copy, or train again into another --run-dir",
        )
    return None


def verified(folder: Path) -> Checkpoint:
    """Check every file of a checkpoint, and return the checkpoint.

    Raises:
        DataError: A file of the manifest is missing or was changed, or a file of the folder is not in the manifest. The
            message names the file.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if (version := manifest["schema_version"]) != SCHEMA_VERSION:
            raise DataError(
                f"{folder / 'manifest.json'} has schema version {version!r}, which this version of "
                "finqa does not support."
            )
        listed = manifest["files"]
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_file() and name not in listed and name != "manifest.json":
                raise DataError(f"The manifest of {folder} does not list {name}.")
        for name, digest in listed.items():
            if sha256_of(folder / name) != digest:
                raise DataError(f"{folder / name} does not match its checksum.")
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(path=folder, iteration=int(state["iteration"]), state=state)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"The checkpoint {folder} is damaged: {error}.") from error


def discard_after(run: Path, iteration: int) -> None:
    """Delete the checkpoints after an iteration: damaged ones, which the resumed run will write again."""
    for folder in _folders(run):
        if _number(folder) > iteration:
            try_delete(folder, within=run, whole=True)
    _point_to_latest(run)


def prune(run: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints; 0 keeps all."""
    surplus = sorted(_folders(run), key=_number)[:-keep] if keep else []
    for folder in surplus:
        try_delete(folder, within=run, whole=True)


def surplus(run: Path, keep: int) -> list[Path]:
    """The folders of the checkpoints older than the newest `keep` valid ones, oldest first.

    Damaged checkpoints do not count as valid. With fewer than `keep` valid ones the list is empty.
    """
    folders = sorted(_folders(run), key=_number)
    kept = 0
    while len(folders) > 0 and kept < keep:
        try:
            verified(folders.pop())
            kept += 1
        except DataError:
            continue
    return folders


def iterations(run: Path) -> list[int]:
    """The iterations that have a checkpoint, oldest first, damaged checkpoints included."""
    return sorted(map(_number, _folders(run)))


def _point_to_latest(run: Path) -> None:
    if numbers := iterations(run):
        write_text(run / "checkpoints" / LATEST, str(numbers[-1]))
    else:
        (run / "checkpoints" / LATEST).unlink(missing_ok=True)


def _folders(run: Path) -> list[Path]:
    return [path for path in (run / "checkpoints").glob("step_*") if path.name[5:].isdigit()]


def _number(folder: Path) -> int:
    return int(folder.name[5:])
