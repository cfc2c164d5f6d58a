"""The one way to delete files: links are removed as links, and what a run owns goes only under the lock of that run.

`delete` is for files that existed before the call, such as old checkpoints: their real path must be inside the folder
that the caller names, and the run that owns the real path must not be in use by another process. `remove` and `discard`
are for files that this process has made itself, such as temporary folders.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from finqa_cli.errors import ConfigError, DataError, StorageError

log = structlog.get_logger(__name__)

REMOVED = ".removed"
"""Suffix of a folder that is being deleted; its name then begins with a dot."""

_LOCK = ".lock"
_RUN_FILE = "run.json"
_held: dict[tuple[int, int], int] = {}
"""Descriptors of the locks that this process holds, by device and inode of the lock file."""


def lock_folder(path: Path) -> int:
    """Create the folder if necessary and lock it for this process. Its file `.lock` contains the pid.

    Returns:
        File descriptor for `unlock_folder`.

    Raises:
        ConfigError: Another process has locked the folder.
        StorageError: The folder cannot be created, or its file system has no locks.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror or error}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(
            f"{path} is in use by process {owner}.", remedy="wait until it ends, or choose another folder"
        ) from error
    except OSError as error:  # such as Lustre mounted without flock
        os.close(descriptor)
        raise StorageError(
            f"{path} cannot be locked, so two runs could write to it: {error.strerror or error}.",
            remedy="a folder on a local disk, or mount this one with locks (flock)",
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    facts = os.fstat(descriptor)
    _held[facts.st_dev, facts.st_ino] = descriptor
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Release a lock of `lock_folder`."""
    for place in [place for place, held in _held.items() if held == descriptor]:
        del _held[place]
    os.close(descriptor)


def delete(path: Path, *, within: Path, whole: bool = False) -> None:
    """Delete a file, a link or a folder; nothing happens if it does not exist.

    A link is removed, never what it leads to. The locks of the run that owns the real path, and of runs inside it, are
    taken for the deletion, unless this process holds them.

    Args:
        path: What is deleted.
        within: Folder that must contain the real path.
        whole: Rename a folder first, so that a crash leaves all of it, or a rest that no longer counts (see `REMOVED`).

    Raises:
        DataError: A link above `path` leads out of `within`. Nothing is deleted.
        ConfigError: Another process has locked one of these runs. Nothing is deleted.
        StorageError: It cannot be deleted.
    """
    try:
        real = real_place(path, within=within)
        if real is None:
            return
        with _locked_runs(real):
            if whole and real.is_dir() and not real.is_symlink() and not real.name.startswith("."):
                doomed = real.with_name(f".{real.name}{REMOVED}")
                remove(doomed)
                real = real.rename(doomed)
            remove(real)
    except OSError as error:
        raise StorageError(f"Cannot delete {path}: {error.strerror or error}.") from error


def try_delete(path: Path, *, within: Path, whole: bool = False) -> None:
    """Delete as `delete` does; if that is refused or fails, the files stay, with a warning in the log.

    For a run that does not need the space to continue, such as a training run that drops old checkpoints.
    """
    try:
        delete(path, within=within, whole=whole)
    except (ConfigError, DataError, StorageError) as error:
        # Log: Files of a run that are not needed stay: a link leads out of the run, or they cannot be deleted.
        log.warning("not deleted", path=str(path), reason=error.message)


def discard(path: Path) -> None:
    """Delete a file, a link or a folder that this process has made, as far as possible; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_folder(prefix: str, *, within: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that is deleted at the end of the block, also if a signal interrupts the deletion.

    Args:
        prefix: Beginning of its name.
        within: Folder to make it in; None: that of temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
    try:
        yield folder
    finally:
        try:
            discard(folder)
        except BaseException:  # that of a signal, of which there is one; the deletion is repeated
            discard(folder)
            raise


def remove(path: Path) -> None:
    """Delete a file, a link or a folder that this process has made or may replace; links inside it are not followed.

    Raises:
        OSError: It cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def real_place(path: Path, *, within: Path) -> Path | None:
    """Return a path without links above its last part; None if it does not exist.

    Raises:
        DataError: It is not inside `within`, or is `within` itself.
        OSError: A folder above it cannot be read.
    """
    if not os.path.lexists(path):
        return None
    root = within.resolve()
    real = path.parent.resolve() / path.name if path.name != ".." else path.resolve()
    if root not in real.parents:
        raise DataError(f"{path} leads to {real}, which is not inside {within}, so it is not deleted.")
    return real


def owner_of(real: Path) -> Path | None:
    """Return the nearest run at or above a real path; None outside runs."""
    places = real.parents if real.is_symlink() else (real, *real.parents)
    return next((place for place in places if (place / _RUN_FILE).is_file()), None)


@contextlib.contextmanager
def _locked_runs(real: Path) -> Iterator[None]:
    """Hold the locks of the nearest run at or above a real path, and of the runs below it, for this block."""
    below = [] if real.is_symlink() else [Path(folder) for folder, _, files in os.walk(real) if _RUN_FILE in files]
    owner = owner_of(real)
    with contextlib.ExitStack() as locks:
        for run in dict.fromkeys([*([owner] if owner else []), *below]):
            if not _holds(run):
                locks.callback(unlock_folder, lock_folder(run))
        yield


def _holds(folder: Path) -> bool:
    """Whether this process holds the lock of a folder."""
    try:
        facts = (folder / _LOCK).stat()
    except OSError:
        return False
    return (facts.st_dev, facts.st_ino) in _held
