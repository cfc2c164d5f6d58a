"""A folder's files in parts of bounded size: sends weights and states between nodes without a shared filesystem."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from finqa_cli.errors import StorageError

Bytes = npt.NDArray[np.uint8]

PART_BYTES = 64 * 2**20
"""Largest part in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a file, without its content.

    Attributes:
        name: Path of the file below the folder.
        start: Offset of the part in its file, in bytes.
        size: Size of the content in bytes.
        digest: SHA-256 of the content, in hex.
    """

    name: str
    start: int
    size: int
    digest: str

    @classmethod
    def of(cls, name: str, start: int, content: Bytes) -> Part:
        """Return the part with this content."""
        return cls(name=name, start=start, size=content.nbytes, digest=_digest(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A folder whose parts were all sent.

    Attributes:
        delivery: Number of the delivery; see `Inbox`.
        sizes: Bytes of each file by its path below the folder.
    """

    delivery: int
    sizes: Mapping[str, int]


def list_files(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file by its path below the folder.

    Raises:
        StorageError: There is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        raise StorageError(f"There is no folder {str(folder)!r}.")
    try:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    except OSError as error:
        raise StorageError(f"Reading {str(folder)!r} failed: {error}") from error


def spans(size: int) -> Iterator[tuple[int, int]]:
    """Yield offset and size in bytes of each part of a file; an empty file has one empty part."""
    for start in range(0, max(size, 1), PART_BYTES):
        yield start, min(PART_BYTES, size - start)


def cut(name: str, content: Bytes) -> Iterator[tuple[Part, Bytes]]:
    """Yield the parts of a file that is in memory."""
    for start, count in spans(content.nbytes):
        piece = content[start : start + count]
        yield Part.of(name, start, piece), piece


def read_part(folder: Path, name: str, start: int, count: int) -> tuple[Part, Bytes]:
    """Return a part of a file.

    Args:
        folder: The folder.
        name: Path of the file below it.
        start: Offset in bytes; see `spans`.
        count: Number of bytes.

    Raises:
        StorageError: The file cannot be read, or has become shorter.
    """
    path = folder / name
    try:
        content = np.fromfile(path, dtype=np.uint8, count=count, offset=start)
    except OSError as error:
        raise StorageError(f"Reading {str(path)!r} failed: {error}") from error
    if content.nbytes != count:
        raise StorageError(f"{path} has changed while it was read.")
    return Part.of(name, start, content), content


class Inbox:
    """Receives folders in parts, one folder at a time; the parts of a file may come in any order.

    A delivery is complete or absent. Deliveries have increasing numbers: parts of an earlier one, which was aborted,
    are refused.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` gets the received folders; it is created when needed."""
        self._folder = folder
        self._delivery = 0
        self._written: dict[str, dict[int, int]] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def receive(self, delivery: int, part: Part, content: Bytes) -> None:
        """Check a part and write it.

        Args:
            delivery: Number of its delivery.
            part: The part.
            content: Its content.

        Raises:
            StorageError: The content does not match the part, the delivery was aborted, or writing failed.
        """
        if delivery > self._delivery:
            self.clear()
            self._delivery = delivery
        if delivery < self._delivery:
            raise StorageError(f"{part.name} belongs to delivery {delivery}, which was broken off.")
        if content.nbytes != part.size or _digest(content) != part.digest:
            raise StorageError(f"{part.name} arrived with other bytes than it was sent with (SHA-256 differs).")
        try:
            path = self._files() / part.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("r+b" if path.exists() else "wb") as file:
                file.seek(part.start)
                content.tofile(file)
        except OSError as error:
            raise StorageError(f"Writing {part.name!r} below {str(self._folder)!r} failed: {error}") from error
        self._written.setdefault(part.name, {})[part.start] = part.size

    def take(self, delivered: Delivered, name: str) -> Path:
        """Move the received files into a folder, which replaces an existing one; return the folder.

        Args:
            delivered: Description of the delivery.
            name: Name of the folder below that of the inbox.

        Raises:
            StorageError: Files were not received completely, or cannot be moved.
        """
        sizes = delivered.sizes
        parts = self._written if delivered.delivery == self._delivery else {}
        written = {name: sum(found.values()) for name, found in parts.items()}
        lacking = sorted(name for name, size in sizes.items() if written.get(name) != size)
        if lacking or len(written) != len(sizes):
            raise StorageError(f"{name} arrived incomplete: {', '.join(lacking[:3]) or 'it has other files'}.")
        folder = self._folder / name
        try:
            files = self._files()
            shutil.rmtree(folder, ignore_errors=True)
            files.rename(folder)
        except OSError as error:
            raise StorageError(f"Writing {str(folder)!r} failed: {error}") from error
        self.clear()
        return folder

    def keep(self, versions: Collection[str]) -> None:
        """Remove all versions (folders `vN`) except those with these names."""
        for old in self._folder.glob("v*"):
            if old.name not in versions:
                shutil.rmtree(old, ignore_errors=True)

    def clear(self) -> None:
        """Remove received files that were not taken."""
        if self._temporary is not None:
            self._temporary.cleanup()
        self._temporary, self._written = None, {}

    def _files(self) -> Path:
        if self._temporary is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._temporary = tempfile.TemporaryDirectory(prefix=".part-", dir=self._folder)
            (Path(self._temporary.name) / "files").mkdir()
        return Path(self._temporary.name) / "files"


def _digest(content: Bytes) -> str:
    return hashlib.sha256(content.data).hexdigest()
