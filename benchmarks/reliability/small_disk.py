"""A disk that can be filled: a small tmpfs where this user may mount one, else a limit on the size of files."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SIZE_MIB = 64
BALLAST = ".ballast"
RECORDS = "trajectories.jsonl"
BLOCK = 4096
UNMOUNT_S = 5.0


class SmallDisk:
    """A folder whose disk is full between `fill` and `free`.

    Attributes:
        mounted: Whether it is a file system of its own. If not, `fill` limits the files of one process, whose
            writes then come back short or fail with EFBIG.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mounted = False
        self._limited: tuple[int, tuple[int, int]] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        if os.geteuid() == 0:
            size = f"size={SIZE_MIB}m"
            command = ["mount", "-t", "tmpfs", "-o", size, "finqa-reliability", str(self.folder)]
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.mounted:
            return
        deadline = time.monotonic() + UNMOUNT_S
        while subprocess.run(["umount", str(self.folder)], capture_output=True, check=False).returncode:
            if time.monotonic() > deadline:  # a process that was left has files open: it is reported elsewhere
                subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)
                break
            time.sleep(0.1)

    def fill(self, process: int, run: Path, leave: int) -> None:
        """Leaves so many bytes; without a file system of its own, only for that process and its records."""
        if self.mounted:
            with (self.folder / BALLAST).open("wb") as ballast:
                facts = os.statvfs(self.folder)
                os.posix_fallocate(ballast.fileno(), 0, max(facts.f_bavail * facts.f_bsize - leave, BLOCK))
            return
        records = run / RECORDS
        size = records.stat().st_size if records.exists() else 0
        with contextlib.suppress(ProcessLookupError):
            self._limited = (process, resource.prlimit(process, resource.RLIMIT_FSIZE))
            resource.prlimit(process, resource.RLIMIT_FSIZE, (size + leave, self._limited[1][1]))

    def allow_writing(self, allowed: bool) -> None:
        """Mounts it again, read-only or not, while no file is open.

        Raises:
            subprocess.CalledProcessError: It is not a file system of its own, or a file is open for writing.
        """
        option = f"remount,{'rw' if allowed else 'ro'}"
        subprocess.run(["mount", "-o", option, str(self.folder)], capture_output=True, check=True)

    def free(self) -> None:
        """Undoes `fill`."""
        (self.folder / BALLAST).unlink(missing_ok=True)
        if self._limited is not None:
            process, limits = self._limited
            self._limited = None
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(process, resource.RLIMIT_FSIZE, limits)
