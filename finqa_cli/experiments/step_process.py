"""One step as a process: what it says is shown and kept, and signals are passed on to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from finqa_cli.runs.durable_files import storage

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Relay:
    """Passes signals on to the process that runs, which knows how to end well; remembers the first one."""

    stopped: signal.Signals | None = None
    _process: subprocess.Popen[str] | None = field(default=None)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, signals go to the process of `run`, and end nothing here. Ignored hang-ups (nohup) stay ignored."""
        watched = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in watched}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        stdout: Path | None,
        show: Callable[[str], None],
        started: Callable[[int], None],
    ) -> Ended:
        """Runs `finqa ARGUMENTS` to its end.

        Args:
            arguments: After `finqa`.
            log: What it says is appended here.
            stdout: Its result goes to this file instead.
            show: Hears each line.
            started: Hears the process id.

        Raises:
            StorageError: A file cannot be written.
        """
        begun, said = time.perf_counter(), _Said()
        with ExitStack() as stack:
            with storage(log):
                log.parent.mkdir(parents=True, exist_ok=True)
                kept = stack.enter_context(log.open("a", encoding="utf-8"))
                result = stack.enter_context(stdout.open("wb")) if stdout is not None else None
            process = subprocess.Popen(
                [sys.executable, "-m", "finqa_cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=result or subprocess.PIPE,
                stderr=subprocess.PIPE if result else subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,  # Ctrl-C on a terminal reaches it once, through us
            )
            self._process = process
            try:
                if self.stopped is not None:  # between the last look and the start
                    process.send_signal(self.stopped)
                started(process.pid)
                lines = process.stderr if result else process.stdout
                assert lines is not None, "it is a pipe"
                for line in lines:
                    kept.write(line)
                    kept.flush()
                    said.hear(line.rstrip("\n"))
                    show(line.rstrip("\n"))
                code = process.wait()
            finally:
                self._process = None
                _end(process)
        return Ended(code=code, seconds=time.perf_counter() - begun, reason=said.reason, remedy=said.remedy)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopped = self.stopped or signal.Signals(number)
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a step ended.

    Attributes:
        code: Exit code; negative when a signal killed it.
        seconds: It took.
        reason: The error that it told, or empty.
        remedy: What it said mends that, or empty.
    """

    code: int
    seconds: float
    reason: str
    remedy: str


@dataclass(slots=True)
class _Said:
    """The last error of a finqa command; see `finqa_cli.boundary`."""

    reason: str = ""
    remedy: str = ""

    def hear(self, line: str) -> None:
        if line.startswith("error: "):
            self.reason = line.removeprefix("error: ")
        elif line.startswith("fix: "):
            self.remedy = line.removeprefix("fix: ")


def _end(process: subprocess.Popen[str]) -> None:
    """Leaves no process behind when showing or keeping its words failed."""
    if process.poll() is None:
        process.terminate()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
