"""A copy of a folder at any address of fsspec. A copy is used only if it is complete.

Files are divided into parts, which are named by their SHA-256 and written once. A manifest that lists all parts is
written last, under a new number. An interrupted copy leaves parts without a manifest, and the copy before stays valid.
If a file only grew at its end, as records do, only its last parts are sent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import structlog

from finqa_cli.errors import ConfigError, DataError, ServiceUnavailableError
from finqa_cli.masking import mask_text
from finqa_cli.runs.durable_files import new_folder, storage

log = structlog.get_logger(__name__)

SCHEMA_VERSION = 1
PART_BYTES = 16 * 2**20
"""Most bytes of a part. One part is in memory at a time, and parts are the unit that is sent when a file changes."""

_MANIFEST = re.compile(r"manifest-(\d{8,})\.json")
_FAILURES = (OSError, ValueError, KeyError, TypeError)
"""Exceptions that a damaged manifest or part causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Figures of one update.

    Attributes:
        files: Number of files of the copy.
        size: Bytes of all files.
        sent: Bytes that were sent, because they were not in the store.
    """

    files: int
    size: int
    sent: int


class MirrorStore:
    """The store of a copy at one address."""

    def __init__(self, address: str) -> None:
        """Find the package for the protocol of the address, without connecting.

        Raises:
            ConfigError: The address is not one of fsspec; or fsspec, or the package that it needs for this protocol, is
                not installed.
        """
        self.address = address
        try:
            import fsspec

            self._fs, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
        except ImportError as error:
            package = re.search(r"[Ii]nstall (\w+)", str(error))
            name = package[1] if package and package[1] != "fsspec" else "fsspec"
            raise ConfigError(
                f"run.mirror={mask_text(address)} needs a package that is not installed: {error}",
                remedy=f"pip install {name}",
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"run.mirror={mask_text(address)} is no address of fsspec: {error}",
                remedy="--run-mirror with an address such as s3://BUCKET/RUN or file:///FOLDER/RUN",
            ) from error
        self._root = root.rstrip("/")

    def owner(self) -> str | None:
        """Return the owner in the newest readable manifest; None if there is none.

        Raises:
            Exception: The file system of the address failed.
        """
        for number in sorted(self._numbers(), reverse=True):
            try:
                return str(self._document(number)["owner"])
            except _FAILURES:
                continue
        return None

    def write(self, folder: Path, owner: str) -> Sent:
        """Bring the copy up to date with all files of a folder.

        Args:
            folder: The folder.
            owner: Owner of the copy. The copy of another owner is not replaced.

        Raises:
            ConfigError: The address has the copy of another owner.
            Exception: The file system of the address failed; the copy before stays valid.
        """
        self._fs.makedirs(f"{self._root}/parts", exist_ok=True)
        self.check_owner(owner)
        numbers = self._numbers()
        there = self._parts()
        files: dict[str, Any] = {}
        size = sent = 0
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            parts = []
            for content in _cut(path):
                name = hashlib.sha256(content).hexdigest()
                if there.get(name) != len(content):
                    self._fs.pipe_file(f"{self._root}/parts/{name}", content)
                    there[name] = len(content)
                    sent += len(content)
                size += len(content)
                parts.append(name)
            files[path.relative_to(folder).as_posix()] = parts
        manifest = f"{self._root}/manifest-{max(numbers, default=0) + 1:08d}.json"
        document = json.dumps({"schema_version": SCHEMA_VERSION, "owner": owner, "files": files}).encode()
        self._fs.pipe_file(manifest, document)
        if self._fs.cat_file(manifest) != document:
            raise OSError(f"{manifest} was read back with other bytes")
        self._remove_old(numbers, {name for parts in files.values() for name in parts}, there)
        return Sent(files=len(files), size=size, sent=sent)

    def check_owner(self, owner: str) -> None:
        """Check that the address has no copy, or a copy of this owner.

        Raises:
            ConfigError: It has the copy of another owner.
            Exception: The file system of the address failed.
        """
        other = self.owner()
        if other is not None and other != owner:
            raise ConfigError(
                f"run.mirror={mask_text(self.address)} has the copy of another run ({other}), which this run would "
                "replace.",
                remedy="--run-mirror with an address that no other run uses",
            )

    def fetch(self, folder: Path) -> None:
        """Write the newest complete copy into a folder. After an error the folder is absent.

        Raises:
            DataError: There is no copy, or every copy is damaged.
            ServiceUnavailableError: The address cannot be reached.
            StorageError: The folder cannot be written.
        """
        shown = mask_text(self.address)
        try:
            numbers = sorted(self._numbers(), reverse=True)
        except Exception as error:
            raise ServiceUnavailableError(
                f"The mirror {shown} cannot be read: {mask_text(str(error))}",
                remedy="--run-mirror with the address of the run; credentials come from the variables of its package",
            ) from error
        for number in numbers:
            try:
                files = self._manifest(number)
                with new_folder(folder) as new:
                    for name, parts in files.items():
                        self._fetch_file(new / name, parts)
                return
            except _FAILURES as error:
                # Log: A copy is incomplete; an older one is used.
                log.warning("a mirror is damaged", mirror=shown, number=number, reason=mask_text(str(error)))
        raise DataError(
            f"There is no complete mirror of a run at {shown}.",
            remedy="--run-mirror with the address that the run was started with",
        )

    def _fetch_file(self, path: Path, parts: list[str]) -> None:
        with storage(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for name in parts:
                    content = self._fs.cat_file(f"{self._root}/parts/{name}")
                    if hashlib.sha256(content).hexdigest() != name:
                        raise ValueError(f"part {name} of {path.name} has other bytes than it was written with")
                    file.write(content)

    def _document(self, number: int) -> Mapping[str, Any]:
        document: dict[str, Any] = json.loads(self._fs.cat_file(f"{self._root}/manifest-{number:08d}.json"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"its schema version is {document['schema_version']!r}")
        return document

    def _manifest(self, number: int) -> Mapping[str, list[str]]:
        files: dict[str, list[str]] = self._document(number)["files"]
        for name, parts in files.items():
            inside = PurePosixPath(name)
            if (
                inside.is_absolute()
                or ".." in inside.parts
                or not all(re.fullmatch("[0-9a-f]{64}", one) for one in parts)
            ):
                raise ValueError(f"it lists {name!r}")
        return files

    def _numbers(self) -> list[int]:
        names = [str(name).rpartition("/")[2] for name in self._list(self._root)]
        return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]

    def _parts(self) -> dict[str, int]:
        """Name -> size in bytes of each part in the store; a part whose writing was interrupted is too short."""
        found = self._list(f"{self._root}/parts")
        return {name.rpartition("/")[2]: int(facts["size"] or 0) for name, facts in found.items()}

    def _list(self, folder: str) -> dict[str, Mapping[str, Any]]:
        self._fs.invalidate_cache()
        try:
            return {str(facts["name"]): facts for facts in self._fs.ls(folder, detail=True)}
        except FileNotFoundError:
            return {}

    def _remove_old(self, numbers: list[int], named: set[str], there: Mapping[str, int]) -> None:
        """Remove the manifests before the newest, then the parts that the newest does not list."""
        for number in numbers:
            self._fs.rm_file(f"{self._root}/manifest-{number:08d}.json")
        for name in there.keys() - named:
            self._fs.rm_file(f"{self._root}/parts/{name}")


def _cut(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in parts, up to its present end."""
    with path.open("rb") as file:
        left = path.stat().st_size
        while left > 0 and (content := file.read(min(PART_BYTES, left))):
            left -= len(content)
            yield content
