"""What other processes of this user can know about running servers: one JSON file per server process."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from finqa_cli.errors import StorageError
from finqa_cli.processes import start_time

_SANDBOXES = "boxes"
"""The key of a server's sandboxes in its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEntry:
    """One logical sandbox. `created` is Unix time in seconds."""

    labels: Mapping[str, str]
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """One server process.

    Attributes:
        started: Start time of the process in clock ticks since boot; a reused pid differs in it.
        sandboxes: Its logical sandboxes by id.
    """

    id: str
    pid: int
    started: int
    port: int
    sandboxes: Mapping[str, SandboxEntry]


class Ledger:
    """The folder with the files. Written by the owner of a process, read and cleaned up by anyone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log_path(self, server_id: str) -> Path:
        """Where a server's output goes."""
        return self._folder / f"{server_id}.log"

    def write(self, entry: ServerEntry) -> None:
        """Replaces the file of a process in one step.

        Raises:
            StorageError: The disk is full or the folder cannot be written.
        """
        record = asdict(entry)
        record[_SANDBOXES] = record.pop("sandboxes")
        write_record(self._path(entry.pid), {"schema_version": 1, **record})

    def remove(self, entry: ServerEntry) -> None:
        """Forgets a process and its log. Idempotent."""
        with contextlib.suppress(OSError):
            self._path(entry.pid).unlink(missing_ok=True)
            self.log_path(entry.id).unlink(missing_ok=True)

    def entries(self) -> Iterator[ServerEntry]:
        """Servers that are running now; files of others are removed on the way."""
        for path in sorted(self._folder.glob("*.json")):
            entry = _read(path)
            if entry is None:
                continue
            if is_running(entry):
                yield entry
            else:
                self.remove(entry)

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Replaces a JSON file of the ledger's folder in one step.

    Raises:
        StorageError: The disk is full or the folder cannot be written.
    """
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StorageError(f"Cannot write the sandbox ledger {path}: {error}") from error


def _read(path: Path) -> ServerEntry | None:
    """None for a file that vanished meanwhile or that is not ours."""
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        sandboxes = {
            id_: SandboxEntry(labels=dict(sandbox["labels"]), created=float(sandbox["created"]))
            for id_, sandbox in row[_SANDBOXES].items()
        }
        pid, started, port = (int(row[name]) for name in ("pid", "started", "port"))
        return ServerEntry(id=str(row["id"]), pid=pid, started=started, port=port, sandboxes=sandboxes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_running(entry: ServerEntry) -> bool:
    """True when this very process, not a later one with its pid, is running."""
    return start_time(entry.pid) == entry.started
