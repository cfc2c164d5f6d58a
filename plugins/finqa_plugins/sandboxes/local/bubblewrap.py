"""The bubblewrap command line of a sandbox: which files are in it, and what its processes may use. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.types import PYTHON, ExecutionLimits, ExecutionRequest

FOLDER, SHARED_MEMORY_BYTES, HIDDEN_BYTES, OPEN_FILES = "/tmp", 2**20, 4096, 256
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": FOLDER,
    "TMPDIR": FOLDER,
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}
"""Environment of every sandbox. The fixed hash seed fixes the order of sets of strings, so that results repeat."""

SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
USR = (
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "libexec",
    "local/bin",
    "local/lib",
    "local/lib64",
    "share/zoneinfo",
)
"""Folders below /usr in a sandbox. Images may have an application with data and keys in /usr/src, which is left out."""
LIBRARIES = ("bin", "lib", "lib64")
"""Folders below the prefix of a Python outside /usr. Conda's environments, next to them, are left out."""
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
GATE = 'echo; read -r _ || exit 1; exec "$@"'
"""The first command in a sandbox: reports that it runs and waits for a line of input. By then bubblewrap
has made sure that the sandbox ends with its owner. If the owner ended before, its input is at its end and nothing is
executed."""

USER = 1000
"""User id of the code inside the sandbox."""

UNPRIVILEGED = 65534
"""User id to which root changes before it makes a sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """How sandboxes are made on this machine.

    Attributes:
        bwrap: Program of bubblewrap.
        prlimit: Program of util-linux that sets limits.
        setpriv: Program of util-linux that changes the user id and disables set-user-id programs.
        as_nobody: Whether to change from root to `UNPRIVILEGED`.
        python: Python of the sandboxes.
        library: Prefix of that Python if it is not below /usr, else empty.
        hidden: Folders with installed packages, empty in a sandbox: they may contain finqa, with tests and
        solutions.
        sealed: Whether the kernel refuses further user namespaces in the sandbox, see `--disable-userns` in bwrap(1).
        filtered: Whether system calls are filtered.
    """

    bwrap: str
    prlimit: str
    setpriv: str
    as_nobody: bool
    python: str
    library: str = ""
    hidden: tuple[str, ...] = ()
    sealed: bool = True
    filtered: bool = True


def sandbox_command(
    isolation: Isolation, request: ExecutionRequest, *, status_fd: int, filter_fd: int | None
) -> tuple[str, ...]:
    """The whole command line. Reads nothing but which of the system's folders exist."""
    command = [isolation.bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    if isolation.sealed:
        command.append("--disable-userns")
    command += ["--cap-drop", "ALL", "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        command += ["--setenv", name, value]
    command += _system(isolation)
    # /proc is read-only: code that lowers its own oom_score_adj could have bubblewrap killed in its place.
    command += ["--proc", "/proc", "--remount-ro", "/proc"]
    command += ["--dev", "/dev", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    command += ["--size", str(request.limits.disk_bytes), "--tmpfs", FOLDER]
    command += ["--chdir", FOLDER, "--remount-ro", "/", "--json-status-fd", str(status_fd)]
    if filter_fd is not None:
        command += ["--seccomp", str(filter_fd)]
    # the first process of the sandbox counts as well
    limits = limit_flags(request.limits, processes=request.limits.processes + 1)
    command += [
        "--",
        "/bin/sh",
        "-c",
        GATE,
        "sh",
        isolation.prlimit,
        *limits,
        "--",
        *argv_of(request, isolation.python),
    ]
    return (*as_user(isolation.setpriv, as_nobody=isolation.as_nobody), *command)


def as_user(setpriv: str, *, as_nobody: bool) -> tuple[str, ...]:
    """Start of a command line, so that it runs as an ordinary user who cannot gain privileges."""
    drop_root = ("--reuid", str(UNPRIVILEGED), "--regid", str(UNPRIVILEGED), "--clear-groups") if as_nobody else ()
    return (setpriv, *drop_root, "--no-new-privs", "--")


def limit_flags(limits: ExecutionLimits, *, processes: int) -> list[str]:
    """Flags of prlimit(1). One second passes between SIGXCPU, which code may catch, and SIGKILL."""
    seconds = max(math.ceil(limits.cpu_s), 1)
    return [
        f"--cpu={seconds}:{seconds + 1}",
        f"--as={limits.memory_bytes}",
        f"--nproc={processes}",
        f"--fsize={limits.disk_bytes}",
        f"--nofile={OPEN_FILES}",
        "--core=0",
        "--memlock=0",
        "--msgqueue=0",
    ]


def argv_of(request: ExecutionRequest, python: str) -> tuple[str, ...]:
    """The command of a request, with the path of Python."""
    command, *arguments = request.argv
    return (python if command == PYTHON else command, *arguments)


def _system(isolation: Isolation) -> Sequence[str]:
    """Flags for read-only programs and libraries. Absent: homes, data, /sys, and /etc except `SYSTEM_FILES`."""
    flags: list[str] = []
    for name in [*(f"/usr/{part}" for part in USR), *SYSTEM]:
        path = Path(name)
        if path.is_symlink():
            flags += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            flags += ["--ro-bind", name, name]
    for name in SYSTEM_FILES:
        flags += ["--ro-bind-try", name, name]
    if isolation.library:
        for name in (f"{isolation.library}/{part}" for part in LIBRARIES):
            flags += ["--ro-bind-try", name, name]
    for name in isolation.hidden:
        flags += ["--size", str(HIDDEN_BYTES), "--tmpfs", name, "--remount-ro", name]
    return flags
