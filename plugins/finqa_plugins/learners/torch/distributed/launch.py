"""Starts the other processes of a learner with PyTorch's elastic launcher, watches them, and ends them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, RunProcsResult, start_processes

from finqa_cli.masking import is_secret_variable

POLL_S = 0.1
_CLOSE_S = 10.0
"""Seconds that processes have to end by themselves in `close`."""


class Workers:
    """Processes 2 to N, which run `serving`. One thread starts, watches and ends them.

    It is not the main thread, because there the launcher would replace the signal handlers of this process.
    """

    def __init__(self, size: int, rendezvous: Path, logs: Path | None, on_end: Callable[[], None]) -> None:
        """Starts nothing yet.

        Args:
            size: Number of processes N, including the first.
            rendezvous: Folder where the processes find each other.
            logs: Folder for their output, `learner-K.log` of process K; None writes it to stderr.
            on_end: Called by the thread when a process ended before `close`.
        """
        self.ended = threading.Event()
        self.reason = ""
        self._size, self._rendezvous, self._logs, self._on_end = size, rendezvous, logs, on_end
        self._closing = threading.Event()
        self._grace_s = _CLOSE_S
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._watch, name="learner-processes", daemon=True)

    def start(self) -> None:
        """Starts the processes.

        Raises:
            OSError: A process cannot be started, or a log cannot be written.
        """
        self._thread.start()
        self._started.result()

    def close(self, *, kill: bool) -> None:
        """Waits until the processes have ended, or with `kill` ends them at once. Idempotent."""
        if kill:
            self._grace_s = 0.0
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        # finqa raises an error instead of the launcher's log messages
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        others = range(1, self._size)
        try:
            if self._logs is not None:
                self._logs.mkdir(parents=True, exist_ok=True)
            context = start_processes(
                name="learner",
                entrypoint=sys.executable,
                args={rank - 1: self._arguments(rank) for rank in others},
                envs={rank - 1: _environment(self._size) for rank in others},
                logs_specs=_LogFiles(self._logs),
            )
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        while not self._closing.wait(POLL_S):
            if (result := context.wait(timeout=0)) is not None:  # the launcher has ended the other processes
                self.reason = _describe(result, self._size)
                self.ended.set()
                self._on_end()
                break
        context.wait(timeout=self._grace_s, period=POLL_S)
        context.close(signal.SIGKILL)

    def _arguments(self, rank: int) -> tuple[str, ...]:
        module = "finqa_plugins.learners.torch.distributed.serving"
        return ("-m", module, str(rank), str(self._size), str(self._rendezvous), str(os.getpid()))


class _LogFiles(LogsSpecs):
    """One file for each process: its stderr. Nothing is written to stdout, which is for the command's result."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder

    @property
    def root_log_dir(self) -> str:
        return str(self._folder or "")

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nowhere = dict.fromkeys(envs, os.devnull)
        files = {number: str(self._folder / f"learner-{number + 2}.log") if self._folder else "" for number in envs}
        return LogsDest(stdouts=nowhere, stderrs=files, error_files=nowhere)


def _environment(size: int) -> dict[str, str]:
    """Changes to the environment that the processes inherit: no secrets, and a share of the CPU's threads."""
    blank = {name: "" for name, value in os.environ.items() if is_secret_variable(name, value)}
    threads = max(1, (os.cpu_count() or 1) // size)
    return {"OMP_NUM_THREADS": str(threads), **blank} if "OMP_NUM_THREADS" not in os.environ else blank


def _describe(result: RunProcsResult, size: int) -> str:
    """Which process ended and how. A process that a signal killed comes before others, which end because it is gone."""
    if not result.failures:
        return "A learner process ended early, without an error"
    ended = {number: failure.exitcode for number, failure in result.failures.items()}
    number = min(ended, key=lambda one: (ended[one] == -signal.SIGTERM, ended[one] > 0, one))
    code, pid = ended[number], result.failures[number].pid
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    return f"Learner process {number + 2} of {size} (pid {pid}) {how}"
