"""`fetch.json`: what was fetched, from where, at which commit, under which licence, with the checksum of every file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from finqa_cli.data.fetch.digests import content_of, storage
from finqa_cli.data.fetch.repository_listing import MANIFEST
from finqa_cli.data.snapshots.compile import write_durably
from finqa_cli.errors import DataError


class FileRecord(BaseModel):
    """One downloaded file.

    Attributes:
        path: Path in the folder.
        url: Address.
        bytes: Size in bytes.
        sha256: SHA-256 of the content.
        evaluation_only: Training on it is forbidden.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    url: str
    bytes: int
    sha256: str
    evaluation_only: bool


class UnpackedRecord(BaseModel):
    """An unpacked archive, whose checksum covers its files.

    Attributes:
        archive: Path of the archive in the folder.
        files: Number of files.
        bytes: Size of the files in bytes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    archive: str
    files: int
    bytes: int


class Manifest(BaseModel):
    """The record of a fetch.

    Attributes:
        format: Version of this file's layout.
        source: Name of the source, such as `snorkel`.
        endpoint: Address of the service.
        repository: Repository of the service.
        revision: Commit of every file.
        licence: Licence that finqa knows.
        licence_announced: Licence that the repository announced; empty if it was not read.
        terms: Conditions of the owner beyond the licence.
        evaluation_only: True when no file can be used for training.
        fetched_at: Time of the last change, ISO 8601 in UTC.
        complete: False until every file has arrived and is checked.
        files: The downloaded files.
        unpacked: The unpacked archive; None if there is none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    source: str
    endpoint: str
    repository: str
    revision: str
    licence: str
    licence_announced: str
    terms: str
    evaluation_only: bool
    fetched_at: str
    complete: bool
    files: tuple[FileRecord, ...] = ()
    unpacked: UnpackedRecord | None = None


def read_manifest(folder: Path) -> Manifest | None:
    """Returns the record in a folder; None if there is none.

    Raises:
        DataError: The record is damaged.
        StorageError: The record cannot be read.
    """
    path = folder / MANIFEST
    try:
        with storage(path):
            return Manifest.model_validate_json(path.read_bytes()) if path.exists() else None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(
            f"{path} is damaged: {place}: {first['msg']}.", remedy="Fetch into another folder with --out."
        ) from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the record atomically.

    Raises:
        StorageError: The disk is full or cannot be written.
    """
    path = folder / MANIFEST
    with storage(path):
        write_durably(path, (manifest.model_dump_json(indent=2) + "\n").encode())


def damaged_files(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Returns paths of files that are missing or differ from the record."""
    return tuple(
        record.path
        for record in manifest.files
        if (content := content_of(folder / record.path)) is None
        or (content.size, content.sha256) != (record.bytes, record.sha256)
    )


def now() -> str:
    """Returns the time for `fetched_at`."""
    return datetime.now(UTC).isoformat(timespec="seconds")
