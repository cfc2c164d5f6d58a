"""The part of a file that has arrived. It outlives the process, and is never taken for a part of other content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from finqa_cli.data.fetch.digests import Content, content_of
from finqa_cli.data.fetch.repository_listing import PARTIALS, RemoteFile
from finqa_cli.data.fetch.storing import storage


class Partial:
    """`<folder>/.fetch/<name>.part`, with the ETag under which it was served in `<name>.etag`.

    The name is made from path and announced checksum, so that another revision of the file finds nothing to go on with.
    """

    def __init__(self, folder: Path, file: RemoteFile) -> None:
        name = hashlib.sha256(f"{file.path}\0{file.digest}".encode()).hexdigest()[:32]
        self._target = folder / file.path
        self.path = folder / PARTIALS / f"{name}.part"
        self._etag_path = self.path.with_suffix(".etag")

    def size(self) -> int:
        """Bytes that have arrived."""
        with storage(self.path):
            return self.path.stat().st_size if self.path.exists() else 0

    def etag(self) -> str:
        """The ETag of the answer that began it; empty when there was none."""
        try:
            return self._etag_path.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def begin(self, etag: str) -> None:
        """Empties it for an answer that starts at the first byte."""
        with storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
            self._etag_path.write_text(etag, encoding="utf-8")

    def append(self, chunk: bytes) -> None:
        """Adds bytes; they are with the system when this returns, so a killed process loses none."""
        with storage(self.path), self.path.open("ab") as file:
            file.write(chunk)

    def discard(self) -> None:
        """Forgets what has arrived."""
        with storage(self.path):
            self.path.unlink(missing_ok=True)
            self._etag_path.unlink(missing_ok=True)

    def content(self) -> Content | None:
        """What has arrived, with its checksums."""
        return content_of(self.path)

    def publish(self) -> None:
        """Makes it the file that it is a part of: all of its bytes or nothing."""
        with storage(self._target):
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
            self._target.parent.mkdir(parents=True, exist_ok=True)
            self.path.replace(self._target)
            self._etag_path.unlink(missing_ok=True)
