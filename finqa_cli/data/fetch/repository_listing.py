"""Lists the files of a source in a repository at one commit, on the Hugging Face hub or GitHub, with checked names."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from finqa_cli import __version__
from finqa_cli.data.fetch.digests import Digest
from finqa_cli.data.fetch.known_sources import GITHUB, HUB, Source, checked_endpoint, is_commit
from finqa_cli.data.fetch.retries import Patience, Transient, error_text, open_client, persist, refusal
from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError, MissingDependencyError, ServiceUnavailableError

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import DatasetInfo, RepoSibling

API = "https://api.github.com"
RAW = "https://raw.githubusercontent.com"
LARGEST_LISTING = 64 * 2**20
"""Largest size of one response, in bytes; GitHub truncates a tree at 7 MB."""

DOCUMENTS = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt")
"""Files that are fetched from every source, because they contain the licence."""

MANIFEST = "fetch.json"
PARTIALS = ".fetch"
MAX_FILES = 50_000
MAX_BYTES = 2**34


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file to download.

    Attributes:
        path: Local path relative to the folder; checked by `safe_name`.
        url: Address; contains no secret.
        size: Announced bytes.
        digest: Announced checksum.
    """

    path: str
    url: str
    size: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A repository at one commit.

    Attributes:
        files: Files to download, ordered by path.
        licence: Licence that the repository itself announces; empty when it was not read.
        headers: Headers of downloads; may contain a token, so it is never shown or written.
    """

    commit: str
    endpoint: str
    files: tuple[RemoteFile, ...]
    licence: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def wanted_paths(source: Source, paths: Iterable[str], commit: str) -> dict[str, str]:
    """Returns the paths of the repository that belong to a source, each with its local path.

    Raises:
        DataError: A pattern matches nothing, a name is unsafe, or two files would have the same local path.
    """
    every = sorted(set(paths))
    missing = [pattern for pattern in source.files if not any(fnmatchcase(path, pattern) for path in every)]
    if missing:
        raise DataError(
            f"{source.repository} at {commit} has no {' and no '.join(missing)}: its layout has changed.",
            remedy=f"finqa data fetch {source.name} --revision COMMIT, with a commit that has it",
        )
    taken = [path for path in every if any(fnmatchcase(path, one) for one in (*source.files, *DOCUMENTS))]
    local = {path: safe_name(path.removeprefix(source.strip)) for path in taken}
    if len(set(local.values())) < len(local):
        raise DataError(f"{source.repository} at {commit} has two files for one name.")
    return local


def check_limits(source: Source, files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """Returns the files in order of their paths.

    Raises:
        DataError: There are more than MAX_FILES files or MAX_BYTES bytes, or a size is negative.
    """
    ordered = tuple(sorted(files, key=lambda file: file.path))
    total = sum(file.size for file in ordered)
    if len(ordered) > MAX_FILES or total > MAX_BYTES or any(file.size < 0 for file in ordered):
        raise DataError(
            f"{source.repository} announces {len(ordered)} files with {total} bytes; "
            f"at most {MAX_FILES} files and {MAX_BYTES} bytes are taken."
        )
    return ordered


def safe_name(name: str) -> str:
    """Returns the name if it stays inside its folder on every operating system and is not a name of finqa's own files.

    Raises:
        DataError: The name is absolute, has a `..` or a drive, contains control characters, or would overwrite
            finqa's record.
    """
    path = PurePosixPath(name)
    outside = path.is_absolute() or "\\" in name or ".." in path.parts or any(map(_has_drive, path.parts))
    if outside or not path.parts or not name.isprintable() or str(path) != name:
        raise DataError(f"Refused the served file name {name!r}: it is not a plain relative path.")
    if path.parts[0].casefold() in (MANIFEST, PARTIALS):
        raise DataError(f"Refused the served file name {name!r}: finqa stores its own record there.")
    return name


def _has_drive(part: str) -> bool:
    return PureWindowsPath(part).drive != ""


async def list_hub(
    source: Source, revision: str, *, endpoint: str | None, patience: Patience, tell: Callable[[str], None]
) -> Listing:
    """Lists the files of a data set at the commit that `revision` names.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
        ServiceUnavailableError: The hub cannot be reached, or HF_HUB_OFFLINE forbids it.
        AuthenticationError: The data set is gated or private, and no token gives access.
        DataError: The revision does not exist, or the response is not that of a hub.
    """
    try:
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, not in its stubs
    except ImportError as error:
        raise MissingDependencyError(
            "This needs huggingface_hub, which is not installed.", remedy="pip install 'finqa[data]'"
        ) from error
    api = HfApi(endpoint=endpoint, library_name="finqa", library_version=__version__)
    checked_endpoint(api.endpoint)
    what = f"{source.repository} at {revision}"

    async def attempt() -> DatasetInfo:
        return await asyncio.to_thread(_dataset_info, api, source.repository, revision, what, patience.connect_s)

    info = await persist(attempt, patience, tell)
    commit = str(info.sha)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}

    def remote(path: str, local: str) -> RemoteFile:
        url = hf_hub_url(source.repository, path, repo_type="dataset", revision=commit, endpoint=api.endpoint)
        return _remote(siblings[path], local, url)

    names = wanted_paths(source, siblings, commit)
    return Listing(
        commit=commit,
        endpoint=api.endpoint,
        files=check_limits(source, [remote(path, local) for path, local in names.items()]),
        licence=_licence(info.card_data),
        headers=build_hf_headers(library_name="finqa", library_version=__version__),
    )


def _dataset_info(api: HfApi, repository: str, revision: str, what: str, timeout_s: float) -> DatasetInfo:
    from huggingface_hub import errors

    try:
        info = api.dataset_info(repository, revision=revision, files_metadata=True, timeout=timeout_s)
    except errors.OfflineModeIsEnabled as error:
        raise ServiceUnavailableError(
            f"{what} cannot be listed: HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) is set, so {HUB.name} "
            "is not contacted.",
            remedy="unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise DataError(
            f"{repository} has no revision {revision!r}.", remedy="Give --revision a commit, branch or tag that exists."
        ) from error
    except errors.HfHubHTTPError as error:
        raise refusal(HUB, what, error.response.status_code, error.response.headers) from error
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # base of every error of the client's HTTP library
        raise Transient(f"{HUB.name} ({api.endpoint}) cannot be reached: {error_text(error)}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{api.endpoint} did not respond like a Hugging Face hub: {error_text(error)}.") from error
    if not is_commit(str(info.sha)):
        raise DataError(f"{api.endpoint} names no commit for {what}.")
    return info


def _remote(sibling: RepoSibling, local: str, url: str) -> RemoteFile:
    digest = Digest("sha256", sibling.lfs.sha256) if sibling.lfs else Digest("git-sha1", str(sibling.blob_id))
    size = sibling.lfs.size if sibling.lfs else sibling.size
    if size is None or (not sibling.lfs and not sibling.blob_id):
        raise DataError(f"{HUB.name} announces neither size nor checksum of {sibling.rfilename}.")
    return RemoteFile(path=local, url=url, size=size, digest=digest)


def _licence(card: Any) -> str:
    licence = getattr(card, "license", None)
    return licence if isinstance(licence, str) else ""


async def list_github(
    source: Source, revision: str, *, endpoint: str | None, patience: Patience, tell: Callable[[str], None]
) -> Listing:
    """Lists the files of a repository at the commit that `revision` names.

    Raises:
        ServiceUnavailableError: GitHub cannot be reached, or its hourly limit of requests is reached.
        AuthenticationError: The repository is private.
        DataError: The revision does not exist, or the response is not that of GitHub.
    """
    base = f"{endpoint}/api/v3" if endpoint else API
    raw = f"{endpoint}/raw" if endpoint else RAW
    what = f"{source.repository} at {revision}"
    async with open_client(_github_headers(), patience) as client:

        async def ask(path: str) -> dict[str, Any]:
            url = f"{base}/repos/{source.repository}/{path}"
            return await persist(lambda: _github_document(client, url, what), patience, tell)

        commit = revision if is_commit(revision) else _text(await ask(f"commits/{quote(revision, safe='')}"), "sha")
        if not is_commit(commit):
            raise DataError(f"{GITHUB.name} answered {commit!r} for {what}, which is not a commit.")
        blobs = _blobs(await ask(f"git/trees/{commit}?recursive=1"), what)
    files = [
        RemoteFile(
            path=local,
            url=f"{raw}/{source.repository}/{commit}/{quote(path)}",
            size=_size(blobs[path]),
            digest=Digest("git-sha1", _text(blobs[path], "sha")),
        )
        for path, local in wanted_paths(source, blobs, commit).items()
    ]
    return Listing(commit=commit, endpoint=endpoint or "https://github.com", files=check_limits(source, files))


def _github_headers() -> dict[str, str]:
    token = os.environ.get("GITHUB_TOKEN", "").strip()
    return {
        "Accept": "application/vnd.github+json",
        "User-Agent": "finqa",
        "X-GitHub-Api-Version": "2022-11-28",
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }


async def _github_document(client: httpx.AsyncClient, url: str, what: str) -> dict[str, Any]:
    data = bytearray()
    try:
        async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as answer:
            async for chunk in answer.aiter_raw():
                data += chunk
                if len(data) > LARGEST_LISTING:
                    raise DataError(f"{_host(url)} sends more than {LARGEST_LISTING} bytes for {what}.")
    except httpx.HTTPError as error:
        raise Transient(f"{GITHUB.name} ({_host(url)}) cannot be reached: {error_text(error)}") from error
    if answer.status_code in (403, 429) and answer.headers.get("x-ratelimit-remaining") == "0":
        raise ServiceUnavailableError(
            f"{GITHUB.name}'s hourly request limit is reached{_until(answer.headers.get('x-ratelimit-reset'))}.",
            remedy="Wait, or set GITHUB_TOKEN: the limit is much higher with a token.",
        )
    if answer.status_code == 422:  # GitHub's status for a ref that does not exist
        raise DataError(f"{what}: this revision does not exist.", remedy="Give --revision a commit, branch or tag.")
    if answer.is_error:
        raise refusal(GITHUB, what, answer.status_code, answer.headers)
    try:
        document = parse_json(bytes(data))
    except ValueError as error:
        raise DataError(f"{_host(url)} did not respond like {GITHUB.name}: not JSON.") from error
    if not isinstance(document, dict):
        raise DataError(f"{_host(url)} did not respond like {GITHUB.name}: not a JSON object.")
    return document


def _blobs(document: dict[str, Any], what: str) -> dict[str, dict[str, Any]]:
    if document.get("truncated"):
        raise DataError(f"{GITHUB.name} truncated the listing of {what}; it has too many files.")
    entries = document.get("tree")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DataError(f"{GITHUB.name}'s response lacks the field 'tree'.")
    return {_text(entry, "path"): entry for entry in entries if entry.get("type") == "blob"}


def _host(url: str) -> str:
    """Returns the host of an address, for messages."""
    return httpx.URL(url).host


def _until(reset: str | None) -> str:
    try:
        return f" until {time.strftime('%H:%M UTC', time.gmtime(int(reset or '')))}"
    except (ValueError, OverflowError, OSError):
        return ""


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise DataError(f"{GITHUB.name}'s response lacks the field {key!r}.")
    return value


def _size(entry: dict[str, Any]) -> int:
    size = entry.get("size")
    if not isinstance(size, int):
        raise DataError(f"{GITHUB.name} announces no size of {entry.get('path')!r}.")
    return size
