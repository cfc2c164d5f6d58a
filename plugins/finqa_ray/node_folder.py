"""What a process has of its own on its node: a folder that is removed even if it is killed, its home and its seed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from finqa_cli.contracts import EngineContext

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


def node_home() -> Path:
    """Return FINQA_HOME of the node."""
    return Path(os.environ.get("FINQA_HOME") or "~/.cache/finqa").expanduser()


def node_context(context: EngineContext, *, model: str, generation: int) -> EngineContext:
    """Return the context of the one engine of a node's process, for the generation of a replica.

    Args:
        context: Context of the replica on the controller.
        model: Folder or hub id of the model on this node.
        generation: Number of the start of the replica.
    """
    return replace(context.restarted(generation), model=model, home=node_home(), replica=0, replicas=1)
