"""The record of running servers for other processes of this user: one file of JSON lines per server process.

The first line describes the process; each later one adds a sandbox (`add`, with `labels` and `created`) or takes one
away (`remove`). So the cost of a change does not grow with the number of sandboxes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import StorageError
from finqa_cli.processes import start_time

_QUIET_S = 600.0
"""Seconds without output after which a log without a record is a leftover. A starting server has no record yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxEntry:
    """One logical sandbox. `created` is Unix time in seconds."""

    labels: Mapping[str, str]
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """One server process.

    Attributes:
        started: Start time of the process in clock ticks since boot, which tells it from a later one with its pid.
        sandboxes: Its logical sandboxes by id.
    """

    id: str
    pid: int
    started: int
    port: int
    sandboxes: Mapping[str, SandboxEntry]


class Ledger:
    """The folder with the files. Only the owner of a server writes its file; any process may read and remove it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log_path(self, server_id: str) -> Path:
        """The file for a server's output."""
        return self._folder / f"{server_id}.log"

    def create(self, entry: ServerEntry) -> ServerFile:
        """Creates the file of a process; replaces one that an earlier process with the same pid left.

        Raises:
            StorageError: The disk is full or the folder cannot be written.
        """
        path = self._path(entry.pid)
        facts = {"id": entry.id, "pid": entry.pid, "started": entry.started, "port": entry.port}
        write_record(path, {"schema_version": 2, **facts})
        file = ServerFile(path)
        for sandbox_id, sandbox in entry.sandboxes.items():
            file.add(sandbox_id, sandbox)
        return file

    def remove(self, entry: ServerEntry) -> None:
        """Removes the file and the log of a process. Idempotent."""
        with contextlib.suppress(OSError):
            self._path(entry.pid).unlink(missing_ok=True)
            self.log_path(entry.id).unlink(missing_ok=True)

    def entries(self) -> Iterator[ServerEntry]:
        """Yields servers that are running; removes the files of others."""
        for path in sorted(self._folder.glob("*.json")):
            entry = _read(path)
            if entry is None:
                continue
            if is_running(entry):
                yield entry
            else:
                self.remove(entry)

    def leftovers(self) -> list[Path]:
        """Files of servers that ended: their records, and logs without a record that are old enough."""
        found, named = [], set()
        for path in sorted(self._folder.glob("*.json")):
            if (entry := _read(path)) is None:
                continue
            named.add(self.log_path(entry.id))
            if not is_running(entry):
                found += [path, *filter(Path.exists, [self.log_path(entry.id)])]
        now = time.time()
        for log in sorted(self._folder.glob("local-*.log")):
            with contextlib.suppress(OSError):  # the log vanished meanwhile
                if log not in named and now - log.stat().st_mtime > _QUIET_S:
                    found.append(log)
        return found

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}.json"


class ServerFile:
    """The file of a running server process, open for appending."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise _cannot_write(path, error) from error

    def add(self, sandbox_id: str, sandbox: SandboxEntry) -> None:
        """Adds a sandbox.

        Raises:
            StorageError: The disk is full.
        """
        self._append({"add": sandbox_id, "labels": dict(sandbox.labels), "created": sandbox.created})

    def remove(self, sandbox_id: str) -> None:
        """Removes a sandbox.

        Raises:
            StorageError: The disk is full.
        """
        self._append({"remove": sandbox_id})

    def close(self) -> None:
        """Closes the file without removing it. Call it once."""
        os.close(self._descriptor)

    def _append(self, change: Mapping[str, object]) -> None:
        line = f"{json.dumps(change)}\n".encode()
        try:
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise _cannot_write(self._path, error) from error


def write_record(path: Path, record: Mapping[str, object]) -> None:
    """Replaces a JSON file of the ledger's folder in one step.

    Raises:
        StorageError: The disk is full or the folder cannot be written.
    """
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"{json.dumps(record)}\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(f"Cannot write the sandbox ledger {path}: {error}")


def _read(path: Path) -> ServerEntry | None:
    """The server in a file, up to a change that is incomplete; None if the file vanished or is not ours."""
    try:
        first, *changes = path.read_text(encoding="utf-8").splitlines()
        facts = json.loads(first)
        pid, started, port = (int(facts[name]) for name in ("pid", "started", "port"))
        return ServerEntry(id=str(facts["id"]), pid=pid, started=started, port=port, sandboxes=_replay(changes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _replay(changes: Sequence[str]) -> dict[str, SandboxEntry]:
    sandboxes: dict[str, SandboxEntry] = {}
    for line in changes:
        try:
            change = json.loads(line)
        except ValueError:
            continue  # the owner was killed while it wrote, so this is the last line
        if (added := change.get("add")) is not None:
            sandboxes[added] = SandboxEntry(labels=change["labels"], created=float(change["created"]))
        else:
            sandboxes.pop(change["remove"], None)
    return sandboxes


def is_running(entry: ServerEntry) -> bool:
    """Whether this process is running, not a later one with its pid."""
    return start_time(entry.pid) == entry.started
