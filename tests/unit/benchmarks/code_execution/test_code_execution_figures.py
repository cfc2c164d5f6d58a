"""The benchmark of executions in small: its figures are there, and a sandbox that does not hold is a failed figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.isolation import needs_isolation

from benchmarks.code_execution import __main__ as benchmark
from benchmarks.code_execution.escapes import ESCAPES, Escape, Outcome, attempt
from benchmarks.code_execution.exposed_host import Host
from benchmarks.code_execution.speed import measure_speed
from finqa_cli.contracts import ExecutingSandbox, SandboxContext
from finqa_cli.errors import SandboxError
from finqa_cli.types import Ending, ExecutionLimits, ExecutionRequest, ExecutionResult, ExecutionSpec
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider

HOST = Host(canary="canary", address="127.0.0.1", port=9, name="stranger", files=())


class Saying(ExecutingSandbox):
    """A sandbox in which every program says the same."""

    id = "saying"

    def __init__(self, stdout: bytes, ending: Ending = Ending.EXITED) -> None:
        self._result = ExecutionResult(
            ending=ending, exit_code=0 if ending is Ending.EXITED else None, stdout=stdout, stderr=b"", seconds=0.1
        )

    async def healthy(self) -> bool:
        return True

    async def stop(self) -> None:
        pass

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        return self._result


async def test_speed_of_sandboxes_and_of_bare_processes(tmp_path: Path) -> None:
    needs_isolation()
    local = LocalSandboxProvider(LocalSandboxConfig(), SandboxContext(home=tmp_path))
    try:
        figures = await measure_speed(await local.start(ExecutionSpec(), {"finqa.run": "r"}), 4)
    finally:
        await local.close()
    values = {figure.name: figure.value for figure in figures}
    assert all(value > 0 for value in values.values())
    ratio = values["median ms in a sandbox"] / values["median ms of a bare process"]
    assert values["sandbox / bare"] == pytest.approx(ratio)
    with pytest.raises(SandboxError, match="ended otherwise"):
        await measure_speed(Saying(b"2\n"), 4)


@pytest.mark.parametrize("stdout", [b"ESCAPED somehow\n", b"canary\n", b"x" * 2_000_000])
async def test_what_gets_out_is_seen(stdout: bytes) -> None:
    sandbox: ExecutingSandbox = Saying(stdout)
    escape = Escape("any", "pass")
    assert not (await attempt(sandbox, escape, HOST)).held
    assert (await attempt(Saying(b"held\n"), escape, HOST)).held
    spin = next(escape for escape in ESCAPES if escape.name == "spin")
    assert not (await attempt(Saying(b""), spin, HOST)).held
    assert (await attempt(Saying(b"", Ending.TIME), spin, HOST)).held


async def test_an_escape_fails_the_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome = Outcome(name="network", held=True, seconds=0.1, result=(await Saying(b"").execute(_nothing())))

    async def tried(sandbox: ExecutingSandbox, escape: Escape, host: Host, limits: object = None) -> Outcome:
        return replace(outcome, name=escape.name, held=escape.name != "mount")

    monkeypatch.setattr(benchmark, "attempt", tried)
    bare = LocalSandboxProvider(LocalSandboxConfig(dangerously_run_unisolated=True), SandboxContext(home=tmp_path))
    try:
        held, longest, control = await benchmark._escapes(Saying(b""), bare)
    finally:
        await bare.close()
    assert (held.value, held.passed, held.detail) == (13, False, "not held: mount")
    assert longest.passed
    assert not control.passed


def _nothing() -> ExecutionRequest:
    return ExecutionRequest(argv=("true",), limits=ExecutionLimits())
