"""A folder's files as arrays of bytes: how weights and states pass between nodes without a shared filesystem."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from finqa_cli.errors import StorageError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFiles:
    """What a folder contains.

    Attributes:
        files: Path below the folder -> content [bytes]. Arrays, because Ray's object store shares them without copies.
        digests: Path -> SHA-256 of the content, in hex.
    """

    files: dict[str, Bytes]
    digests: dict[str, str]

    @classmethod
    def of(cls, files: dict[str, Bytes]) -> FolderFiles:
        """Return the files with their digests."""
        return cls(files=files, digests={name: _digest(content) for name, content in files.items()})

    @property
    def digest(self) -> str:
        """SHA-256 of all names and digests, in hex."""
        return hashlib.sha256(repr(sorted(self.digests.items())).encode()).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(content.nbytes for content in self.files.values())


def read_folder(folder: Path) -> FolderFiles:
    """Read all files of a folder.

    Raises:
        StorageError: There is no such folder, or a file cannot be read.
    """
    if not folder.is_dir():
        raise StorageError(f"There is no folder {str(folder)!r}.")
    try:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        files = {path.relative_to(folder).as_posix(): np.fromfile(path, dtype=np.uint8) for path in paths}
    except OSError as error:
        raise StorageError(f"Reading {str(folder)!r} failed: {error}") from error
    return FolderFiles.of(files)


def write_folder(content: FolderFiles, folder: Path) -> Path:
    """Write the files into a folder, which is complete or absent afterwards and replaces one that was there.

    Raises:
        StorageError: The content is not the one that was read, the disk is full, or it may not be written to.
    """
    for name, data in content.files.items():
        if _digest(data) != content.digests.get(name):
            raise StorageError(f"{name} arrived with other bytes than it was sent with (SHA-256 differs).")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            whole = Path(temporary) / "files"
            whole.mkdir()
            for name, data in content.files.items():
                path = whole / name
                path.parent.mkdir(parents=True, exist_ok=True)
                data.tofile(path)
            shutil.rmtree(folder, ignore_errors=True)
            whole.rename(folder)
    except OSError as error:
        raise StorageError(f"Writing {str(folder)!r} failed: {error}") from error
    return folder


def _digest(content: Bytes) -> str:
    return hashlib.sha256(content.data).hexdigest()
