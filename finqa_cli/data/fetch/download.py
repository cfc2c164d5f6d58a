"""Downloads files: several at a time, each resumed where it stopped, and checked against what the host announced.

Resumption is `Range` with `If-Range` (RFC 9110, 13.1.5 and 14.2): a host that no longer has the ETag, or supports no
ranges, answers 200 with the whole file, and the part starts over.

huggingface_hub 2.4 and pooch 1.9 cannot do this: the first deletes its partial file when a download fails and sends no
`If-Range`, the second sends no `Range`. `test_fetch_resumes.py` asserts that a second run continues a first one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from finqa_cli.data.fetch.digests import Content, content_of, storage
from finqa_cli.data.fetch.known_sources import Host
from finqa_cli.data.fetch.repository_listing import PARTIALS, Listing, RemoteFile
from finqa_cli.data.fetch.retries import Patience, Transient, error_text, open_client, persist, refusal
from finqa_cli.errors import DataError, FinqaError, ServiceUnavailableError


class Partial:
    """`<folder>/.fetch/<name>.part`, with the ETag under which it was served in `<name>.etag`.

    The name depends on the path and the announced checksum, so that another revision of the file starts again.
    """

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        name = hashlib.sha256(f"{file.path}\0{file.digest}".encode()).hexdigest()[:32]
        self._target = folder / file.path
        self.path = folder / PARTIALS / f"{name}.part"
        self._etag_path = self.path.with_suffix(".etag")

    def size(self) -> int:
        """Returns the number of bytes that have arrived."""
        with storage(self.path):
            return self.path.stat().st_size if self.path.exists() else 0

    def etag(self) -> str:
        """Returns the ETag of the first answer; empty when there was none."""
        try:
            return self._etag_path.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def begin(self, etag: str) -> None:
        """Empties the part for an answer that starts at the first byte."""
        with storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            self._etag_path.write_text(etag, encoding="utf-8")

    def append(self, chunk: bytes) -> None:
        """Appends bytes and flushes them to the operating system, so that none are lost if the process is killed."""
        with storage(self.path), self.path.open("ab") as file:
            file.write(chunk)

    def discard(self) -> None:
        """Deletes what has arrived."""
        with storage(self.path):
            self.path.unlink(missing_ok=True)
            self._etag_path.unlink(missing_ok=True)

    def content(self) -> Content | None:
        """Returns size and checksums of what has arrived."""
        return content_of(self.path)

    def publish(self) -> None:
        """Renames the part to the file, atomically."""
        with storage(self._target):
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self.path.replace(self._target)
            self._etag_path.unlink(missing_ok=True)


AT_A_TIME = 8


@dataclass(slots=True, kw_only=True)
class Downloader:
    """Downloads files of one listing into a folder.

    Attributes:
        moved: Called with the number of bytes of all files that have arrived; it decreases when a file starts over.
        tell: Called with a line about each failure that is retried.
        resumed: Paths of files whose first part had arrived in an earlier fetch.
    """

    host: Host
    listing: Listing
    folder: Path
    patience: Patience
    moved: Callable[[int], None]
    tell: Callable[[str], None]
    resumed: list[str] = field(default_factory=list)
    _positions: dict[str, int] = field(default_factory=dict)
    _done: int = 0

    async def run(self, files: Sequence[RemoteFile]) -> dict[str, Content]:
        """Downloads the files and returns size and checksums of each.

        Raises:
            ServiceUnavailableError: Every attempt failed, or the host did not answer.
            AuthenticationError: The host requires a token.
            DataError: A file does not exist, or its content is not what the host announced.
            StorageError: A file cannot be written.
        """
        places = asyncio.Semaphore(AT_A_TIME)
        async with open_client(self.listing.headers, self.patience) as client:

            async def one(file: RemoteFile) -> Content:
                async with places:
                    return await self._download(client, file)

            try:
                async with asyncio.TaskGroup() as group:
                    tasks = {file.path: group.create_task(one(file)) for file in files}
            except ExceptionGroup as failures:
                raise _first(failures) from failures
        return {path: task.result() for path, task in tasks.items()}

    async def _download(self, client: httpx.AsyncClient, file: RemoteFile) -> Content:
        partial = Partial(self.folder, file)
        if partial.size():
            self.resumed.append(file.path)
        for last in (False, True):
            of_one_answer = await persist(lambda: self._receive(client, file, partial), self.patience, self.tell)
            content = await asyncio.to_thread(partial.content)
            if content is not None and content.under(file.digest.algorithm) == file.digest:
                partial.publish()
                return content
            partial.discard()
            if of_one_answer or last:
                break
            self.tell(f"{file.path}: the downloaded parts do not match; starting over")
        got = content.under(file.digest.algorithm) if content else "nothing"
        raise DataError(
            f"{file.path}: {self.host.name} announced {file.digest}, but sent {got}.",
            remedy="Run the same command again; if the error remains, the host or a proxy causes it.",
        )

    async def _receive(self, client: httpx.AsyncClient, file: RemoteFile, partial: Partial) -> bool:
        """Requests the missing bytes. Returns True if all bytes of the file arrived in this one response."""
        have = partial.size()
        if have > file.size:
            partial.discard()
            have = 0
        self._at(file, have)
        if have == file.size > 0:
            return False
        headers = {"Accept-Encoding": "identity", **_conditions(have, partial.etag())}
        try:
            async with client.stream("GET", file.url, headers=headers) as answer:
                return await self._take(answer, file, partial, have)
        except httpx.TransportError as error:
            raise Transient(f"{file.path}: {self.host.name} broke off: {error_text(error)}") from error
        except httpx.HTTPError as error:
            message = f"{file.path}: {self.host.name} sent an invalid response: {error_text(error)}."
            raise ServiceUnavailableError(message) from error

    async def _take(self, answer: httpx.Response, file: RemoteFile, partial: Partial, have: int) -> bool:
        etag = answer.headers.get("etag", "")
        if answer.status_code == 416 or (answer.status_code == 206 and not _continues(answer, have, partial.etag())):
            partial.discard()
            raise Transient(f"{file.path}: {self.host.name} has a different file now; starting over", 0.0)
        if answer.status_code not in (200, 206):
            raise refusal(self.host, file.path, answer.status_code, answer.headers)
        if answer.status_code == 200 or have == 0:
            partial.begin(etag)
            have = 0
        begun_at = have
        async for chunk in answer.aiter_bytes():  # without a chunk size, which would delay the last bytes
            have += len(chunk)
            if have > file.size:
                partial.discard()
                raise DataError(f"{file.path}: {self.host.name} announced {file.size} bytes, but sent more.")
            partial.append(chunk)
            self._at(file, have)
        if have < file.size:
            raise Transient(f"{file.path}: {self.host.name} sent {have} of {file.size} bytes")
        return begun_at == 0

    def _at(self, file: RemoteFile, position: int) -> None:
        self._done += position - self._positions.get(file.path, 0)
        self._positions[file.path] = position
        self.moved(self._done)


def _conditions(have: int, etag: str) -> dict[str, str]:
    if not have:
        return {}
    strong = etag.startswith('"')
    return {"Range": f"bytes={have}-", **({"If-Range": etag} if strong else {})}


def _continues(answer: httpx.Response, have: int, etag: str) -> bool:
    """Returns whether a 206 continues where the part ends, in the same content."""
    now = answer.headers.get("etag", "")
    at_our_byte = answer.headers.get("content-range", "").startswith(f"bytes {have}-")
    return at_our_byte and (not etag or not now or etag == now)


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Returns one error for the user, because the first failure cancelled the other downloads."""
    return next((one for one in failures.exceptions if isinstance(one, FinqaError)), failures.exceptions[0])
