"""Durable writing of files: a crash leaves the old or the new content, never a part."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from finqa_cli.deletion import delete, discard
from finqa_cli.errors import StorageError


@contextmanager
def storage(what: Path) -> Iterator[None]:
    """Convert an OSError in the block to a StorageError that names the path and the reason."""
    try:
        yield
    except OSError as error:
        remedy = f"free some space on the disk of {what.parent}" if error.errno in _FULL else ""
        raise StorageError(f"Cannot write {what}: {error.strerror or error}.", remedy=remedy) from error


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document as `write_text` does.

    Raises:
        StorageError: The file cannot be written.
        ValueError: A number is not finite.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: temporary file, fsync, rename, fsync of the folder.

    Raises:
        StorageError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    except BaseException:
        discard(temporary)
        raise


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same columns and a header; without rows, a header with the column `id`.

    An apostrophe is put before a text that a spreadsheet would execute (see `inert`).

    Raises:
        StorageError: The file cannot be written.
    """
    with storage(path), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["id"])
        writer.writeheader()
        writer.writerows({name: inert(value) for name, value in row.items()} for row in rows)


def inert(value: Any) -> Any:
    """Return a cell that no spreadsheet interprets as a formula: text that begins like one gets an apostrophe.

    Numbers, such as `-5` or `+1,234.5 %`, stay unchanged. Source: OWASP, CSV Injection.
    """
    if isinstance(value, str) and value.lstrip(" ").startswith(_FORMULA) and not _SIGNED_NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def read_document(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; empty if the file is missing, damaged, or contains another value."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` if the block succeeds, and is deleted if it fails.

    Raises:
        StorageError: The folder cannot be made or renamed.
        ConfigError: The target exists, and its run is in use by another process.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    discard(temporary)
    try:
        with storage(target):
            temporary.mkdir(parents=True)
        yield temporary
        with storage(target):
            for path in sorted(temporary.rglob("*")):
                _sync(path)
            delete(target, within=target.parent)
            temporary.replace(target)
            sync_folder(target.parent)
    finally:
        discard(temporary)


def sha256_of(path: Path) -> str:
    """SHA-256 hex digest of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def now() -> str:
    """The present time in UTC, in ISO 8601 to the second, as in records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sync_folder(folder: Path) -> None:
    """Make a rename inside the folder durable."""
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
