"""Executions of the local provider: their queue, their faults, and that nothing of them is left however they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import selectors
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.isolation import needs_isolation

from finqa_cli.contracts import SandboxContext
from finqa_cli.errors import SandboxError, StorageError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest, ExecutionSpec
from finqa_plugins.sandboxes.local import supervision
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.isolation import find_isolation
from finqa_plugins.sandboxes.local.launches import BubblewrapLauncher
from finqa_plugins.sandboxes.local.local_executions import ExecutingSandboxFiles, LocalExecutingSandbox
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider
from finqa_plugins.sandboxes.local.supervision import Launch, supervise

RUN = {"finqa.run": "r"}
ROOMY = ExecutionLimits(cpu_s=10.0, wall_s=30.0)
HANG_S = 60.0


def request(program: str, limits: ExecutionLimits = ROOMY) -> ExecutionRequest:
    return ExecutionRequest(argv=(PYTHON, "-I", "-c", program), limits=limits)


def provider(home: Path, **options: float) -> LocalSandboxProvider:
    return LocalSandboxProvider(LocalSandboxConfig.model_validate(options), SandboxContext(home=home))


@contextlib.asynccontextmanager
async def sandbox(home: Path, **options: float) -> AsyncIterator[LocalExecutingSandbox]:
    needs_isolation()
    local = provider(home, **options)
    try:
        yield await local.start(ExecutionSpec(), RUN)
    finally:
        await local.close()


def running(mark: str) -> list[str]:
    """Processes of this whole machine that execute code with a mark in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes()
            found += [process.name] * (mark.encode() in line and b"python" in line.split(b"\0")[0])
    return found


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def becomes(mark: str, *, there: bool) -> bool:
    deadline = time.monotonic() + HANG_S
    while bool(running(mark)) != there and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(running(mark)) == there


async def test_waiting_for_a_turn_does_not_count(tmp_path: Path) -> None:
    async with sandbox(tmp_path, executions_at_once=1) as one:
        nap = request("import time; time.sleep(4)")
        hasty = request("pass", replace(ROOMY, wall_s=3.9))  # it begins when the nap is over
        results = await asyncio.gather(one.execute(nap), one.execute(hasty))
        assert [result.ending for result in results] == [Ending.EXITED] * 2


