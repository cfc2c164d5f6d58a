"""What is deleted if links lead in and out of runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli import deletion
from finqa_cli.deletion import delete, discard, lock_folder, real_place, temporary_folder, unlock_folder
from finqa_cli.errors import ConfigError, DataError, StorageError

NAMES = ("a", "b", "c", "live", "out")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
TREES = st.lists(
    st.tuples(PATHS, st.sampled_from(("file", "folder", "link", "absolute", "run")), PATHS), min_size=1, max_size=14
)


def plant(root: Path, tree: Sequence[tuple[str, str, str]]) -> None:
    """Make the files, folders, runs and links of a tree, as far as one does not stand in the way of another."""
    for name, kind, target in tree:
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.write_text(name)
            elif kind == "link":
                path.symlink_to(os.path.relpath(root / target, path.parent))
            elif kind == "absolute":
                path.symlink_to(root / target)
            else:
                path.mkdir(exist_ok=True)
                (path / "inside").write_text(name)
                if kind == "run":
                    (path / "run.json").write_text("{}")
        except OSError:
            continue


def listing(root: Path) -> dict[str, str]:
    """Every entry below a folder, without following links, and what it is; locks are not counted."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            if name != ".lock":
                found[str(path.relative_to(root))] = str(path.readlink()) if path.is_symlink() else str(path.is_dir())
    return found


@settings(max_examples=300, deadline=None)
@given(TREES, PATHS, PATHS, st.booleans())
def test_only_what_really_lies_inside_is_deleted(
    tree: Sequence[tuple[str, str, str]], path: str, within: str, whole: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        plant(root, tree)
        before, real = listing(root), None
        try:
            real = real_place(root / path, within=root / within)
            delete(root / path, within=root / within, whole=whole)
        except (DataError, StorageError, OSError, RuntimeError):
            assert listing(root) == before
            return
        after = listing(root)
        gone = before.keys() - after.keys()
        assert after.keys() <= before.keys()
        if real is None:
            assert not gone
            return
        name = str(real.relative_to(root))
        assert (root / within).resolve() in real.parents and real.parent == real.parent.resolve()
        assert gone == {each for each in before if each == name or each.startswith(f"{name}/")}


@settings(max_examples=100, deadline=None)
@given(TREES, PATHS, st.sampled_from(("live", "a/live", "a/b/live")))
def test_nothing_of_a_run_in_use_is_deleted(tree: Sequence[tuple[str, str, str]], path: str, live: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / live).mkdir(parents=True)
        (root / live / "run.json").write_text("{}")
        plant(root, tree)
        lock = os.open(root / live / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another process: `lock_folder` does not know of it
            before = listing(root / live)
            with contextlib.suppress(ConfigError, DataError, StorageError):
                delete(root / path, within=root)
            assert listing(root / live) == before
        finally:
            os.close(lock)


def test_the_lock_of_this_process_is_enough_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    lock = lock_folder(tmp_path)
    (tmp_path / "old").mkdir()
    delete(tmp_path / "old", within=tmp_path)
    assert not (tmp_path / "old").exists()
    with pytest.raises(ConfigError, match="in use"):
        lock_folder(tmp_path)
    unlock_folder(lock)
    (tmp_path / "old").mkdir()
    delete(tmp_path / "old", within=tmp_path)
    unlock_folder(lock_folder(tmp_path))


def test_a_discarded_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("x")
    (tmp_path / "link").symlink_to("kept")
    discard(tmp_path / "link")
    discard(tmp_path / "absent")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]


def test_a_temporary_folder_goes_although_a_signal_interrupts_its_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = iter([SystemExit(143)])

    def interrupted(path: Path) -> None:
        for signal in signals:
            raise signal
        discard(path)

    monkeypatch.setattr(deletion, "discard", interrupted)
    with pytest.raises(SystemExit), temporary_folder("made-", within=tmp_path) as folder:
        (folder / "file").touch()
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError), temporary_folder("made-", within=tmp_path):
        raise KeyError
    assert not list(tmp_path.iterdir())
