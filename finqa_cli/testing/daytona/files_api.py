"""`/toolbox/{box}/files`: files of a box, kept in its own folder on this machine; those of its image are read-only."""

from __future__ import annotations

import asyncio
import posixpath
import re
import secrets
import shutil
from pathlib import Path

from finqa_cli.testing.daytona.http_messages import Refusal, Reply, Request
from finqa_cli.testing.daytona.loopback_sandboxes import Box, iso
from finqa_cli.testing.daytona.router import Router
from finqa_cli.testing.daytona.toolbox_api import ToolboxApi

_FIELD = re.compile(rb'\bname="([^"]*)"')


class FilesApi:
    """Handlers of one account."""

    def __init__(self, toolbox: ToolboxApi) -> None:
        self._toolbox = toolbox

    def register(self, router: Router) -> None:
        """Adds the routes."""
        files = "/toolbox/{box}/files"
        router.add("POST", f"{files}/bulk-upload", self.upload)
        router.add("POST", f"{files}/bulk-download", self.download)
        router.add("POST", f"{files}/folder", self.make_folder)
        router.add("GET", f"{files}/info", self.info)
        router.add("GET", files, self.list)
        router.add("DELETE", files, self.delete)

    async def upload(self, request: Request, box: str) -> Reply:
        """Writes the parts `files[N].file` of a form to the paths in its parts `files[N].path`."""
        found = await self._toolbox.running(box)
        parts = _parts(request)
        for name, content in parts.items():
            if name.endswith(".file"):
                path = parts.get(name.removesuffix(".file") + ".path", b"").decode("utf-8", "replace")
                target = _own(found, path)
                await asyncio.to_thread(_write, target, content)
                found.files[_normal(path)] = target
        return Reply()

    async def download(self, request: Request, box: str) -> Reply:
        """Sends files as the parts of a form; a part named `error` for what is missing."""
        found = await self._toolbox.running(box)
        paths = request.json().get("paths")
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise Refusal(400, "paths must be a list of strings")
        boundary = secrets.token_hex(16)
        body = b""
        for path in paths:
            file = _readable(found, path)
            missing = file is None or not file.is_file()
            content = b"file not found" if file is None or missing else await asyncio.to_thread(file.read_bytes)
            name = "error" if missing else "file"
            body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{path}"\r\n\r\n'.encode()
            body += content + b"\r\n"
        body += f"--{boundary}--\r\n".encode()
        return Reply(body=body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})

    async def make_folder(self, request: Request, box: str) -> Reply:
        """Makes a folder of the box's own."""
        found = await self._toolbox.running(box)
        path = request.query("path")
        target = _own(found, path)
        target.mkdir(parents=True, exist_ok=True)
        found.files[_normal(path)] = target
        return Reply(201)

    async def info(self, request: Request, box: str) -> Reply:
        """FileInfo of the SDK 0.226.1."""
        path = request.query("path")
        file = _readable(await self._toolbox.running(box), path)
        if file is None or not file.exists():
            raise Refusal(404, f"file not found: {path}")
        return Reply(body=_info(file, _normal(path)))

    async def list(self, request: Request, box: str) -> Reply:
        """The entries of a folder."""
        path = request.query("path")
        folder = _readable(await self._toolbox.running(box), path)
        if folder is None or not folder.is_dir():
            raise Refusal(404, f"folder not found: {path}")
        return Reply(body=[_info(file, posixpath.join(_normal(path), file.name)) for file in sorted(folder.iterdir())])

    async def delete(self, request: Request, box: str) -> Reply:
        """Deletes a file of the box's own, or with `recursive=true` a folder."""
        found = await self._toolbox.running(box)
        path = request.query("path")
        target = _own(found, path)
        if not target.exists():
            raise Refusal(404, f"file not found: {path}")
        if target.is_dir():
            if request.query("recursive").lower() != "true":
                raise Refusal(400, f"{path} is a directory")
            await asyncio.to_thread(shutil.rmtree, target)
        else:
            target.unlink()
        found.files.pop(_normal(path), None)
        return Reply(204)


def _normal(path: str) -> str:
    if not path:
        raise Refusal(400, "path is required")
    return posixpath.normpath(posixpath.join("/", path))


def _own(box: Box, path: str) -> Path:
    """Below the box's folder whatever the path says."""
    return box.folder / "root" / _normal(path).lstrip("/")


def _readable(box: Box, path: str) -> Path | None:
    own = _own(box, path)
    if own.exists():
        return own
    outside = box.image.host_path(_normal(path))
    return None if outside is None else Path(outside)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _info(file: Path, path: str) -> dict[str, object]:
    status = file.stat()
    when = iso(status.st_mtime)
    return {
        "name": file.name,
        "path": path,
        "isDir": file.is_dir(),
        "size": status.st_size,
        "mode": oct(status.st_mode & 0o777),
        "permissions": f"{status.st_mode & 0o777:04o}",
        "modTime": when,
        "modifiedAt": when,
        "owner": "daytona",
        "group": "daytona",
    }


def _parts(request: Request) -> dict[str, bytes]:
    """The parts of a form by name (RFC 7578)."""
    kind, _, boundary = request.head.headers.get("content-type", "").partition("boundary=")
    if "multipart/form-data" not in kind or not boundary:
        raise Refusal(400, "The body is no form")
    found = {}
    for part in (b"\r\n" + request.body).split(b"\r\n--" + boundary.strip('"').encode())[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        if match := _FIELD.search(head):
            found[match[1].decode("utf-8", "replace")] = content
    return found
