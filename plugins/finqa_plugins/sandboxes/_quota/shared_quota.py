"""The quota of an account: shared over a Ray cluster if the run uses one, else by a file of this machine.

Times are those of the monotonic clock, which counts from the start of the machine, is the same in all its processes and
never jumps. So each start of the machine has its own file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from finqa_cli.contracts import AccountQuota, Grant, SandboxContext
from finqa_cli.errors import StorageError
from finqa_cli.extend import registry
from finqa_plugins.sandboxes._quota.sliding_window import SETTLE_S, SlidingWindow

SCHEMA_VERSION = 1
FOLDER = "accounts"
"""Folder of the files, below FINQA_HOME."""
LOCK_S = 30.0
"""Seconds to wait for another process to release the lock, which it needs for about a millisecond."""
_LOCK_POLL_S = 0.002
_OLD_S = 86_400.0
"""Age at which files of an earlier start of the machine are removed."""

T = TypeVar("T")


def account_digest(provider: str, url: str, key: str) -> str:
    """Return a name for an account, from which its key cannot be computed."""
    return hashlib.sha256("\0".join(("finqa account", provider, url, key)).encode()).hexdigest()[:24]


def open_quota(context: SandboxContext, account: str, limit: int, window_s: float) -> AccountQuota:
    """Return the quota of an account.

    Args:
        context: Context of the provider.
        account: Digest of the account; see `account_digest`.
        limit: Largest number of creates in a window.
        window_s: Length of a window in seconds.
    """
    if context.cluster:
        found = registry().first(
            "share_quota",
            AccountQuota,  # type: ignore[type-abstract]
            account=account,
            limit=limit,
            window_s=window_s,
            cluster=context.cluster,
        )
        if found is not None:
            return found
    return FileQuota(WindowFile(context.home / FOLDER, account), limit, window_s)


class WindowFile:
    """The creates of one account by all processes of this machine that use the same folder.

    Each call locks, reads, changes and replaces the file, so that a process that is killed at any moment leaves a
    complete file. The kernel releases a killed process's lock.
    """

    def __init__(self, folder: Path, account: str, *, settle_s: float = SETTLE_S) -> None:
        """Opens nothing yet.

        Args:
            folder: Folder of the files.
            account: Digest of the account; see `open_quota`.
            settle_s: As `SlidingWindow`.
        """
        self._folder = folder
        self._account = account
        self._settle_s = settle_s
        self._path = folder / f"{account}-{_boot()}.json"

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

    def take(self, limit: int, window_s: float) -> Grant:
        """Request one create, of at most `limit` in any `window_s` seconds.

        Raises:
            StorageError: The file cannot be read, written or locked.
        """

        def grant(window: SlidingWindow) -> Grant:
            if (wait_s := window.delay(time.monotonic())) > 0:
                return Grant(wait_s=wait_s)
            return Grant(wait_s=0.0, ticket=window.begin(time.monotonic()))

        return self._change(grant, limit, window_s)

    def end(self, ticket: int, *, sent: bool = True) -> None:
        """See `AccountQuota.end`.

        Raises:
            StorageError: As `take`.
        """
        self._change(lambda window: window.end(ticket, time.monotonic(), sent=sent))

    def pause(self, seconds: float) -> None:
        """Grant nothing for some seconds.

        Raises:
            StorageError: As `take`.
        """
        self._change(lambda window: window.pause(time.monotonic() + seconds))

    def _change(self, action: Callable[[SlidingWindow], T], limit: int = 1, window_s: float = 0.0) -> T:
        try:
            with self._locked():
                window = SlidingWindow(limit, window_s, self._settle_s)
                self._restore(window, window_s)
                result = action(window)
                self._save(window)
                return result
        except OSError as error:
            raise StorageError(
                f"The count of sandbox creates in {str(self._folder)!r} cannot be used: {error}",
                remedy="set FINQA_HOME=DIR to a folder on a local disk that may be written to",
            ) from error

    def _restore(self, window: SlidingWindow, window_s: float) -> None:
        """Reads the file. A damaged file may have lost creates, so nothing is granted for one window."""
        now = time.monotonic()
        try:
            state = json.loads(self._path.read_bytes())
            if state["schema_version"] != SCHEMA_VERSION:
                raise ValueError(state["schema_version"])
            window.restore(state, now)
        except FileNotFoundError:
            if self._has_others():
                window.pause(window_s)  # the clock began at 0 with the machine, after all earlier creates
        except (ValueError, TypeError, KeyError):
            window.pause(now + max(window_s, 60.0))

    def _has_others(self) -> bool:
        """Whether there are files of earlier starts of the machine; old ones are removed."""
        others = False
        for path in self._folder.glob(f"{self._account}-*.json"):
            with contextlib.suppress(FileNotFoundError):
                if abs(time.time() - path.stat().st_mtime) > _OLD_S:
                    path.unlink(missing_ok=True)
                    path.with_suffix(".lock").unlink(missing_ok=True)
                else:
                    others = True
        return others

    def _save(self, window: SlidingWindow) -> None:
        content = json.dumps({"schema_version": SCHEMA_VERSION, **window.state()}, separators=(",", ":"))
        new = self._path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        new.replace(self._path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise OSError(f"another process has locked it for {LOCK_S:g} s") from None
                    time.sleep(_LOCK_POLL_S)
            yield
        finally:
            os.close(descriptor)


class FileQuota(AccountQuota):
    """The quota of an account over the processes of one machine."""

    def __init__(self, file: WindowFile, limit: int, window_s: float) -> None:
        """Starts nothing yet.

        Args:
            file: The shared window.
            limit: Largest number of creates in a window.
            window_s: Length of a window in seconds.
        """
        self._file = file
        self._limit = limit
        self._window_s = window_s
        self._thread = ThreadPoolExecutor(1, "account-quota")  # one thread keeps reports in order

    async def take(self) -> Grant:
        """See `AccountQuota`; file and lock are used in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._file.take, self._limit, self._window_s)

    def end(self, ticket: int, *, sent: bool = True) -> None:
        """See `AccountQuota`."""
        self._report(lambda: self._file.end(ticket, sent=sent))

    def pause(self, seconds: float, limit: int | None = None) -> None:
        """See `AccountQuota`."""
        if limit is not None:
            self._limit = max(1, min(self._limit, limit))
        self._report(lambda: self._file.pause(seconds))

    def close(self) -> None:
        """See `AccountQuota`; reports in progress are completed."""
        self._thread.shutdown(wait=False)

    def _report(self, report: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed
            self._thread.submit(report)


def _boot() -> str:
    """Return a name for this start of the machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = "unknown"
    return hashlib.sha256(boot.encode()).hexdigest()[:8]
