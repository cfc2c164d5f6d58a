"""Touching the disk: what it refuses becomes a StorageError that names path and reason."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
