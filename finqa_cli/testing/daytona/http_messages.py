"""HTTP/1.1 requests read from bytes, and replies written to bytes (RFC 9112, the part that clients use)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024
HEAD_END = b"\r\n\r\n"


class MalformedRequest(ValueError):
    """The bytes are no request; the connection cannot go on."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body.

    Attributes:
        method: Upper case.
        target: As received: path and query, still quoted.
        headers: Names in lower case.
    """

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        """Without the query, still quoted."""
        return self.target.partition("?")[0]


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request."""

    head: Head
    body: bytes

    @property
    def parts(self) -> tuple[str, ...]:
        """The path's segments, unquoted."""
        return tuple(unquote(part) for part in self.head.path.strip("/").split("/"))

    def query(self, name: str, default: str = "") -> str:
        """The first value of a query parameter."""
        return parse_qs(self.head.target.partition("?")[2], keep_blank_values=True).get(name, [default])[0]

    def queries(self, name: str) -> list[str]:
        """All values of a query parameter, those in one value separated by commas included."""
        found = parse_qs(self.head.target.partition("?")[2]).get(name, [])
        return [part for value in found for part in value.split(",")]

    def json(self) -> dict[str, object]:
        """The body as a JSON object.

        Raises:
            Refusal: It is something else; status 400.
        """
        try:
            value = json.loads(self.body or b"{}")
        except ValueError:
            raise Refusal(400, "The body is no JSON") from None
        if not isinstance(value, dict):
            raise Refusal(400, "The body is no JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back.

    Attributes:
        status: HTTP status.
        body: JSON when it is no bytes; None means no body.
        headers: Further headers.
        stream: Sent chunk by chunk instead of `body`.
    """

    status: int = 200
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None

    def encoded(self, method: str = "GET") -> bytes:
        """Head and body; of a stream the head only."""
        content = self.content()
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        given = {name.lower() for name in self.headers}
        if not isinstance(self.body, bytes) and self.body is not None and "content-type" not in given:
            lines.append("Content-Type: application/json")
        if self.stream is not None:
            lines.append("Transfer-Encoding: chunked")
        elif self.status != HTTPStatus.NO_CONTENT and "content-length" not in given:
            lines.append(f"Content-Length: {len(content)}")
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join(lines).encode() + HEAD_END + (b"" if method == "HEAD" else content)

    def content(self) -> bytes:
        """The body's bytes."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b""
        return json.dumps(self.body).encode()


class Refusal(Exception):
    """A request that is answered with an error, in the shape of Daytona's errors."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}
        self.code = code

    def reply(self, path: str) -> Reply:
        """The answer."""
        body = {
            "statusCode": self.status,
            "error": HTTPStatus(self.status).phrase,
            "message": self.message,
            "path": path,
            "source": "DAYTONA_DAEMON" if path.startswith("/toolbox") else "DAYTONA_API",
            **({"code": self.code} if self.code else {}),
        }
        return Reply(self.status, body, self.headers)


class Cut(Exception):
    """The connection is to be dropped instead of answered."""


def take_head(buffer: bytearray) -> Head | None:
    """Removes a request's head from the buffer's start; None while it is not complete.

    Raises:
        MalformedRequest: It is no head.
    """
    end = buffer.find(HEAD_END)
    if end < 0:
        if len(buffer) > MAX_HEAD:
            raise MalformedRequest("the head is too long")
        return None
    lines = buffer[:end].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise MalformedRequest("this is no HTTP/1.1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise MalformedRequest("a header has no colon")
        headers[name.strip().lower()] = value.strip()
    del buffer[: end + len(HEAD_END)]
    return Head(words[0].upper(), words[1], headers)


def take_body(head: Head, buffer: bytearray) -> bytes | None:
    """Removes the body from the buffer's start; None while it is not complete.

    Raises:
        MalformedRequest: It is too long or wrongly framed.
    """
    if len(buffer) > MAX_BODY:
        raise MalformedRequest("the body is too long")
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        return _take_chunks(buffer)
    text = head.headers.get("content-length", "0")
    if not text.isdecimal() or int(text) > MAX_BODY:
        raise MalformedRequest("the body's length is wrong")
    length = int(text)
    if len(buffer) < length:
        return None
    body = bytes(buffer[:length])
    del buffer[:length]
    return body


def _take_chunks(buffer: bytearray) -> bytes | None:
    if not buffer.endswith(b"0\r\n\r\n"):  # no pipelining: the last chunk ends what was received
        return None
    body = bytearray()
    at = 0
    while True:
        line_end = buffer.find(b"\r\n", at)
        try:
            size = int(bytes(buffer[at:line_end]).partition(b";")[0], 16)
        except ValueError:
            raise MalformedRequest("a chunk has no size") from None
        at = line_end + 2
        if size == 0:
            break
        if at + size + 2 > len(buffer):
            return None
        body += buffer[at : at + size]
        at += size + 2
    buffer.clear()
    return bytes(body)
