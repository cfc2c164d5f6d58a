"""Compiled data sets by name: build, list, look up, delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Settings
from finqa_cli.types import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """`new` is False when the same source was built under this name before: nothing has changed then."""

    snapshot: Snapshot
    new: bool


def build(settings: Settings, name: str, data: Path | None, *, skip_bad: bool, reporter: Reporter) -> Built:
    """Compiles a data folder under a name; without one, the embedded data set.

    Raises:
        DataError: A file or row is missing or malformed, or the name is not acceptable.
        StorageError: Writing failed; the snapshot that was current stays.
    """
    store = LocalSnapshots(settings.data.home)
    reporter.line(f"Compiling {data or 'the embedded data set'} into snapshot {name}.")
    if data is None:
        snapshot, new = store.build_default(name)
    else:
        snapshot, new = store.build(name, read_layout(data, skip_bad) if skip_bad else data)
    return Built(snapshot=snapshot, new=new)


def list_all(settings: Settings) -> Sequence[Snapshot]:
    """The current snapshot of each name; a damaged one has an `error` in its metadata."""
    return LocalSnapshots(settings.data.home).list()


def look_up(settings: Settings, name: str) -> tuple[Snapshot, Sequence[str]]:
    """The current snapshot of a name, every file checked, and the digests (12 hex digits) of all its versions.

    Raises:
        DataError: There is none, or it is damaged.
    """
    store = LocalSnapshots(settings.data.home)
    return store.get(name), store.versions(name)


def delete(settings: Settings, name: str) -> Sequence[str]:
    """Removes every version of a name and returns their digests (12 hex digits).

    Raises:
        DataError: There is none.
    """
    return LocalSnapshots(settings.data.home).delete(name)
