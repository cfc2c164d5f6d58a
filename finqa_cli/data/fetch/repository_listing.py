"""What a repository holds at one commit, reduced to the files that a source wants; served names are checked here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath, PureWindowsPath

from finqa_cli.data.fetch.digests import Digest
from finqa_cli.data.fetch.known_sources import Source
from finqa_cli.errors import DataError

DOCUMENTS = ("README.md", "LICENSE", "LICENSE.md", "LICENSE.txt")
"""Taken wherever they are: they carry the licence."""

MANIFEST = "fetch.json"
PARTIALS = ".fetch"
MAX_FILES = 50_000
MAX_BYTES = 2**34


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file to have.

    Attributes:
        path: Where it goes, relative to the folder; checked by `safe_name`.
        url: Where it is; holds no secret.
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
        files: What to have, ordered by path.
        licence: What the repository itself says, as far as it was asked; empty otherwise.
        headers: What downloads have to send; may hold a token, so it is never shown or written.
    """

    commit: str
    endpoint: str
    files: tuple[RemoteFile, ...]
    licence: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def wanted(source: Source, paths: Iterable[str], commit: str) -> dict[str, str]:
    """The repository's paths that a source takes, each with its local path.

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


def bounded(source: Source, files: Iterable[RemoteFile]) -> tuple[RemoteFile, ...]:
    """The files in order.

    Raises:
        DataError: They are more than any known data set has, so something is wrong at the other end.
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
    """The name, when it stays inside any folder on any system and is none of ours.

    Raises:
        DataError: It is absolute, climbs, holds control characters, or would overwrite what finqa keeps there.
    """
    path = PurePosixPath(name)
    outside = path.is_absolute() or "\\" in name or ".." in path.parts or any(map(_has_drive, path.parts))
    if outside or not path.parts or not name.isprintable() or str(path) != name:
        raise DataError(f"Refused the served file name {name!r}: it is no plain relative path.")
    if path.parts[0].casefold() in (MANIFEST, PARTIALS):
        raise DataError(f"Refused the served file name {name!r}: finqa keeps its own record there.")
    return name


def _has_drive(part: str) -> bool:
    return PureWindowsPath(part).drive != ""
