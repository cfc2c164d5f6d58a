"""Executions on a machine or in a container that is short of something, or where we are the first process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fixtures.isolation import needs_isolation

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionSpec
from finqa_plugins.sandboxes.local.control_groups import MEMORY_FILES, ControlGroups, Group, find_control_groups
from finqa_plugins.sandboxes.local.isolation import find_isolation
from finqa_plugins.sandboxes.local.launches import BubblewrapLauncher
from finqa_plugins.sandboxes.local.local_executions import LocalExecutingSandbox, _execute
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider


def request(program: str) -> ExecutionRequest:
    return ExecutionRequest(argv=(PYTHON, "-I", "-c", program), limits=ExecutionLimits(cpu_s=10.0, wall_s=30.0))


@contextlib.asynccontextmanager
async def sandbox(home: Path) -> AsyncIterator[LocalExecutingSandbox]:
    needs_isolation()
    local = LocalSandboxProvider(None, SandboxContext(home=home))
    try:
        yield await local.start(ExecutionSpec(), {})
    finally:
        await local.close()


async def test_descriptors_beyond_those_of_select(tmp_path: Path) -> None:
    """Hundreds of sandboxes and connections have them; an error of our own would end the whole run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1400:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
    held = []
    try:
        async with sandbox(tmp_path) as one:
            held += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
            assert (await one.execute(request("print(1)"))).stdout == b"1\n"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_no_descriptors_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with sandbox(tmp_path) as one:
        for name in ("eventfd", "memfd_create", "pidfd_open"):
            with monkeypatch.context() as patched:
                patched.setattr(os, name, refuse)
                with pytest.raises(SandboxError, match="Too many open files"):
                    await one.execute(request("print(1)"))
        assert (await one.execute(request("print(1)"))).stdout == b"1\n"


@contextlib.contextmanager
def short_of_memory(megabytes: int) -> Iterator[ControlGroups]:
    """A container with little memory: groups below one with a limit of its own."""
    needs_isolation()
    found = find_control_groups()
    for parent in found.parents if found else ():
        folder = parent / f"finqa-test-{secrets.token_hex(4)}"
        folder.mkdir()
        limits = [folder / name for name in MEMORY_FILES if (folder / name).exists()]
        if limits:
            break
        folder.rmdir()
    else:
        pytest.skip("no control group can be created")
    try:
        if (folder / "cgroup.subtree_control").exists():
            (folder / "cgroup.subtree_control").write_text("+memory")
        limits[0].write_text(str(megabytes * 2**20))
        yield ControlGroups((folder,))
    finally:
        folder.rmdir()


def test_what_others_used_up_is_not_the_codes_own_doing() -> None:
    """The kernel kills the code first, even if others used up the container's memory; -1 for that would be wrong."""
    stop = os.eventfd(0)
    greedy, other = request("bytearray(300 * 2**20)"), request("import os; os.kill(os.getpid(), 9)")
    try:
        with short_of_memory(64) as groups:
            launcher = BubblewrapLauncher(find_isolation(), groups)
            with pytest.raises(SandboxError, match="out of memory"):
                _execute(launcher, greedy, stop)
            assert _execute(launcher, other, stop).ending is Ending.KILLED
    finally:
        os.close(stop)


@pytest.mark.parametrize(
    ("files", "starved"),
    [
        ({}, False),
        ({"memory.events": "low 0\nmax 0\noom 0\noom_kill 1\n"}, True),
        ({"memory.events": "low 0\nmax 9\noom 1\noom_kill 1\n"}, False),
        ({"memory.events": "low 0\nmax 0\noom 0\noom_kill 0\n"}, False),
        ({"memory.oom_control": "under_oom 0\noom_kill 1\n", "memory.max_usage_in_bytes": "50000000\n"}, True),
        ({"memory.oom_control": "under_oom 0\noom_kill 1\n", "memory.max_usage_in_bytes": "99000000\n"}, False),
    ],
)
def test_whose_limit_the_kernel_enforced(tmp_path: Path, files: dict[str, str], starved: bool) -> None:
    for name, text in ({"memory.limit_in_bytes": "100000000\n"} | files).items():
        (tmp_path / name).write_text(text)
    assert Group((tmp_path,)).starved() is starved


def zombies_of_ours() -> list[str]:
    """Names of our children that have ended and were not waited for."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            head, _, rest = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            if rest.split()[:2] == ["Z", str(os.getpid())]:
                found.append(head.partition("(")[2])
    return found


async def test_the_first_process_of_a_container_is_left_no_zombies(tmp_path: Path) -> None:
    """bubblewrap ends before its child does, which then is the child of process 1: in a container that may be us."""
    set_child_subreaper, prctl = 36, ctypes.CDLL(None).prctl
    needs_isolation()
    prctl(set_child_subreaper, 1, 0, 0, 0)
    try:
        async with sandbox(tmp_path) as one:
            for program in ("print(1)", "import os; os.kill(os.getpid(), 9)", "while True: print('x' * 10000)"):
                await one.execute(request(program))
        assert "bwrap" not in zombies_of_ours()
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)
