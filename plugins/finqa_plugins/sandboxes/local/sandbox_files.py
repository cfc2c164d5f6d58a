"""What other processes of this user can know about sandboxes that execute code: one small file for each, and no
process.

Nothing runs in such a sandbox between two executions, so its file is all there is: removing it ends the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from finqa_cli.errors import StorageError
from finqa_cli.processes import start_time
from finqa_cli.types import SandboxInfo

SUFFIX = ".box"


class ExecutingSandboxFiles:
    """The folder with the files. Written by the owner of a sandbox, read and removed by anyone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, labels: Mapping[str, str]) -> str:
        """A new sandbox of this process; its id.

        Raises:
            StorageError: The disk is full or the folder cannot be written.
        """
        sandbox_id = f"local-{secrets.token_hex(6)}"
        row = {
            "schema_version": 1,
            "id": sandbox_id,
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "labels": dict(labels),
            "created": time.time(),
        }
        path = self._path(sandbox_id)
        temporary = path.with_suffix(".tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(row), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StorageError(f"Cannot write the sandbox ledger {path}: {error}") from error
        return sandbox_id

    def holds(self, sandbox_id: str) -> bool:
        """Return whether the file is still there; any process may remove it."""
        return self._path(sandbox_id).exists()

    def remove(self, sandbox_id: str) -> None:
        """Ends a sandbox. Idempotent, also for an id that is none."""
        if sandbox_id == Path(sandbox_id).name:
            with contextlib.suppress(OSError):
                self._path(sandbox_id).unlink(missing_ok=True)

    def sandboxes(self) -> Iterator[SandboxInfo]:
        """Sandboxes whose owner is running; files of others are removed on the way."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            try:
                row = json.loads(path.read_text(encoding="utf-8"))
                owner, started = int(row["pid"]), int(row["started"])
                labels = {str(name): str(value) for name, value in row["labels"].items()}
                info = SandboxInfo(id=path.stem, state="started", labels=labels, created=float(row["created"]))
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # it vanished meanwhile, or is not ours
            if start_time(owner) == started:
                yield info
            else:
                self.remove(path.stem)

    def _path(self, sandbox_id: str) -> Path:
        return self._folder / f"{sandbox_id}{SUFFIX}"
