"""Code that a policy wrote, executed in a sandbox: the request and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PYTHON = "python3"
"""First argument of an execution that means the sandbox's Python."""

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLimits:
    """Resource limits of one execution. An execution that exceeds a limit is ended; the cause is the code.

    Attributes:
        cpu_s: CPU seconds of any one process. A busy machine does not shorten this limit. Kernels round it up to whole
            seconds.
        wall_s: Wall-clock seconds from start to end, for code that only waits; the time before the start does not
            count.
        memory_bytes: Address space of any one process.
        processes: Most processes and threads at once.
        disk_bytes: Most bytes written to files in all.
        output_bytes: Most bytes of standard output, and of standard error.
    """

    cpu_s: float = 1.0
    wall_s: float = 4.0
    memory_bytes: int = 512 * MIB
    processes: int = 16
    disk_bytes: int = 64 * MIB
    output_bytes: int = MIB


class Ending(StrEnum):
    """Why an execution ended. The code causes all of these endings; a sandbox that fails raises a SandboxError.

    Attributes:
        EXITED: The process exited, with any status.
        TIME: It exceeded a limit of time.
        OUTPUT: It exceeded the limit of output.
        KILLED: A signal ended it, for example because it exceeded the limit of memory.
    """

    EXITED = "exited"
    TIME = "time"
    OUTPUT = "output"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """One command in a fresh process and its own empty folder, without network and without our environment variables.

    Strings have the same hash in every execution (`PYTHONHASHSEED=0`), so that sets of strings have the same order.

    Attributes:
        argv: Command and arguments; `PYTHON` as the command is the sandbox's Python (3.11 or newer, with its standard
            library only).
        stdin: Content of its standard input.
        limits: Resource limits.
        labels: Labels for a sandbox that a provider creates for this execution, such as `problem`.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    limits: ExecutionLimits = ExecutionLimits()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Result of an execution. Every byte may have been written by the code itself: it is data, never a verdict.

    Attributes:
        ending: Why it ended; `time` for either time limit, `killed` for a signal (the memory limit, a crash).
        exit_code: Exit code if the ending is `exited`, else None.
        stdout: Standard output, cut after `output_bytes`.
        stderr: Standard error, cut after `output_bytes`.
        seconds: Wall-clock seconds in the sandbox.
    """

    ending: Ending
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
