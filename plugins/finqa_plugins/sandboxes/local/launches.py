"""The two ways to run a policy's code: in a sandbox, or, if the user allows it, without isolation."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from finqa_cli.errors import SandboxError
from finqa_cli.processes import count_threads
from finqa_cli.types import ExecutionRequest
from finqa_plugins.sandboxes._execution.seccomp import filter_program
from finqa_plugins.sandboxes.local.bubblewrap import (
    ENVIRONMENT,
    UNPRIVILEGED,
    Isolation,
    argv_of,
    as_user,
    limit_flags,
    sandbox_command,
)
from finqa_plugins.sandboxes.local.control_groups import ControlGroups, Group
from finqa_plugins.sandboxes.local.supervision import Launch

ENTER = """
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
while [ "$1" != -- ]; do echo 0 >"$1" || exit 1; shift; done
shift
unset PWD OLDPWD SHLVL
[ -z "$BASH_VERSION" ] || exec env -i "$@"
exec "$@"
"""
"""Shell script that makes itself the first process to be killed if memory runs out, enters the control groups, and
becomes the command. The command gets no variable: those that shells set are unset, and bash, which passes `_` to every
command, is replaced by `env -i`."""

ENTRANCE = ("/bin/sh", "-c", ENTER, "sh")


class Launcher(Protocol):
    """Prepares executions, and cleans up after them."""

    def prepared(self, request: ExecutionRequest) -> AbstractContextManager[Launch]:
        """The command of one execution, for the length of a block.

        Raises:
            SandboxError: This machine is out of descriptors or disk.
        """
        ...


@dataclass(frozen=True, slots=True)
class BubblewrapLauncher:
    """Runs each execution in its own namespaces, and in a control group if these are available."""

    isolation: Isolation
    groups: ControlGroups | None = None

    @contextlib.contextmanager
    def prepared(self, request: ExecutionRequest) -> Iterator[Launch]:
        """See `Launcher`."""
        with contextlib.ExitStack() as stack:
            try:
                group = Group(()) if self.groups is None else stack.enter_context(self.groups.group(request.limits))
                status_fd = os.memfd_create(
                    "status"
                )  # not a pipe: a write to a pipe without a reader would end bubblewrap
                stack.callback(os.close, status_fd)
                filter_fd = None
                if self.isolation.filtered:
                    filter_fd = _readable(filter_program())
                    stack.callback(os.close, filter_fd)
            except OSError as error:
                raise SandboxError(f"Cannot start an execution: {error}") from error
            command = sandbox_command(self.isolation, request, status_fd=status_fd, filter_fd=filter_fd)
            children = (status_fd,) if filter_fd is None else (status_fd, filter_fd)
            argv = (*ENTRANCE, *group.entrances, "--", *command)
            yield Launch(argv=argv, env={}, child_fds=children, status_fd=status_fd, starved=group.starved)


@dataclass(frozen=True, slots=True)
class BareLauncher:
    """Runs each execution as a process with limits and a folder. It can read its user's files and use the network.

    Attributes:
        prlimit, setpriv, as_nobody, python: As in `Isolation`.
    """

    prlimit: str
    setpriv: str
    as_nobody: bool
    python: str

    @contextlib.contextmanager
    def prepared(self, request: ExecutionRequest) -> Iterator[Launch]:
        """See `Launcher`."""
        user = UNPRIVILEGED if self.as_nobody else os.geteuid()
        try:
            folder = tempfile.mkdtemp(prefix="finqa-execution-")
            if self.as_nobody:
                os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        except OSError as error:
            raise SandboxError(f"Cannot start an execution: {error}") from error
        try:
            # without a user namespace, the limit counts all threads of the user
            processes = request.limits.processes + count_threads(user)
            home = ("HOME", "TMPDIR")
            variables = [f"{name}={folder if name in home else value}" for name, value in ENVIRONMENT.items()]
            command = (
                *as_user(self.setpriv, as_nobody=self.as_nobody),
                *("env", *variables, self.prlimit, *limit_flags(request.limits, processes=processes), "--"),
                *argv_of(request, self.python),
            )
            yield Launch(argv=command, env={}, cwd=folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _readable(data: bytes) -> int:
    """A descriptor from which these bytes can be read once."""
    fd = os.memfd_create("filter")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
