"""Replies of servers on disk, for evaluations that are repeated while a prompt or a grader is written.

A reply is found by address, model, request and attempt, so several attempts at a question have their own replies. A
request that differs in one character is sent. Nothing is deleted; `rm -r` of the folder is safe at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.deletion import discard
from finqa_cli.errors import StorageError
from finqa_plugins.engines._http.json_documents import BadReplyError, parse_document, write_document


class RecordedReplies:
    """The replies of one server.

    Attributes:
        folder: Where they are.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder.expanduser()
        self._address = address

    def find(self, body: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], float] | None:
        """The reply to a request, and its age in seconds; None without one. A damaged file counts as none.

        Args:
            body: The request.
            key: Its name: the attempt and the number of its turn.
        """
        try:
            found = parse_document(self._file(body, key).read_bytes())
        except (OSError, BadReplyError):
            return None
        reply, at = found.get("reply"), found.get("time")
        if not isinstance(reply, dict) or not isinstance(at, (int, float)):
            return None
        return reply, max(0.0, time.time() - at)

    def keep(self, body: Mapping[str, Any], key: str, reply: Mapping[str, Any]) -> None:
        """Writes a reply; another process may write the same one.

        Raises:
            StorageError: The folder cannot be written.
        """
        file = self._file(body, key)
        part = file.with_suffix(f".{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_bytes(write_document({"time": time.time(), "reply": dict(reply)}))
            part.replace(file)
        except OSError as error:
            discard(part)
            raise StorageError(
                f"The reply cannot be kept in {self.folder}: {error.strerror or error}.",
                remedy="leave --cache out, or make room there",
            ) from error

    def _file(self, body: Mapping[str, Any], key: str) -> Path:
        named = [self._address, key, {name: body[name] for name in sorted(body)}]
        digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest}.json"
