"""A folder of one process on its node, which is removed even if the process is killed."""

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

    Making one removes the folders of processes that are gone: otherwise models of tens of gigabytes of killed processes
    would fill the disk. The kernel releases the locks of a process however it ends.
    """

    def __init__(self) -> None:
        """Make the folder.

        Raises:
            OSError: The disk is full or is not writable.
        """
        root = Path(tempfile.gettempdir())
        remove_left(root)
        new = Path(tempfile.mkdtemp(prefix=".finqa-new-", dir=root))
        self._lock = os.open(new / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = new.rename(root / f"{PREFIX}{secrets.token_hex(6)}")  # renamed only once it is locked

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_left(root: Path) -> None:
    """Remove the folders of processes that are gone; folders that cannot be opened stay."""
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _LOCK).open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
