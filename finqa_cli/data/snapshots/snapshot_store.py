"""The store of compiled data sets on this machine, `<home>/snapshots/<name>/<digest>/`, and the current digests."""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from finqa_cli.data.dataset import DataSet
from finqa_cli.data.generated.embedded import embedded_layout
from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.data.snapshots.compile import (
    MANIFEST,
    SCHEMA_VERSION,
    compile_snapshot,
    file_digest,
    manifest_digest,
    write_durably,
)
from finqa_cli.deletion import delete, discard, temporary_folder, try_delete
from finqa_cli.documents import parse_json
from finqa_cli.errors import DataError, StorageError, UsageError
from finqa_cli.types import EMBEDDED_SNAPSHOT, Snapshot, rebuild_command

DEFAULT_NAME = EMBEDDED_SNAPSHOT
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHORT = re.compile(r"[0-9a-f]{12}")
_CURRENT = "current"
_BUILDING = ".building-"
_LEFTOVER_SECONDS = 3600.0


class LocalSnapshots:
    """The snapshots of a home folder. They are immutable; building a changed source adds one and makes it current.

    A name is a label that can move to another snapshot, like the tag of a container image. Runs record digests: if a
    name has other data now, an earlier run is not resumed on it, and not compared with later runs.
    """

    def __init__(self, home: Path) -> None:
        self._root = home / "snapshots"

    def build(self, name: str, source: DataSet | Path, *, skip_bad: bool = False) -> tuple[Snapshot, bool]:
        """Compiles a data set, or a data folder, under a name.

        Args:
            name: Name of the snapshot.
            source: Data set or data folder to compile.
            skip_bad: Leave out bad rows of a data folder instead of failing.

        Returns:
            The snapshot, and whether it is new: building the same source again changes nothing.

        Raises:
            DataError: The name or the data is invalid.
            StorageError: Writing failed; no files are left behind, and the current snapshot is unchanged.
        """
        folder = self._folder(name)
        dataset = read_layout(source, skip_bad) if isinstance(source, Path) else source
        building: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(folder)
            building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
            digest = compile_snapshot(dataset, building)
            short = _short(digest)
            fresh = self._place(building, folder / short)
            write_durably(folder / _CURRENT, f"{short}\n".encode())
        except OSError as error:
            reason = error.strerror or str(error)
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "export FINQA_HOME=DIR, with a folder that can be written" + (
                ", or free some space" if full else ""
            )
            raise StorageError(
                f"Building the snapshot {name!r} in {folder} failed: {reason}.", remedy=remedy
            ) from error
        finally:
            if building is not None:
                discard(building)
        return self.get(name), fresh

    def get(self, name: str, *, naming: str = "--snapshot") -> Snapshot:
        """Returns the current snapshot of a name, with every file checked against its sha256.

        Args:
            name: Name of the snapshot.
            naming: What the user writes before the name, for the remedy: an option or a command.

        Raises:
            DataError: The snapshot does not exist or is damaged. The remedy is another snapshot with a similar name, if
                there is one, or the command that builds this one.
        """
        folder = self._folder(name)
        remedy = rebuild_command(name)
        try:
            short = (folder / _CURRENT).read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError) as error:
            listed = self.list()
            near = difflib.get_close_matches(name, [one.name for one in listed if "error" not in one.metadata], n=1)
            there = f" There are: {', '.join(one.name for one in listed)}." if listed else ""
            meant = f" Did you mean {near[0]!r}?" if near else ""
            ways = f"{naming} {near[0]}, or {remedy}" if near else remedy
            raise DataError(f"There is no snapshot {name!r}.{there}{meant}", remedy=ways) from error
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"The snapshot {name!r} in {folder} cannot be read: {error}.", remedy=remedy) from error
        if not _SHORT.fullmatch(short):
            raise DataError(f"{folder / _CURRENT} is damaged.", remedy=remedy)
        return _verified(name, folder / short)

    def current(self, name: str) -> Snapshot | None:
        """Returns the current snapshot of a name, or None if it does not exist or is damaged."""
        with contextlib.suppress(DataError):
            return self.get(name)
        return None

    def get_or_build(self, name: str) -> tuple[Snapshot, bool]:
        """Returns the current snapshot like `get`, and whether it is new; a missing default snapshot is built."""
        if name != DEFAULT_NAME or (self._folder(name) / _CURRENT).exists():
            return self.get(name), False
        return self.build_embedded()

    def build_embedded(self, name: str = DEFAULT_NAME, *, named: bool = False) -> tuple[Snapshot, bool]:
        """Builds the embedded data set, whose companies are invented.

        Args:
            name: Name of the snapshot.
            named: The user asked for the embedded set, so it may get another name than its own, and replace other data.

        Raises:
            DataError: The name is invalid.
            UsageError: `named` is False, and the set would get another name or replace other data.
        """
        self._folder(name)
        if not named and (name != DEFAULT_NAME or self.holds_other_data()):
            reason = f"Snapshot {name!r} has other data" if name == DEFAULT_NAME else f"No data is given for {name!r}"
            command = "finqa snapshot build" if name == DEFAULT_NAME else f"finqa snapshot build --snapshot-name {name}"
            raise UsageError(
                f"{reason}: without --data only the embedded data set is built, under its own name.",
                remedy=f"{command} --data DIR, or {command} --data embedded",
            )
        with temporary_folder("finqa-data-") as folder:
            return self.build(name, embedded_layout(Path(folder)))

    def holds_other_data(self) -> bool:
        """Returns whether the default name has data other than the embedded set, intact or damaged."""
        folder = self._folder(DEFAULT_NAME)
        try:
            current = (folder / _CURRENT).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            current = ""
        kept = {current} if _SHORT.fullmatch(current) else set(self.versions(DEFAULT_NAME))
        return bool(kept) and kept != {_short(_embedded_digest())}

    def list(self) -> Sequence[Snapshot]:
        """Returns the current snapshot of every name, sorted by name; damaged ones have `error` in their metadata."""
        found: list[Snapshot] = []
        folders = sorted(self._root.iterdir()) if self._root.is_dir() else []
        for folder in folders:
            if not _NAME.fullmatch(folder.name) or not (folder / _CURRENT).is_file():
                continue
            try:
                found.append(self.get(folder.name))
            except DataError as error:
                found.append(Snapshot(name=folder.name, digest="", path=folder, metadata={"error": error.message}))
        return found

    def versions(self, name: str) -> Sequence[str]:
        """Returns the first 12 hex digits of the digests of all snapshots of a name, sorted."""
        folder = self._folder(name)
        return sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}") if not path.parent.name.startswith("."))

    def delete(self, name: str) -> Sequence[str]:
        """Removes all snapshots of a name; returns the first 12 hex digits of their digests.

        Raises:
            DataError: There is no snapshot of that name.
            StorageError: The snapshots cannot be removed.
        """
        folder = self._folder(name)
        if not folder.is_dir():
            raise DataError(f"There is no snapshot {name!r}.", remedy="finqa snapshot list")
        versions = self.versions(name)
        delete(folder / _CURRENT, within=self._root)
        delete(folder, within=self._root)
        return versions

    def _folder(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise DataError(
                f"{name!r} is not a valid snapshot name: at most 64 letters, digits, '.', '_' and '-'.",
                remedy=f"--snapshot-name {DEFAULT_NAME}",
            )
        return self._root / name

    def _place(self, building: Path, target: Path) -> bool:
        """Moves a finished build to its target, and returns True; False if an intact snapshot is already there."""
        if target.exists():
            try:
                _verified(target.parent.name, target)
            except DataError:
                delete(target, within=self._root)
            else:
                (building / MANIFEST).replace(target / MANIFEST)  # source and licence are not part of the digest
                return False
        try:
            building.rename(target)
        except OSError:
            if not target.exists():
                raise
            return False
        return True


def _verified(name: str, path: Path) -> Snapshot:
    remedy = rebuild_command(name)
    try:
        manifest = parse_json((path / MANIFEST).read_text(encoding="utf-8"))
        files = {str(file): str(digest) for file, digest in manifest["files"].items()}
        wrong = [file for file, digest in files.items() if file_digest(path / Path(file).name) != digest]
        recorded = str(manifest["digest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"The snapshot {name!r} in {path} is damaged: {error}.", remedy=remedy) from error
    if manifest.get("schema_version") != SCHEMA_VERSION:
        found = str(manifest.get("schema_version"))[:20]
        reason = f"has format {found}; this version of finqa reads {SCHEMA_VERSION}"
        raise DataError(f"The snapshot {name!r} in {path} {reason}.", remedy=remedy)
    if wrong or manifest_digest(files) != recorded or _short(recorded) != path.name:
        what = ", ".join(wrong) or MANIFEST
        raise DataError(f"The snapshot {name!r} in {path} is damaged: {what} does not match its sha256.", remedy=remedy)
    return Snapshot(name=name, digest=recorded, path=path, metadata=manifest)


@functools.cache
def _embedded_digest() -> str:
    """Returns the digest of the compiled embedded data set."""
    with temporary_folder("finqa-data-") as folder:
        compiled = Path(folder) / "compiled"
        compiled.mkdir()
        return compile_snapshot(read_layout(embedded_layout(Path(folder) / "layout")), compiled)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{_BUILDING}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                try_delete(path, within=folder)
