"""Writing files so that a crash leaves the old or the new content, never half of one."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finqa_cli.errors import StorageError


@contextmanager
def storage(what: Path) -> Iterator[None]:
    """Turns an OSError inside the block into a StorageError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        remedy = f"free some space on the disk of {what.parent}" if error.errno in _FULL else ""
        raise StorageError(f"Cannot write {what}: {error.strerror or error}.", remedy=remedy) from error


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON document atomically: temporary file, fsync, rename, fsync of the folder."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows of the same columns under a header; without any there is one column, `id`."""
    with storage(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["id"])
        writer.writeheader()
        writer.writerows(rows)


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object in a file that need not be there; empty where there is none, or something else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` when the block ends well, and disappears when it does not."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with storage(target):
            temporary.mkdir(parents=True)
        yield temporary
        with storage(target):
            for path in sorted(temporary.rglob("*")):
                _sync(path)
            if target.exists():
                shutil.rmtree(target)
            temporary.replace(target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Makes a rename inside the folder durable."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FULL = (28, 122)  # ENOSPC, EDQUOT
