"""The mirror of a run: a copy of what `--resume` needs at another address, updated in the background at checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import structlog

from finqa_cli.deletion import discard
from finqa_cli.errors import ConfigError
from finqa_cli.masking import mask_text
from finqa_cli.runs.checkpoints import folder_of, iterations
from finqa_cli.runs.mirror_store import MirrorStore
from finqa_cli.types.run_events import RunEvent

log = structlog.get_logger(__name__)

CLOSE_S = 600.0
"""Most seconds that a run waits at its end for its last copy."""
SNAPSHOT = ".mirror"
"""Folder of the run with hard links to the files that are being copied, because the run may delete them meanwhile."""

_NOT_NEEDED = ("policies", "logs")
"""Folders of a run that no resumed run reads."""

Report = Callable[[str, Mapping[str, Any]], object]


class Mirrored(RunEvent):
    """A copy of the run was written to `run.mirror`."""

    event: Literal["mirrored"]
    iteration: int
    """Iteration of the newest checkpoint in the copy."""
    files: int
    """Number of files."""
    bytes: int
    """Size of the copy in bytes."""
    sent_bytes: int
    """Bytes that were transferred."""
    seconds: float
    """Seconds of the transfer."""


class MirrorFailed(RunEvent):
    """The run could not be copied to `run.mirror`; the next checkpoint starts a new copy."""

    event: Literal["mirror_failed"]
    mirror: str
    """Address of the copy."""
    reason: str
    """The error."""


class Mirror:
    """Copies a run in its own thread, one copy at a time.

    If a copy fails, an event and a warning are recorded; the next checkpoint starts a new copy.
    """

    def __init__(self, run: Path, store: MirrorStore) -> None:
        """Keep the arguments; `update` starts the first copy.

        Args:
            run: Folder of the run.
            store: Store of the copy.
        """
        self._run = run
        self._store = store
        self._report: Report = lambda name, facts: None
        self._state = threading.Condition()
        self._due = False
        self._closing = False
        self._thread: threading.Thread | None = None

    def report_to(self, report: Report) -> None:
        """Pass the events `mirrored` and `mirror_failed` to `report`."""
        self._report = report

    def check_owner(self) -> None:
        """Check that the address has no copy of another run. If it cannot be read, log a warning.

        Raises:
            ConfigError: The address has the copy of another run.
        """
        try:
            self._store.check_owner(_identity(self._run))
        except ConfigError:
            raise
        except Exception as error:  # any file system may raise any error; the copies try again
            reason = mask_text(f"{type(error).__name__}: {error}")
            # Log: The address of `run.mirror` cannot be reached at the start; each checkpoint tries again.
            log.warning("the mirror cannot be read", mirror=mask_text(self._store.address), reason=reason)

    def update(self) -> None:
        """Start a copy of the run, after the one in progress if there is one. Returns at once."""
        with self._state:
            self._due = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="mirror", daemon=True)
                self._thread.start()
            self._state.notify()

    def close(self) -> None:
        """Wait for copies that are due, up to `CLOSE_S`."""
        with self._state:
            self._closing = True
            self._state.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                # Log: The copy to `run.mirror` took too long at the end of the run. The copy before is complete.
                log.warning(
                    "the last copy of the run is not complete",
                    mirror=mask_text(self._store.address),
                    seconds=CLOSE_S,
                )

    def _serve(self) -> None:
        while True:
            with self._state:
                while not self._due:
                    if self._closing:
                        return
                    self._state.wait()
                self._due = False
            self._copy()

    def _copy(self) -> None:
        began = time.perf_counter()
        snapshot = self._run / SNAPSHOT
        shown = mask_text(self._store.address)
        try:
            iteration = _link_files(self._run, snapshot)
            if iteration is None:
                return
            sent = self._store.write(snapshot, _identity(snapshot))
        except Exception as error:  # any file system may raise any error, which must not end the run
            reason = mask_text(f"{type(error).__name__}: {error}")
            # Log: With the event `mirror_failed`.
            log.warning("the run could not be mirrored", mirror=shown, reason=reason)
            self._tell("mirror_failed", {"mirror": shown, "reason": reason})
        else:
            facts = {"iteration": iteration, "files": sent.files, "bytes": sent.size, "sent_bytes": sent.sent}
            self._tell("mirrored", {**facts, "seconds": round(time.perf_counter() - began, 3)})
        finally:
            discard(snapshot)

    def _tell(self, name: str, facts: Mapping[str, Any]) -> None:
        with contextlib.suppress(Exception):  # the run has ended, or its disk is full, which the run reports itself
            self._report(name, facts)


@contextmanager
def mirroring(run: Path, address: str | None) -> Iterator[Mirror | None]:
    """Yield the mirror of a run for this block, and make a last copy after it; yield None without an address.

    Raises:
        ConfigError: The address is not one of fsspec, or no package for it is installed.
    """
    if address is None:
        yield None
        return
    mirror = Mirror(run, MirrorStore(address))
    try:
        yield mirror
    finally:
        mirror.report_to(lambda name, facts: None)  # the folder is closed
        mirror.update()
        mirror.close()


def _identity(run: Path) -> str:
    """Return the identity of a run, wherever its folder is: its id and its creation time."""
    facts = json.loads((run / "run.json").read_text(encoding="utf-8"))
    return f"{facts['id']}, created {facts['created']}"


def _link_files(run: Path, snapshot: Path) -> int | None:
    """Link the files that a resumed run reads into the snapshot.

    Old checkpoints, logs, versions of weights for the engine, and hidden files are left out.

    Returns:
        The iteration of the newest checkpoint; None if there is none, so that there is nothing to resume.
    """
    done = iterations(run)
    if not done:
        return None
    newest = folder_of(run, done[-1])
    discard(snapshot)
    for folder, folders, names in os.walk(run):
        here = Path(folder)
        inside = here.relative_to(run)
        old = {path.name for path in here.glob("step_*") if path != newest} if here == newest.parent else set()
        skipped = {*old, *(_NOT_NEEDED if here == run else ())}
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skipped]
        for name in names:
            if not name.startswith("."):
                (snapshot / inside).mkdir(parents=True, exist_ok=True)
                _link(here / name, snapshot / inside / name)
    return done[-1]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
