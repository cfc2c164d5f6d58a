"""Checks for every sandbox that executes code. `sandbox_suite` runs all of `CHECKS` on a provider.

The programs need only Python and a shell in the sandbox, so the provider may be a service on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import textwrap
from collections.abc import Awaitable, Callable

import pytest

from finqa_cli.contracts import ExecutingSandbox, SandboxProvider
from finqa_cli.errors import SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionResult, ExecutionSpec

MIB = 2**20
LABELS = {"finqa.run": "contract"}
ROOMY = ExecutionLimits(cpu_s=10.0, wall_s=30.0)
"""Limits that are large enough not to end a program even on a busy machine."""

ProviderFactory = Callable[[], SandboxProvider]
Check = Callable[[ProviderFactory], Awaitable[None]]


async def execute(
    sandbox: ExecutingSandbox, program: str, *, stdin: bytes = b"", limits: ExecutionLimits = ROOMY
) -> ExecutionResult:
    """Executes a Python program in a sandbox."""
    argv = (PYTHON, "-I", "-c", textwrap.dedent(program))
    return await sandbox.execute(ExecutionRequest(argv=argv, stdin=stdin, limits=limits, labels={"problem": "p-1"}))


async def started(make: ProviderFactory) -> tuple[ExecutingSandbox, Callable[[], Awaitable[None]]]:
    """Returns a sandbox, and the function that closes its provider."""
    provider = make()
    try:
        sandbox = await provider.start(ExecutionSpec(), LABELS)
    except BaseException:
        await provider.close()
        raise
    assert isinstance(sandbox, ExecutingSandbox)
    return sandbox, provider.close


async def check_life_of_a_sandbox(make: ProviderFactory) -> None:
    """Starts, lists by label, executes and stops twice; afterwards an execution is a fault of the sandbox."""
    provider = make()
    try:
        sandbox = await provider.start(ExecutionSpec(), LABELS)
        assert isinstance(sandbox, ExecutingSandbox)
        assert await sandbox.healthy()
        assert (await execute(sandbox, "print(1)")).stdout == b"1\n"
        (listed,) = await provider.list(LABELS)
        assert (listed.id, listed.state, listed.labels["finqa.run"]) == (sandbox.id, "started", "contract")
        assert not await provider.list({"finqa.run": "another"})
        await sandbox.stop()
        await sandbox.stop()
        assert not await sandbox.healthy()
        assert not await provider.list(LABELS)
        with pytest.raises(SandboxError):
            await execute(sandbox, "print(1)")
    finally:
        await provider.close()


async def check_input_and_output(make: ProviderFactory) -> None:
    """Input and output are bytes, the two output streams are separate, and the exit code is returned; reproducibly."""
    sandbox, close = await started(make)
    try:
        sent = bytes(range(256)) * 1000
        echo = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]); sys.exit(7)"
        result = await execute(sandbox, echo, stdin=sent)
        assert (result.ending, result.exit_code, result.stdout, result.stderr) == (Ending.EXITED, 7, sent[::-1], b"")
        assert result.seconds > 0
        result = await execute(sandbox, "import sys; print('no', file=sys.stderr)")
        assert (result.ending, result.exit_code, result.stdout, result.stderr) == (Ending.EXITED, 0, b"", b"no\n")
        result = await execute(sandbox, "print('unread')", stdin=b"x" * MIB)
        assert (result.ending, result.exit_code, result.stdout) == (Ending.EXITED, 0, b"unread\n")
        shell = await sandbox.execute(ExecutionRequest(argv=("sh", "-c", "echo a b; exit 3"), limits=ROOMY))
        assert (shell.ending, shell.exit_code, shell.stdout) == (Ending.EXITED, 3, b"a b\n")
        ordered = ExecutionRequest(argv=(PYTHON, "-c", "print({*map(str, range(9))})"), limits=ROOMY)
        first, second = await sandbox.execute(ordered), await sandbox.execute(ordered)
        assert first.stdout == second.stdout and first.exit_code == 0, "sets of texts have one order in all executions"
    finally:
        await close()


async def check_what_code_does_is_no_fault(make: ProviderFactory) -> None:
    """An unknown command, an exception and a crash are results, not faults."""
    sandbox, close = await started(make)
    try:
        missing = await sandbox.execute(ExecutionRequest(argv=("no-such-command-anywhere",), limits=ROOMY))
        assert (missing.ending, missing.exit_code == 0, missing.stdout) == (Ending.EXITED, False, b"")
        error = await execute(sandbox, "1 / 0")
        assert (error.ending, error.exit_code) == (Ending.EXITED, 1)
        assert b"ZeroDivisionError" in error.stderr
        crash = await execute(sandbox, "import os; print('here', flush=True); os.kill(os.getpid(), 9)")
        assert (crash.ending, crash.exit_code, crash.stdout) == (Ending.KILLED, None, b"here\n")
        assert (await execute(sandbox, "print('still there')")).stdout == b"still there\n"
    finally:
        await close()


async def check_limits_on_time(make: ProviderFactory) -> None:
    """A program that computes or waits for too long is ended, and the output that it wrote before is returned."""
    sandbox, close = await started(make)
    try:
        spin = await execute(
            sandbox, "print('on', flush=True)\nwhile True: pass", limits=ExecutionLimits(cpu_s=1.0, wall_s=30.0)
        )
        assert (spin.ending, spin.exit_code, spin.stdout) == (Ending.TIME, None, b"on\n")
        wait = await execute(sandbox, "import time; time.sleep(3600)", limits=ExecutionLimits(cpu_s=10.0, wall_s=0.3))
        assert (wait.ending, wait.exit_code) == (Ending.TIME, None)
    finally:
        await close()


async def check_limits_on_resources(make: ProviderFactory) -> None:
    """A program that exceeds the limit on memory, files or processes gets an error or is ended."""
    sandbox, close = await started(make)
    limits = ExecutionLimits(cpu_s=10.0, wall_s=30.0, memory_bytes=256 * MIB, processes=8, disk_bytes=4 * MIB)
    try:
        memory = await execute(sandbox, "data = bytearray(2 * 2**30); print('got it')", limits=limits)
        assert memory.stdout == b""
        assert memory.ending is Ending.KILLED or memory.exit_code != 0
        file = await execute(sandbox, "open('f', 'wb').write(bytes(8 * 2**20)); print('got it')", limits=limits)
        assert file.stdout == b""
        forks = """
            import os, time
            for number in range(400):
                if os.fork() == 0:
                    time.sleep(3600)
            print("got it")
        """
        assert (await execute(sandbox, forks, limits=limits)).stdout == b""
    finally:
        await close()


async def check_limit_on_output(make: ProviderFactory) -> None:
    """Each output stream is returned up to exactly its limit; a program that writes more is ended."""
    sandbox, close = await started(make)
    limits = ExecutionLimits(cpu_s=10.0, wall_s=30.0, output_bytes=5000)
    try:
        for stream in ("stdout", "stderr"):
            flood = await execute(sandbox, f"import sys\nwhile True: sys.{stream}.write('x' * 100)", limits=limits)
            assert (flood.ending, flood.exit_code) == (Ending.OUTPUT, None)
            assert getattr(flood, stream) == b"x" * 5000
        full = await execute(sandbox, "import sys; sys.stdout.write('x' * 5000)", limits=limits)
        assert (full.ending, full.exit_code, len(full.stdout)) == (Ending.EXITED, 0, 5000)
    finally:
        await close()


async def check_nothing_of_ours_is_inside(make: ProviderFactory) -> None:
    """No environment variable of this process can be found; the working folder is empty and can be written."""
    os.environ["FINQA_CANARY"] = "canary-of-the-host"
    sandbox, close = await started(make)
    look = """
        import json, os
        def content(path):
            try:
                return open(path, errors="replace").read()
            except OSError:
                return ""
        seen = dict(os.environ), [content(f"/proc/{pid}/environ") for pid in ("self", os.getppid())]
        before = os.listdir(".")
        open("written", "w").write("1")
        print(json.dumps([seen, before, os.listdir(".")]))
    """
    try:
        result = await execute(sandbox, look)
        assert b"canary-of-the-host" not in result.stdout
        _, before, after = json.loads(result.stdout)
        assert (before, after) == ([], ["written"])
    finally:
        del os.environ["FINQA_CANARY"]
        await close()


async def check_executions_are_apart(make: ProviderFactory) -> None:
    """Concurrent executions do not see each other's files; later ones find no files or processes of earlier ones."""
    sandbox, close = await started(make)
    own = """
        import os, sys, time
        name = sys.stdin.read()
        open(name, "w").close()
        time.sleep(0.2)
        print(os.listdir("."))
    """
    mark = secrets.token_hex(8)  # distinguishes its processes from those of earlier tests that failed
    leave = f"""
        import subprocess, sys
        program = "import time; time.sleep(3600)  # {mark}"
        subprocess.Popen([sys.executable, "-I", "-c", program], start_new_session=True)
        open("left", "w").close()
    """
    look = f"""
        import glob, os
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                found += ["{mark[:8]}" + "{mark[8:]}" in open(path).read()]
            except OSError:
                pass
        print(os.listdir("."), any(found))
    """
    try:
        results = await asyncio.gather(*(execute(sandbox, own, stdin=f"f{n}".encode()) for n in range(4)))
        assert [result.stdout for result in results] == [f"['f{n}']\n".encode() for n in range(4)], results
        left = await execute(sandbox, leave)
        assert (left.ending, left.exit_code) == (Ending.EXITED, 0)
        assert (await execute(sandbox, look)).stdout == b"[] False\n"
    finally:
        await close()


async def check_cancelled_executions(make: ProviderFactory) -> None:
    """After a caller cancels an execution, the sandbox executes the next one."""
    sandbox, close = await started(make)
    try:
        task = asyncio.create_task(execute(sandbox, "import time; time.sleep(3600)"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await execute(sandbox, "print(2)")).stdout == b"2\n"
    finally:
        await close()


async def check_stopping_ends_executions(make: ProviderFactory) -> None:
    """Stopping a sandbox ends its executions, which are then faults of the sandbox."""
    sandbox, close = await started(make)
    try:
        task = asyncio.create_task(
            execute(sandbox, "import time; time.sleep(3600)", limits=ExecutionLimits(wall_s=20.0))
        )
        await asyncio.sleep(0.3)
        await sandbox.stop()
        with pytest.raises(SandboxError):
            await task
    finally:
        await close()


CHECKS: tuple[Check, ...] = (
    check_life_of_a_sandbox,
    check_input_and_output,
    check_what_code_does_is_no_fault,
    check_limits_on_time,
    check_limits_on_resources,
    check_limit_on_output,
    check_nothing_of_ours_is_inside,
    check_executions_are_apart,
    check_cancelled_executions,
    check_stopping_ends_executions,
)
