"""Unpacks an archive safely into its folder; unpacking again leaves files with the right content unchanged."""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from finqa_cli.data.fetch.digests import storage
from finqa_cli.data.fetch.repository_listing import safe_name
from finqa_cli.errors import DataError

MAX_MEMBERS = 100_000
MAX_UNPACKED = 2**33
_BLOCK = 2**20
_ENCRYPTED = 1
"""Bit of a zip entry's flags (APPNOTE 4.4.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """Result of unpacking.

    Attributes:
        files: Number of files in the archive.
        size: Size of all files in bytes.
        written: Paths of files that were missing or different before.
    """

    files: int
    size: int
    written: tuple[str, ...]


def unpack(
    archive: Path, *, taken: Collection[str], max_members: int = MAX_MEMBERS, max_bytes: int = MAX_UNPACKED
) -> Unpacked:
    """Unpacks a tar or zip archive into its folder. Every entry is checked before it is written.

    Args:
        archive: The archive; a tar file may be compressed.
        taken: Paths that must not be overwritten.
        max_members: Largest number of entries.
        max_bytes: Largest size of all files together, in bytes.

    Raises:
        DataError: The archive is damaged, encrypted, too large, or contains links, devices, a name twice, or names
            outside the folder.
        StorageError: A file cannot be written.
    """
    size, seen, written = 0, set(taken), []
    entries = _zip_entries if zipfile.is_zipfile(archive) else _tar_entries
    try:
        for number, entry in enumerate(entries(archive), 1):
            size += entry.size
            if number > max_members or size > max_bytes:
                raise DataError(f"{archive} unpacks to more than {max_members} entries or {max_bytes} bytes.")
            if entry.stream is None:  # a folder
                continue
            name = safe_name(entry.name)
            if name in seen:
                raise DataError(f"{archive} contains {name!r}, which already exists.")
            seen.add(name)
            if _write(entry.stream, entry.size, archive.parent / name):
                written.append(name)
    except (*_DAMAGES, OSError) as error:
        remedy = "run the same command again; if the error remains, the archive on the host is damaged"
        raise DataError(f"{archive} cannot be unpacked: {error}.", remedy=remedy) from error
    return Unpacked(files=len(seen) - len(set(taken)), size=size, written=tuple(written))


_DAMAGES = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, ValueError, MemoryError, RecursionError),
    NotImplementedError,
)
"""Errors of reading a damaged or hostile archive; the last one is for a compression that Python does not support."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    size: int
    stream: IO[bytes] | None


def _tar_entries(archive: Path) -> Iterator[_Entry]:
    with _opened_tar(archive) as members:
        for member in members:
            if not (member.isfile() or member.isdir()):
                raise _no_file(archive, member.name)
            tarfile.data_filter(member, str(archive.parent))
            yield _Entry(name=member.name.removeprefix("./"), size=member.size, stream=members.extractfile(member))


def _opened_tar(archive: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(archive, mode="r|*")
    except TypeError as error:  # of Python's reader, for a gzip header that is cut
        raise tarfile.ReadError("its header is cut") from error


def _zip_entries(archive: Path) -> Iterator[_Entry]:
    """Yields all entries except the resource forks that macOS adds below `__MACOSX`."""
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind and not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise _no_file(archive, member.filename)
            if member.flag_bits & _ENCRYPTED:
                raise DataError(f"{archive} is encrypted.")
            if member.is_dir():
                safe_name(member.filename.rstrip("/"))
                yield _Entry(name=member.filename, size=0, stream=None)
            elif not member.filename.startswith("__MACOSX/"):
                with members.open(member) as stream:
                    yield _Entry(name=member.filename, size=member.file_size, stream=stream)


def _no_file(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} contains {name!r}, which is neither a file nor a folder.")


def _write(stream: IO[bytes], size: int, target: Path) -> bool:
    """Writes a member of the archive. Returns False if the file had the same bytes before."""
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
