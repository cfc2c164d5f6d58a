"""Writes the data folder of an import, and replaces what an earlier import wrote there: only that, and all of it."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from pathlib import Path

from finqa_cli import __version__
from finqa_cli.data.dataset import DataSet
from finqa_cli.data.openenv_layout.layout import (
    IMPORT_FILE,
    PARTS,
    STAGE,
    contains_data,
    free_name,
    write_layout,
)
from finqa_cli.data.snapshots.compile import file_digest, write_durably
from finqa_cli.deletion import discard
from finqa_cli.documents import parse_json
from finqa_cli.errors import StorageError


def write_import(dataset: DataSet, folder: Path, *, overwrite: bool = False) -> bool:
    """Writes a data set with a record of its files; returns whether it replaced that of an earlier import.

    The new files are complete before the old ones are moved away, and those are removed last. Other files in the folder
    stay as they are. If the process is killed while it exchanges them, the folder has no questions, so that no command
    reads a mixture, and the same call completes it.

    Raises:
        DataError: A company or table has a name that cannot be a file.
        StorageError: There is a data set, and `overwrite` is not set, or a file of it is not as an import wrote it; or
            writing failed. Then the old data set is still there.
    """
    if not contains_data(folder):
        write_layout(dataset, folder)
        _write_record(folder)
        if overwrite:
            _remove_leftovers(folder)
        return False
    if not overwrite:
        raise StorageError(
            f"{folder} already contains a data set; it is not overwritten. If an earlier import wrote it, --overwrite "
            "replaces it.",
            remedy=f"--out {shlex.quote(free_name(folder))}",
        )
    _require_unchanged(folder)
    try:
        stage = Path(tempfile.mkdtemp(prefix=STAGE, dir=folder))
        try:
            write_layout(dataset, stage / "new")
            _write_record(stage / "new")
            (stage / "old").mkdir()
            _exchange(folder, stage)
        except BaseException:
            if not any(stage.glob("old/*")):
                discard(stage)
            raise
    except OSError as error:
        raise StorageError(f"Replacing the data set in {folder} failed: {error.strerror or error}.") from error
    _remove_leftovers(folder)
    return True


def _exchange(folder: Path, stage: Path) -> None:
    moved: list[tuple[Path, Path]] = []
    steps = [(folder / part, stage / "old" / part) for part in PARTS]
    steps += [(stage / "new" / part, folder / part) for part in reversed(PARTS)]
    try:
        for source, target in steps:
            if source.exists():
                source.rename(target)
                moved.append((source, target))
    except BaseException:
        for source, target in reversed(moved):
            with contextlib.suppress(OSError):
                target.rename(source)
        raise


def _require_unchanged(folder: Path) -> None:
    """Check that each file of the data set is as an import recorded it; one that was killed left its record beside."""
    known: set[tuple[str, str]] = set()
    for record in [folder / IMPORT_FILE, *folder.glob(f"{STAGE}*/*/{IMPORT_FILE}")]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            known |= set(parse_json(record.read_text(encoding="utf-8"))["files"].items())
    if not known:
        raise StorageError(
            f"{folder} contains a data set that `finqa data import tables` did not write; it is not overwritten.",
            remedy=f"--out {shlex.quote(free_name(folder))}",
        )
    other = next((name for name, digest in _digests(folder).items() if (name, digest) not in known), "")
    if other:
        raise StorageError(
            f"{folder / other} is not as `finqa data import tables` wrote it, so {folder} is not overwritten.",
            remedy=f"--out {shlex.quote(free_name(folder))}",
        )


def _remove_leftovers(folder: Path) -> None:
    """Remove the replaced files, also those of an import that was killed."""
    for path in folder.glob(f"{STAGE}*"):
        discard(path)


def _write_record(folder: Path) -> None:
    record = {"finqa": __version__, "files": _digests(folder)}
    try:
        write_durably(folder / IMPORT_FILE, (json.dumps(record, indent=0) + "\n").encode())
    except OSError as error:
        raise StorageError(f"Writing the data set to {folder} failed: {error.strerror or error}.") from error


def _digests(folder: Path) -> dict[str, str]:
    """Returns the sha256 of the files of a data set, by their path in the folder."""
    parts = [folder / part for part in PARTS if part != IMPORT_FILE]
    files = sorted(path for part in parts for path in ([part] if part.is_file() else part.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in files}
