"""Writing files so that a crash leaves the old or the new content, never half of one."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError, StorageError


@contextmanager
def storage(what: Path) -> Iterator[None]:
    """Turns an OSError inside the block into a StorageError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        remedy = f"free some space on the disk of {what.parent}" if error.errno in _FULL else ""
        raise StorageError(f"Cannot write {what}: {error.strerror or error}.", remedy=remedy) from error


def write_json(path: Path, value: Any) -> None:
    """Writes one JSON document as `write_text` does."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically: temporary file, fsync, rename, fsync of the folder."""
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
    """Writes rows of the same columns under a header; without any there is one column, `id`.

    A text that a spreadsheet would execute begins with an apostrophe (see `inert`).
    """
    with storage(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["id"])
        writer.writeheader()
        writer.writerows({name: inert(value) for name, value in row.items()} for row in rows)


def inert(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula: an apostrophe is put before one that begins like one.

    Numbers, as `-5` or `+1,234.5 %`, stay as they are. Source: OWASP, CSV Injection.
    """
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) and not _SIGNED_NUMBER.fullmatch(value):
        return f"'{value}"
    return value


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


def lock_folder(path: Path) -> int:
    """Makes the folder and holds it for this process until the descriptor is closed; its `.lock` names the holder.

    Raises:
        ConfigError: Another process holds it.
        StorageError: It cannot be made, or its file system has no locks.
    """
    with storage(path):
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            f"{path} is in use by process {owner}.", remedy="wait until it ends, or choose another folder"
        ) from error
    except OSError as error:  # such as Lustre mounted without flock
        os.close(descriptor)
        raise StorageError(
            f"{path} cannot be locked, so two runs could write to it: {error.strerror or error}.",
            remedy="a folder on a local disk, or mount this one with locks (flock)",
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The time in UTC to the second, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


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
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001  full-width forms count too
_SIGNED_NUMBER = re.compile(r"[-+] ?[$€£]?[0-9][0-9,. ]*(?:[eE][-+]?[0-9]+)?[ ]?%?")
