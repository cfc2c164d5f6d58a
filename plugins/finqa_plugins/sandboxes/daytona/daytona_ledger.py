"""Names of sandboxes on disk, each written before its sandbox is requested; ends sandboxes that are left over.

One JSONL file per provider object. Its owner holds a lock on it, so that others can find out whether the owner still
runs, also after kill -9. A line opens a name, or records that its sandbox is gone. The last line may be incomplete.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import FinqaError, StorageError
from finqa_plugins.sandboxes.daytona.daytona_cloud import Cloud
from finqa_plugins.sandboxes.daytona.daytona_create import SANDBOX_LABEL

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenName:
    """A sandbox that may exist.

    Attributes:
        name: The name of the sandbox at Daytona.
        labels: The labels with which it was requested.
        asked: When it was requested, in Unix seconds.
        file: The ledger file that records it.
        owned: Whether the process that requested it is running.
    """

    name: str
    labels: Mapping[str, str]
    asked: float
    file: Path
    owned: bool


class Ledger:
    """The file of one provider object. Created with the first name; `close` removes it if no name is open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._descriptor: int | None = None
        self._open: set[str] = set()
        self._writing = threading.Lock()

    @property
    def open_names(self) -> frozenset[str]:
        """Names whose sandboxes are not known to be gone."""
        return frozenset(self._open)

    async def opened(self, name: str, labels: Mapping[str, str]) -> None:
        """Record that the sandbox is about to be requested; the line is on disk when this returns.

        Raises:
            StorageError: The disk is full or the folder cannot be written.
        """
        self._open.add(name)
        record = {"schema_version": SCHEMA_VERSION, "name": name, "labels": dict(labels), "asked": time.time()}
        try:
            await asyncio.to_thread(self._append, [record], sync=True)
        except OSError as error:
            self._open.discard(name)
            raise StorageError(f"Cannot write the sandbox ledger {self._path}: {error}") from error

    async def gone(self, names: Iterable[str]) -> None:
        """Record that these sandboxes do not exist. If that cannot be written, a later reader finds out by itself."""
        names = self._open.intersection(names)
        if names:
            self._open.difference_update(names)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._append, [{"name": name, "gone": True} for name in sorted(names)])

    def close(self) -> None:
        """Closes the file and releases its lock; removes the file unless a name is open."""
        if self._descriptor is not None:
            if not self._open:
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, records: Iterable[Mapping[str, object]], *, sync: bool = False) -> None:
        with self._writing:
            if self._descriptor is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            _write(self._descriptor, records)
            if sync:
                os.fsync(self._descriptor)


def open_names(folder: Path) -> Iterator[OpenName]:
    """Every open name in any ledger file of the folder."""
    for path in sorted(folder.glob("*.jsonl")):
        owned = _is_owned(path)
        for name, (labels, asked) in _read(path).items():
            yield OpenName(name=name, labels=labels, asked=asked, file=path, owned=owned)


def forget(names: Iterable[OpenName]) -> None:
    """Record that these sandboxes are gone; remove files of dead owners without an open name. Never raises."""
    by_file: dict[Path, list[OpenName]] = {}
    for name in names:
        by_file.setdefault(name.file, []).append(name)
    for path, group in by_file.items():
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                _write(descriptor, [{"name": name.name, "gone": True} for name in group])
            finally:
                os.close(descriptor)
            if not _is_owned(path) and not _read(path):
                path.unlink(missing_ok=True)


def _write(descriptor: int, records: Iterable[Mapping[str, object]]) -> None:
    """Append lines. A line break comes first, so that an incomplete line before it does not spoil the next one."""
    data = "".join("\n" + json.dumps(record, separators=(",", ":")) for record in records).encode() + b"\n"
    written = os.write(descriptor, data)
    if written != len(data):
        raise OSError(f"only {written} of {len(data)} bytes could be written")


def _read(path: Path) -> dict[str, tuple[Mapping[str, str], float]]:
    found: dict[str, tuple[Mapping[str, str], float]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            row = json.loads(line)
            name = str(row["name"])
            if row.get("gone"):
                found.pop(name, None)
            else:
                found[name] = ({str(key): str(value) for key, value in row["labels"].items()}, float(row["asked"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # incomplete, blank, or not ours
    return found


def _is_owned(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # a file system without locks: no process may be assumed dead
    finally:
        os.close(descriptor)
    return False


SEARCH_PAUSES_S = (2.0, 8.0, 30.0, 120.0)
LAST_LOOK_S = 5.0
"""How long `end` looks for a sandbox whose request was never answered."""
AT_ONCE = 50
_PAUSE_S = 0.5


class Leftovers:
    """Looks up names of the ledger and ends the sandboxes found. A name without a sandbox stays in the ledger."""

    def __init__(self, cloud: Cloud, ledger: Ledger, delete_timeout_s: float) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._delete_timeout_s = delete_timeout_s
        self._searches: set[asyncio.Task[None]] = set()

    def search(self, name: str) -> None:
        """Looks for a sandbox in the background, for a few minutes, and ends it."""
        task = asyncio.create_task(self._search(name))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def end(self, ended: Set[str]) -> Sequence[FinqaError]:
        """Ends the searches and the sandboxes of all open names except `ended`; returns the errors."""
        for task in self._searches:
            task.cancel()
        failures: list[FinqaError] = []
        deadline = time.monotonic() + LAST_LOOK_S
        names = self._ledger.open_names - ended
        places = asyncio.Semaphore(AT_ONCE)

        async def look(name: str) -> None:
            async with places:
                try:
                    await self._found_and_ended(name)
                except FinqaError as error:
                    failures.append(error)

        while names and not failures:
            await asyncio.gather(*(look(name) for name in names))
            names &= self._ledger.open_names
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_PAUSE_S)
        return failures

    async def _search(self, name: str) -> None:
        for pause in SEARCH_PAUSES_S:
            await asyncio.sleep(pause)
            with contextlib.suppress(FinqaError):
                if await self._found_and_ended(name):
                    return

    async def _found_and_ended(self, name: str) -> bool:
        remote = await self._cloud.get(name, patience_s=LAST_LOOK_S)
        if remote is None or remote.labels.get(SANDBOX_LABEL) != name:
            return False
        await self._cloud.delete(remote, self._delete_timeout_s)
        await self._ledger.gone([name])
        return True
