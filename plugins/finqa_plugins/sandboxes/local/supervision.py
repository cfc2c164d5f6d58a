"""Runs a command to its end in a thread: writes its input, reads its output, applies limits, ends what is left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.errors import SandboxError
from finqa_cli.types import Ending, ExecutionLimits, ExecutionResult

START_TIMEOUT_S, END_TIMEOUT_S = 30.0, 30.0
"""Seconds for the kernel to set up a sandbox, and to remove it; normally each takes milliseconds."""

LEFTOVER_ROUNDS = 5
"""Number of searches for leftover processes: a process that was found may have started another."""

CHUNK = 65_536

SIGNALS = frozenset(int(number) for number in signal.valid_signals())
"""Shells report 128 + number for a process that a signal ended; a process may also exit with such a code itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command of this machine that runs one execution.

    Attributes:
        child_fds: Descriptors that the command inherits.
        status_fd: A file in which bubblewrap reports its child, see `--json-status-fd` in bwrap(1); None for a bare
            process.
        starved: Whether it was killed because other processes used up the memory; called after its end.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str = "/"
    child_fds: tuple[int, ...] = ()
    status_fd: int | None = None
    starved: Callable[[], bool] = bool


def supervise(launch: Launch, stdin: bytes, limits: ExecutionLimits, stop_fd: int) -> ExecutionResult:
    """Runs a command; every process it started has ended when this returns or raises.

    Args:
        launch: The command.
        stdin: The input of the command.
        limits: Limits, of which those on time and output are applied here.
        stop_fd: Descriptor that becomes readable when the execution must stop.

    Raises:
        SandboxError: The command could not be started, its sandbox could not be made, or it did not end or was stopped.
    """
    try:
        process = subprocess.Popen(
            launch.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=launch.env,
            cwd=launch.cwd,
            pass_fds=launch.child_fds,
            start_new_session=True,  # so that Ctrl-C at the terminal reaches only this process
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise SandboxError(f"Cannot start an execution: {error}") from error
    try:
        execution = _Execution(process, launch, stdin, limits)
    except OSError as error:  # out of descriptors
        with process:  # closes its pipes, which ends the gate of a sandbox, and waits
            if launch.status_fd is None:
                process.kill()
        raise SandboxError(f"Cannot start an execution: {error}") from error
    with execution:
        return execution.run(stop_fd)


class _Execution:
    """A running process and its state."""

    def __init__(self, process: subprocess.Popen[bytes], launch: Launch, stdin: bytes, limits: ExecutionLimits) -> None:
        assert process.stdin is not None
        self._process = process
        self._folder = launch.cwd
        self._limits = limits
        self._unsent = memoryview(b"\n" + stdin if launch.status_fd is not None else stdin)
        self._read = {name: bytearray() for name in ("stdout", "stderr")}
        self._status_fd = launch.status_fd
        self._boxed = launch.status_fd is not None
        self._began = time.monotonic()
        self._started = None if self._boxed else self._began
        self._killed: float | None = None
        self._ended: float | None = None
        self._ending: Ending | None = None
        self._given_up = False
        self._init: int | None = None
        self._handle = os.pidfd_open(process.pid)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._handle, selectors.EVENT_READ, "exit")
        os.set_blocking(process.stdin.fileno(), False)
        if not self._boxed:  # the gate of a sandbox writes first
            self._selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            if pipe is not None:
                self._selector.register(pipe, selectors.EVENT_READ, name)

    def __enter__(self) -> _Execution:
        return self

    def __exit__(self, *_: object) -> None:
        """End and reap the process, also after an exception."""
        self._kill_now()
        self._process.wait()
        if self._init is not None:
            # It is now a child of process 1. In a container this may be our process, which must reap it.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._init, os.WEXITED | os.WNOHANG)
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        for fd in (self._handle, self._init):
            if fd is not None:
                os.close(fd)

    def run(self, stop_fd: int) -> ExecutionResult:
        """Run until the process has exited, every pipe is at its end, and the sandbox is empty."""
        self._selector.register(stop_fd, selectors.EVENT_READ, "stop")
        while self._ended is None:
            self._turn(self._deadline())
            if self._overdue():
                self._turn(0.0)  # if this thread did not run for a while, the process may have ended in time
            if self._overdue():  # also if its output keeps this loop busy
                self._late()
        if not self._given_up:
            self._selector.unregister(stop_fd)
        self._kill_now()  # what still runs in the background
        if not self._boxed:
            end_leftovers(self._folder)
        end = time.monotonic() + END_TIMEOUT_S
        while {"stdout", "stderr"} & {key.data for key in self._selector.get_map().values()}:
            if not self._turn(end):
                raise SandboxError("Processes that an execution started did not end.")
        if self._init is not None and not _exits(self._init, end):
            raise SandboxError("Processes that an execution started did not end.")
        if self._given_up:
            raise SandboxError("The execution was ended, because its sandbox was stopped.")
        return self._result()

    def _overdue(self) -> bool:
        return self._ended is None and time.monotonic() >= self._deadline()

    def _deadline(self) -> float:
        if self._killed is not None:
            return self._killed + END_TIMEOUT_S
        return self._began + START_TIMEOUT_S if self._started is None else self._started + self._limits.wall_s

    def _late(self) -> None:
        if self._killed is not None:
            raise SandboxError("An execution did not end when it was killed.")
        if self._started is None:
            raise SandboxError(f"An execution did not start within {START_TIMEOUT_S:g} s.")
        self._ending = Ending.TIME
        self._kill()

    def _turn(self, deadline: float) -> bool:
        """Waits for events and handles them; False if there was none before the deadline."""
        events = self._selector.select(max(deadline - time.monotonic(), 0.0))
        for key, _ in events:
            name = key.data
            if name == "exit":
                self._ended = time.monotonic()
                self._selector.unregister(key.fileobj)
            elif name == "stop":
                self._given_up = True
                self._selector.unregister(key.fileobj)
                self._kill()
            elif name == "stdin":
                self._send(key)
            else:
                self._receive(key)
        return bool(events)

    def _send(self, key: selectors.SelectorKey) -> None:
        try:
            self._unsent = self._unsent[os.write(key.fd, self._unsent[:CHUNK]) :]
        except BrokenPipeError:
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._selector.unregister(key.fileobj)
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _receive(self, key: selectors.SelectorKey) -> None:
        data, so_far = os.read(key.fd, CHUNK), self._read[key.data]
        if not data:
            self._selector.unregister(key.fileobj)
            return
        if key.data == "stdout" and self._started is None:
            self._begin()
            data = data[1:]
        room = self._limits.output_bytes - len(so_far)
        so_far += data[:room]
        if len(data) > room and self._ending is None and self._killed is None:
            self._ending = Ending.OUTPUT
            self._kill()

    def _begin(self) -> None:
        """Begin the execution: the gate has reported that the sandbox is ready. The line before the input opens it."""
        self._started = time.monotonic()
        assert self._process.stdin is not None
        _spare(self._process.pid)
        self._selector.register(self._process.stdin, selectors.EVENT_WRITE, "stdin")
        pid = self._status().get("child-pid", 0)  # the first process of the sandbox; all others end with it
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            if _parent_of(pid) == self._process.pid:
                self._init = handle
            else:  # it has ended already, and another process has its pid
                os.close(handle)
        if self._killed is not None:
            self._kill_now()

    def _kill(self) -> None:
        """Kill the execution as soon as its sandbox has begun: killed before, bubblewrap would leave its child."""
        if self._killed is None:
            self._killed = time.monotonic()
            if self._started is not None:
                self._kill_now()

    def _kill_now(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._init is not None:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            if self._process.returncode is None:  # not reaped, so the pid is still its own
                os.killpg(self._process.pid, signal.SIGKILL)

    def _status(self) -> dict[str, int]:
        found: dict[str, int] = {}
        assert self._status_fd is not None
        for line in os.pread(self._status_fd, CHUNK, 0).splitlines():
            with contextlib.suppress(ValueError):
                found |= json.loads(line)
        return found

    def _result(self) -> ExecutionResult:
        code = self._process.wait()
        ending = self._ending
        if self._boxed and ending is None:
            status = self._status()
            if "exit-code" not in status or self._started is None:
                reason = bytes(self._read["stderr"]).decode("utf-8", "replace").strip()[-500:]
                raise SandboxError(
                    f"A sandbox for an execution could not be made, bubblewrap ended with {code}: {reason}"
                )
            code = status["exit-code"]
            code = 128 - code if code - 128 in SIGNALS else code
        if ending is None:
            ending = Ending.EXITED if code >= 0 else Ending.TIME if code == -signal.SIGXCPU else Ending.KILLED
        assert self._ended is not None
        assert self._started is not None
        return ExecutionResult(
            ending=ending,
            exit_code=code if ending is Ending.EXITED else None,
            stdout=bytes(self._read["stdout"]),
            stderr=bytes(self._read["stderr"]),
            seconds=max(self._ended - self._started, 0.0),  # start and end may be noticed in one turn
        )


def _spare(bubblewrap: int) -> None:
    """Make the kernel kill code that uses up its group's memory before bubblewrap, which has to report the end.

    Otherwise the end would look like a fault of the machine. bubblewrap gets the `oom_score_adj` of this process; the
    processes in the sandbox keep 1000.
    """
    with contextlib.suppress(OSError):
        own = Path("/proc/self/oom_score_adj").read_text(encoding="ascii")
        Path(f"/proc/{bubblewrap}/oom_score_adj").write_text(own, encoding="ascii")


def _exits(handle: int, deadline: float) -> bool:
    watch = select.poll()
    watch.register(handle, select.POLLIN)
    return bool(watch.poll(max(deadline - time.monotonic(), 0.0) * 1000))


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def end_leftovers(folder: str) -> None:
    """Kill all processes that were started with TMPDIR=folder, except those that hide it: this is no isolation."""
    mark = f"TMPDIR={folder}".encode()
    for _ in range(LEFTOVER_ROUNDS):
        found = False
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(
                    int(process.name)
                )  # opened before the check, so that it stays with the process that is checked
                try:
                    if mark in (process / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                        found = True
                finally:
                    os.close(handle)
        if not found:
            return
