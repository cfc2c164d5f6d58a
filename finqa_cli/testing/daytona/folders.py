"""The folder in which a loopback Daytona keeps its files while it lives."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "loopback-daytona-"
LOCK = "lock"


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A new folder that is removed at the end. One whose owner was killed is removed by the next loopback.

    The owner holds a lock on a file inside, which the kernel releases however the owner ends.
    """
    _sweep()
    unfinished = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    with (unfinished / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = unfinished.rename(unfinished.with_name(unfinished.name.removeprefix(".")))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
