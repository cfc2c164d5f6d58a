"""Append-only JSON lines: one record per line, written one by one or as a group commit."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.errors import DataError, StorageError
from finqa_cli.runs.durable_files import storage, sync_folder

SCHEMA_VERSION = 1

log = structlog.get_logger(__name__)


class JsonlWriter:
    """Appends records to one file. An incomplete last line, left by a crash, is removed when the file is opened.

    A last record that is whole, and lacks only the line break, stays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _end_last_line(path)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on disk.

        Raises:
            StorageError: The disk is full or broken. The file does not contain the line; earlier lines are intact.
        """
        self.write(_encode(record))

    def write(self, data: bytes) -> None:
        """Write complete lines and wait until they are on disk.

        Raises:
            StorageError: The disk is full or broken. The file contains none of these lines; earlier ones are intact.
        """
        with storage(self.path):
            written = os.write(self._descriptor, data)
            try:
                if written != len(data):  # an unbuffered write to a full disk writes a part instead of raising
                    raise StorageError(
                        f"Cannot write {self.path}: the disk took {written} of {len(data)} bytes.",
                        remedy=f"free some space on the disk of {self.path.parent}",
                    )
                os.fsync(self._descriptor)
            except (OSError, StorageError):
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class GroupCommit:
    """Appends records to one file in its own thread, with one fsync for all records that arrived during the last fsync.

    The records are in the order of the calls. A killed process loses only records whose future is not done.
    """

    def __init__(self, path: Path) -> None:
        self._writer = JsonlWriter(path)
        self._queue: deque[tuple[Callable[[], Mapping[str, Any]], bytes, Future[None]]] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=path.name)
        self._due = False

    def append(self, make: Callable[[], Mapping[str, Any]], further: bytes = b"") -> Future[None]:
        """Queue one record.

        Args:
            make: Returns the fields of the record. Called in the thread.
            further: Further fields, as the ASCII text of a JSON object. It is not parsed, so it must not be empty or
                repeat a field of `make`.

        Returns:
            Future that is done when the record is on disk. It has the StorageError of its batch if that could not be
            written; no record of the batch is then on disk. Cancelling the future does not remove the record from the
            queue.
        """
        future: Future[None] = Future()
        self._queue.append((make, further, future))
        if not self._due:
            self._due = True
            self._thread.submit(self._commit)
        return future

    def close(self) -> None:
        """Write the queued records and close the file. Idempotent."""
        self._thread.shutdown()
        self._writer.close()

    def _commit(self) -> None:
        """Write all records that are queued now."""
        self._due = False  # before the queue is read: a record added from here on is written here or by the next call
        lines: list[bytes] = []
        futures: list[Future[None]] = []
        for _ in range(len(self._queue)):
            make, further, future = self._queue.popleft()
            try:
                lines.append(_encode(make(), further))
            except Exception as error:  # this record alone fails
                _settle(future, error)
            else:
                futures.append(future)
        failure: Exception | None = None
        try:
            if lines:
                self._writer.write(b"".join(lines))
        except Exception as error:
            failure = error
        for future in futures:
            _settle(future, failure)


def read_jsonl(path: Path, *, only: re.Pattern[bytes] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, except empty lines. A last line without a line break is a record like others.

    Only the last line of a file in a run's folder may be incomplete, because its writer was killed or is writing. It is
    then left out, and a warning names the file. In other files, which people write and filter, it is an error.

    Args:
        path: The file.
        only: Lines without a match are skipped unread.

    Raises:
        DataError: A line is not a JSON object; the message names the line.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.isspace() or (only is not None and not only.search(line)):
                continue
            try:
                record = json.loads(line)
            except (ValueError, UnicodeDecodeError) as error:
                if not line.endswith(b"\n") and (path.parent / "run.json").exists():
                    # Log: The writer of a run's file was killed, or is writing; all complete records are read.
                    log.warning("an incomplete last line is left out", file=str(path), line=number)
                    return
                raise DataError(
                    f"{path}, line {number}: not valid JSON ({error}).", remedy=f"correct or remove that line of {path}"
                ) from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}: expected a JSON object, got {type(record).__name__}.")
            yield record


def read_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file from the last to the first. The file is read in blocks, so its end costs little.

    It is for reports about runs, which show what is readable: lines that are not JSON objects, such as an incomplete
    last line, are skipped, and a missing file has no records.
    """
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        position, begun = file.seek(0, os.SEEK_END), b""
        while position > 0:
            step = min(65536, position)
            position -= step
            file.seek(position)
            begun, *lines = (file.read(step) + begun).split(b"\n")
            yield from (record for line in reversed(lines) if (record := _object(line)) is not None)
        if (first := _object(begun)) is not None:
            yield first


def count_lines(path: Path) -> int:
    """Count the complete lines of a file without parsing them; 0 if there is no file."""
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except OSError:
        return 0


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def rewind(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> int:
    """Remove records from a file, for a resumed run that will write them again; return their number.

    The removed records are first appended to `<name>.superseded.jsonl` in the same folder. Files of long runs are
    larger than memory, so only one record is in memory at a time.

    Args:
        path: The file.
        keep: Returns whether a record stays.

    Raises:
        DataError: See `read_jsonl`.
        StorageError: A file cannot be written.
    """
    if not path.exists():
        return 0
    superseded = sum(not keep(record) for record in read_jsonl(path))
    if not superseded:
        return 0
    archive = JsonlWriter(path.with_name(f"{path.stem}.superseded.jsonl"))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with storage(path):
            with temporary.open("w", encoding="utf-8") as file:
                for record in read_jsonl(path):
                    if keep(record):
                        file.write(json.dumps(record, ensure_ascii=True) + "\n")
                    else:
                        archive.append(record)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        archive.close()
        temporary.unlink(missing_ok=True)
    return superseded


def _encode(record: Mapping[str, Any], further: bytes = b"") -> bytes:
    line = json.dumps({"schema_version": SCHEMA_VERSION, **record}, ensure_ascii=True, allow_nan=False).encode()
    return b"%b, %b\n" % (line[:-1], further[1:]) if further else line + b"\n"


def _settle(future: Future[None], failure: Exception | None) -> None:
    if not future.set_running_or_notify_cancel():
        return  # the task that waited for it was cancelled
    if failure is None:
        future.set_result(None)
    else:
        future.set_exception(failure)


def _end_last_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        position, tail = file.seek(0, os.SEEK_END), b""
        while position > 0 and b"\n" not in tail:
            step = min(65536, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
        last = tail[tail.rfind(b"\n") + 1 :]
        if _object(last) is not None:
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
        elif last:
            file.truncate(position + len(tail) - len(last))
            # Log: A run continues whose writer was killed in the middle of a record; complete records stay.
            log.warning("an incomplete last line is removed", file=str(path))
