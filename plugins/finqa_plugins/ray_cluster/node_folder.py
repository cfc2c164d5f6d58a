"""A process's own folder on its node, which is removed also after the process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

PREFIX = "finqa-node-"
"""Folders below the node's temporary folder. Each has a file that its process keeps locked."""

_LOCK = "lock"


class NodeFolder:
    """A new folder below the node's temporary folder, for this user only.

    Making one removes the folders of processes that are gone: models of tens of gigabytes would fill the disk of a node
    whose processes were killed. The kernel gives back the locks of a process that ends in any way.
    """

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: The disk is full or may not be written to.
        """
        root = Path(tempfile.gettempdir())
        remove_left(root)
        new = Path(tempfile.mkdtemp(prefix=".finqa-new-", dir=root))
        self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = new.rename(root / f"{PREFIX}{secrets.token_hex(6)}")  # locked before others look at it

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_left(root: Path) -> None:
    """Remove the folders of processes that are gone; those that cannot be looked at stay."""
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
