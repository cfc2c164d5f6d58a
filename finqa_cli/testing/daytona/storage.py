"""The object storage of the account: the part of S3's REST API with which the SDK uploads build contexts.

The SDK's uploader, obstore, talks TLS only and trusts the system's certificates, so this listens on a port of its own
with a certificate made for the occasion. How a client comes to trust it is told in `trust.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from email.utils import formatdate
from pathlib import Path

from finqa_cli.testing.daytona.http_messages import Head, Refusal, Reply, Request
from finqa_cli.testing.daytona.listener import HOST, Listener
from finqa_cli.testing.daytona.loopback_sandboxes import ORGANIZATION, REGION
from finqa_cli.testing.daytona.trust import Authority

BUCKET = "loopback-builds"
_XML = {"Content-Type": "application/xml"}


class Storage:
    """Objects are files below `folder`. Requests must be signed with the access key that was given out."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self._folder = folder
        self._authority = authority
        self._access_key = f"loopback-{secrets.token_hex(8)}"
        self._listener = Listener(self._answer, _no_takeover)
        self._opening = asyncio.Lock()
        self._port = 0

    def context(self, digest: str) -> Path | None:
        """The archive of an uploaded build context."""
        path = self._path(f"{ORGANIZATION}/{digest}/context.tar")
        return path if path.is_file() else None

    async def push_access(self, _: Request) -> Reply:
        """Where and how to upload; begins to listen when it is asked for the first time."""
        async with self._opening:
            if not self._port:
                try:
                    self._port = await self._listener.open(tls=self._authority.context())
                except ImportError as error:
                    raise Refusal(503, f"The loopback's object storage needs a certificate: {error}") from None
        body = {
            "accessKey": self._access_key,
            "secret": secrets.token_hex(16),
            "sessionToken": "loopback",
            "storageUrl": f"https://{HOST}:{self._port}",
            "organizationId": ORGANIZATION,
            "bucket": BUCKET,
            "region": REGION,
        }
        return Reply(body=body)

    async def close(self) -> None:
        """Stops listening."""
        await self._listener.close()

    async def _answer(self, request: Request, _: asyncio.Event) -> Reply:
        if f"Credential={self._access_key}/" not in request.head.headers.get("authorization", ""):
            raise Refusal(403, "The access key is wrong")
        bucket, _slash, key = request.head.path.strip("/").partition("/")
        if bucket != BUCKET or not key:
            raise Refusal(404, "No such bucket")
        path = self._path(key)
        method, upload = request.head.method, request.query("uploadId")
        if method == "POST" and request.query("uploads", "absent") == "":
            return Reply(body=_result("InitiateMultipartUpload", key, UploadId=secrets.token_hex(8)), headers=_XML)
        if method == "PUT":
            target = self._part(upload, request.query("partNumber")) if upload else path
            await asyncio.to_thread(_write, target, request.body)
            return Reply(headers={"ETag": _etag(request.body)})
        if method == "POST" and upload:
            await asyncio.to_thread(self._join, upload, path)
            return Reply(body=_result("CompleteMultipartUpload", key, ETag=_etag(key.encode())), headers=_XML)
        if method == "HEAD":
            return _head(path)
        raise Refusal(405, f"The loopback's object storage does not know {method}")

    def _path(self, key: str) -> Path:
        return self._folder / "objects" / hashlib.sha256(key.encode()).hexdigest()

    def _part(self, upload: str, number: str) -> Path:
        if not (upload.isalnum() and number.isdecimal()):
            raise Refusal(400, "The upload's id or the part's number is wrong")
        return self._folder / "uploads" / upload / f"{int(number):06d}"

    def _join(self, upload: str, target: Path) -> None:
        parts = sorted(self._part(upload, "0").parent.iterdir())
        _write(target, b"".join(part.read_bytes() for part in parts))


def _no_takeover(_head: Head, _transport: asyncio.Transport, _rest: bytes) -> bool:
    return False


def _head(path: Path) -> Reply:
    if not path.is_file():
        raise Refusal(404, "No such key")
    status = path.stat()
    headers = {
        "Content-Length": str(status.st_size),
        "Last-Modified": formatdate(status.st_mtime, usegmt=True),
        "ETag": _etag(path.name.encode()),
    }
    return Reply(headers=headers)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _result(name: str, key: str, **fields: str) -> bytes:
    inner = "".join(f"<{field}>{value}</{field}>" for field, value in fields.items())
    text = f"<{name}Result><Bucket>{BUCKET}</Bucket><Key>{key}</Key>{inner}</{name}Result>"
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
