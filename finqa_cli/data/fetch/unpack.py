"""Unpacks an archive beside itself, safely; unpacking again leaves files that are right unchanged."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from finqa_cli.data.fetch.digests import storage
from finqa_cli.data.fetch.repository_listing import safe_name
from finqa_cli.errors import DataError

MAX_MEMBERS = 100_000
MAX_UNPACKED = 2**33
_BLOCK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """Result of unpacking.

    Attributes:
        files: Number of files in the archive.
        size: Their size in bytes.
        written: Paths of those that were missing or different before.
    """

    files: int
    size: int
    written: tuple[str, ...]


def unpack(
    archive: Path, *, taken: Collection[str], max_members: int = MAX_MEMBERS, max_bytes: int = MAX_UNPACKED
) -> Unpacked:
    """Unpacks a tar archive into its folder. Every entry is checked before it is written.

    Args:
        archive: The archive, compressed or not.
        taken: Paths that must not be overwritten.
        max_members: Most entries.
        max_bytes: Most bytes of all files together.

    Raises:
        DataError: The archive is damaged, too large, or holds links, devices, one name twice or names that leave the
            folder.
        StorageError: A file cannot be written.
    """
    size, seen, written = 0, set(taken), []
    try:
        with tarfile.open(archive, mode="r|*") as members:
            for number, member in enumerate(members, 1):
                size += member.size
                if number > max_members or size > max_bytes:
                    raise DataError(f"{archive} unpacks to more than {max_members} entries or {max_bytes} bytes.")
                name = _checked(member, archive)
                stream = members.extractfile(member)
                if stream is None:  # a folder
                    continue
                if name in seen:
                    raise DataError(f"{archive} holds {name!r}, which is there already.")
                seen.add(name)
                if _write(stream, member.size, archive.parent / name):
                    written.append(name)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.", remedy=f"rm {archive} and fetch it again") from error
    return Unpacked(files=len(seen) - len(set(taken)), size=size, written=tuple(written))


def _checked(member: tarfile.TarInfo, archive: Path) -> str:
    if not (member.isfile() or member.isdir()):
        raise DataError(f"{archive} holds {member.name!r}, which is neither file nor folder.")
    tarfile.data_filter(member, str(archive.parent))
    name = member.name.removeprefix("./")
    return name if member.isdir() else safe_name(name)


def _write(stream: IO[bytes], size: int, target: Path) -> bool:
    """Writes a member. Returns False when the same bytes were there already."""
    changed = not target.is_file() or target.stat().st_size != size
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb" if changed else "r+b") as file:
            while block := stream.read(_BLOCK):
                place = file.tell()
                if not changed and file.read(len(block)) == block:
                    continue
                changed = True
                file.seek(place)
                file.write(block)
    return changed
