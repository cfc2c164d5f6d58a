"""Size and checksums of local files, in the algorithms that the hosts use, and errors of the disk."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from finqa_cli.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turns an OSError inside the block into a StorageError about the path."""
    try:
        yield
    except OSError as error:
        remedy = (
            f"free some space on the disk of {path.parent}" if error.errno in _FULL else "--out with another folder"
        )
        raise StorageError(f"Cannot read or write {path}: {error.strerror or error}.", remedy=remedy) from error


_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Digest:
    """Checksum that a host announces for a file.

    `git-sha1` is SHA-1 over `blob`, size, a zero byte and the content
    (https://git-scm.com/book/en/v2/Git-Internals-Git-Objects).
    """

    algorithm: Literal["sha256", "git-sha1"]
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Size and checksums of a file on this machine."""

    size: int
    sha256: str
    git_sha1: str

    def under(self, algorithm: Literal["sha256", "git-sha1"]) -> Digest:
        """Returns the digest in the announced algorithm."""
        return Digest(algorithm, self.sha256 if algorithm == "sha256" else self.git_sha1)


def content_of(path: Path) -> Content | None:
    """Returns size and digests of a file, which is read once; None if it does not exist.

    Raises:
        StorageError: The file cannot be read.
    """
    if not path.is_file():
        return None
    with storage(path), path.open("rb") as file:
        size = path.stat().st_size
        sha256, git_sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while block := file.read(_BLOCK):
            sha256.update(block)
            git_sha1.update(block)
    return Content(size=size, sha256=sha256.hexdigest(), git_sha1=git_sha1.hexdigest())
