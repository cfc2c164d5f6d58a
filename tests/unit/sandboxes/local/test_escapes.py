"""Fourteen ways out of a sandbox, and proof that the same programs do get out where there is no sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from fixtures.isolation import needs_isolation

from benchmarks.code_execution.escapes import ESCAPES, LIMITS, LONGEST_S, Outcome, attempt
from benchmarks.code_execution.exposed_host import exposed_host
from finqa_cli.contracts import SandboxContext
from finqa_cli.types import ExecutionSpec
from finqa_plugins.sandboxes.local.config import LocalSandboxConfig
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider

QUICK = replace(LIMITS, wall_s=1.2)
ROOMY = replace(LIMITS, wall_s=30.0)
GET_OUT_OF_A_BARE_PROCESS = {"network", "loopback", "answers file", "processes of the host"}


async def outcomes(home: Path, names: set[str], *, isolated: bool) -> dict[str, Outcome]:
    config = LocalSandboxConfig(dangerously_run_unisolated=not isolated, executions_at_once=4)
    local = LocalSandboxProvider(config, SandboxContext(home=home))
    try:
        sandbox = await local.start(ExecutionSpec(), {"finqa.run": "escapes"})
        async with exposed_host() as host:
            chosen = [escape for escape in ESCAPES if escape.name in names]
            limits = QUICK if isolated else ROOMY  # without a sandbox they have to get somewhere in time
            found = await asyncio.gather(*(attempt(sandbox, escape, host, limits) for escape in chosen))
    finally:
        await local.close()
    return {outcome.name: outcome for outcome in found}


async def test_nothing_gets_out(tmp_path: Path) -> None:
    needs_isolation()
    found = await outcomes(tmp_path, {escape.name for escape in ESCAPES}, isolated=True)
    assert len(found) == 14
    assert {name: outcome.result for name, outcome in found.items() if not outcome.held} == {}
    assert max(outcome.result.seconds for outcome in found.values()) <= LONGEST_S


async def test_the_same_programs_get_out_of_a_bare_process(tmp_path: Path) -> None:
    found = await outcomes(tmp_path, GET_OUT_OF_A_BARE_PROCESS, isolated=False)
    assert {name for name, outcome in found.items() if not outcome.held} == GET_OUT_OF_A_BARE_PROCESS
