"""Lists a repository on GitHub by its REST API; files are read as raw content, which serves ranges.

`GET /repos/{owner}/{name}/commits/{ref}` resolves a branch or tag, `GET .../git/trees/{commit}?recursive=1` gives size
and blob hash of every file (https://docs.github.com/rest). Another endpoint is taken as a GitHub Enterprise Server:
its API is below `/api/v3`, its raw content below `/raw`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx

from finqa_cli.data.fetch.digests import Digest
from finqa_cli.data.fetch.download_client import open_client
from finqa_cli.data.fetch.known_sources import GITHUB, Source, is_commit
from finqa_cli.data.fetch.repository_listing import Listing, RemoteFile, bounded, wanted
from finqa_cli.data.fetch.retries import Patience, Transient, persist, refusal, said
from finqa_cli.errors import DataError, ServiceUnavailableError

API = "https://api.github.com"
RAW = "https://raw.githubusercontent.com"
LARGEST_LISTING = 64 * 2**20
"""Bytes of one answer; GitHub cuts a tree at 7 MB."""


async def list_github(
    source: Source, revision: str, *, endpoint: str | None, patience: Patience, tell: Callable[[str], None]
) -> Listing:
    """The files of a repository at the commit that `revision` names.

    Raises:
        ServiceUnavailableError: GitHub cannot be reached, or its hourly limit is used up.
        AuthenticationError: The repository is private.
        DataError: The revision does not exist, or the answer is not GitHub's.
    """
    base = f"{endpoint}/api/v3" if endpoint else API
    raw = f"{endpoint}/raw" if endpoint else RAW
    what = f"{source.repository} at {revision}"
    async with open_client(_headers(), patience) as client:

        async def ask(path: str) -> dict[str, Any]:
            url = f"{base}/repos/{source.repository}/{path}"
            return await persist(lambda: _ask(client, url, what), patience, tell)

        commit = revision if is_commit(revision) else _text(await ask(f"commits/{quote(revision, safe='')}"), "sha")
        if not is_commit(commit):
            raise DataError(f"{GITHUB.name} answered {commit!r} for {what}, which is no commit.")
        blobs = _blobs(await ask(f"git/trees/{commit}?recursive=1"), what)
    files = [
        RemoteFile(
            path=local,
            url=f"{raw}/{source.repository}/{commit}/{quote(path)}",
            size=_size(blobs[path]),
            digest=Digest("git-sha1", _text(blobs[path], "sha")),
        )
        for path, local in wanted(source, blobs, commit).items()
    ]
    return Listing(commit=commit, endpoint=endpoint or "https://github.com", files=bounded(source, files))


def _headers() -> dict[str, str]:
    token = os.environ.get("GITHUB_TOKEN", "").strip()
    return {
        "Accept": "application/vnd.github+json",
        "User-Agent": "finqa",
        "X-GitHub-Api-Version": "2022-11-28",
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }


async def _ask(client: httpx.AsyncClient, url: str, what: str) -> dict[str, Any]:
    data = bytearray()
    try:
        async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
            async for chunk in answer.aiter_raw():
                data += chunk
                if len(data) > LARGEST_LISTING:
                    raise DataError(f"{_host(url)} sends more than {LARGEST_LISTING} bytes for {what}.")
    except httpx.HTTPError as error:
        raise Transient(f"{GITHUB.name} ({_host(url)}) cannot be reached: {said(error)}") from error
    if answer.status_code in (403, 429) and answer.headers.get("x-ratelimit-remaining") == "0":
        raise ServiceUnavailableError(
            f"{GITHUB.name}'s hourly limit of requests is used up{_until(answer.headers.get('x-ratelimit-reset'))}.",
            remedy="Wait, or set GITHUB_TOKEN: the limit is far higher with a token.",
        )
    if answer.status_code == 422:  # what it answers to a ref that is none
        raise DataError(f"{what}: there is no such revision.", remedy="Give --revision a commit, branch or tag.")
    if answer.is_error:
        raise refusal(GITHUB, what, answer.status_code, answer.headers)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{_host(url)} did not answer as {GITHUB.name} does: no JSON.") from error
    if not isinstance(document, dict):
        raise DataError(f"{_host(url)} did not answer as {GITHUB.name} does: no JSON object.")
    return document


def _blobs(document: dict[str, Any], what: str) -> dict[str, dict[str, Any]]:
    if document.get("truncated"):
        raise DataError(f"{GITHUB.name} cut the listing of {what} short; it has too many files.")
    entries = document.get("tree")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{GITHUB.name}'s answer lacks the field 'tree'.")
    return {_text(entry, "path"): entry for entry in entries if entry.get("type") == "blob"}


def _host(url: str) -> str:
    """Host of an address, for messages."""
    return httpx.URL(url).host


def _until(reset: str | None) -> str:
    try:
        return f" until {time.strftime('%H:%M UTC', time.gmtime(int(reset or '')))}"
    except (ValueError, OverflowError, OSError):
        return ""


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise DataError(f"{GITHUB.name}'s answer lacks the field {key!r}.")
    return value


def _size(entry: dict[str, Any]) -> int:
    size = entry.get("size")
    if not isinstance(size, int):
        raise DataError(f"{GITHUB.name} announces no size of {entry.get('path')!r}.")
    return size