async def test_whoever_keeps_us_busy_is_ended_all_the_same(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as one:
        trickle = "import os\nwhile True: os.write(1, b'x')"
        result = await one.execute(request(trickle, replace(ROOMY, wall_s=0.3, output_bytes=2**30)))
        assert (result.ending, result.exit_code) == (Ending.TIME, None)


def test_what_ended_while_we_were_not_served_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, receive, stop = 0.0, supervision._Execution._receive, os.eventfd(0)

    def not_served_until_its_end(self: supervision._Execution, key: selectors.SelectorKey) -> None:
        nonlocal ahead
        receive(self, key)
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        ahead = 3600.0

    monkeypatch.setattr(supervision._Execution, "_receive", not_served_until_its_end)
    monkeypatch.setattr(supervision, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))
    program = "import time; print('said', flush=True); time.sleep(0.3)"
    try:
        result = supervise(Launch(argv=(sys.executable, "-I", "-c", program), env={}), b"", ROOMY, stop)
    finally:
        os.close(stop)
    assert (result.ending, result.exit_code, result.stdout) == (Ending.EXITED, 0, b"said\n")


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.3])
async def test_a_cancelled_execution_is_gone_when_the_cancel_is(tmp_path: Path, after_s: float) -> None:
    mark = secrets.token_hex(8)
    async with sandbox(tmp_path) as one:
        task = asyncio.create_task(one.execute(request(f"import time; time.sleep(3600)  # {mark}")))
        await asyncio.sleep(after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert running(mark) == []


async def test_what_is_left_in_the_background_is_gone_when_the_result_is(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)
    leave = f"""
import os, sys, time
for number in range(3):
    if os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        os.execv(sys.executable, [sys.executable, "-I", "-c", "import time; time.sleep(3600)  # {mark}"])
time.sleep(0.3)
"""
    async with sandbox(tmp_path) as one:
        assert (await one.execute(request(leave))).exit_code == 0
        assert running(mark) == []


async def test_killing_the_owner_leaves_no_execution(tmp_path: Path) -> None:
    needs_isolation()
    mark = secrets.token_hex(8)
    program = """
        import asyncio, os
        from pathlib import Path
        from finqa_cli.contracts import SandboxContext
        from finqa_cli.types import PYTHON, ExecutionLimits, ExecutionRequest, ExecutionSpec
        from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
        from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider

        async def main():
            local = LocalSandboxProvider(LocalSandboxConfig(), SandboxContext(home=Path(os.environ["SANDBOXES"])))
            sandbox = await local.start(ExecutionSpec(), {"finqa.run": "killed"})
            argv = (PYTHON, "-I", "-c", "import time; time.sleep(3600)  # " + os.environ["MARK"])
            await sandbox.execute(ExecutionRequest(argv=argv, limits=ExecutionLimits(wall_s=3600.0)))

        asyncio.run(main())
    """
    environment = {**os.environ, "MARK": mark, "SANDBOXES": str(tmp_path)}
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", textwrap.dedent(program), env=environment)
    try:
        assert becomes(mark, there=True)
        other = provider(tmp_path)
        assert len(await other.list({"finqa.run": "killed"})) == 1
    finally:
        owner.kill()
        await owner.wait()
    assert becomes(mark, there=False)
    assert not await other.list({})
    assert not list((tmp_path / "local").iterdir())
    await other.close()


async def test_a_sandbox_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    """No room for bubblewrap itself, or a machine without it: what the code would have done is not known."""
    needs_isolation()
    stop = os.eventfd(0)
    found = find_isolation()
    try:
        for broken in (replace(found, python="/nowhere/python3"), replace(found, bwrap="/bin/false")):
            with BubblewrapLauncher(broken).prepared(request("print(1)")) as launch:
                if broken.bwrap == "/bin/false":
                    with pytest.raises(SandboxError, match="could not be made"):
                        supervise(launch, b"", ROOMY, stop)
                else:  # a command that is none is the request's own doing
                    assert supervise(launch, b"", ROOMY, stop).exit_code == 127
        with pytest.raises(SandboxError, match="Cannot start"):
            supervise(Launch(argv=("/nowhere/bwrap",), env={}), b"", ROOMY, stop)
    finally:
        os.close(stop)


async def test_descriptors_are_given_back(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as one:
        await one.execute(request("print(1)"))
        before = descriptors()
        endings = ["print(1)", "1 / 0", "import os; os.kill(os.getpid(), 9)", "while True: print('x' * 10000)"]
        await asyncio.gather(*(one.execute(request(program)) for program in endings * 3))
        assert descriptors() <= before


async def test_sandboxes_are_seen_and_ended_from_elsewhere(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as one:
        other = provider(tmp_path)
        (listed,) = await other.list(RUN)
        assert (listed.id, listed.state, dict(listed.labels)) == (one.id, "started", RUN)
        await other.reap(one.id)
        assert not await one.healthy()
        with pytest.raises(SandboxError, match="was stopped"):
            await one.execute(request("print(1)"))
        await other.close()


def test_the_files_of_sandboxes(tmp_path: Path) -> None:
    files = ExecutingSandboxFiles(tmp_path / "local")
    sandbox_id = files.add(RUN)
    (tmp_path / "precious.box").write_text("1", encoding="utf-8")
    files.remove("../precious")
    assert (tmp_path / "precious.box").exists()
    path = tmp_path / "local" / f"{sandbox_id}.box"
    row = json.loads(path.read_text(encoding="utf-8"))
    for content in ("", "[]", "{}", json.dumps({**row, "labels": 1})):
        (tmp_path / "local" / "strange.box").write_text(content, encoding="utf-8")
        assert [info.id for info in files.sandboxes()] == [sandbox_id]
    path.write_text(json.dumps({**row, "started": row["started"] + 1}), encoding="utf-8")  # a reused pid
    assert list(files.sandboxes()) == []
    assert not files.holds(sandbox_id)
    blocked = ExecutingSandboxFiles(tmp_path / "precious.box")
    with pytest.raises(StorageError, match="sandbox ledger"):
        blocked.add(RUN)
