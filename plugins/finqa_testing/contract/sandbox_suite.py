"""Contract of sandbox providers: sandboxes start, have distinct ids, are listed by other providers, and end completely.

The fixture `make` returns a new provider each time, and `spec` is a server to start; `command_server()` is tried if the
provider cannot start it. A provider whose sandboxes execute code is also tested by `execution_checks`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from finqa_cli.contracts import Sandbox, SandboxProvider, ServingSandbox
from finqa_cli.errors import FinqaError, SandboxError
from finqa_cli.types import ExecutionSpec, SandboxSpec, ServerSpec
from finqa_testing.contract.execution_checks import CHECKS, Check, ProviderFactory

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
LABELS = {"finqa.run": "contract", "other": "label"}


def command_server() -> ServerSpec:
    """Returns a server that answers every GET, for providers that start commands."""
    return ServerSpec(command=(sys.executable, "-c", SERVER, "{host}", "{port}"))


@pytest.fixture
async def serves(make: ProviderFactory, spec: SandboxSpec) -> SandboxSpec:
    """Returns the server that sandboxes of this provider can run; skips the test if there is none."""
    for wanted in (spec, command_server()):
        if not (refusal := await _refusal(make, wanted)):
            return wanted
    pytest.skip(refusal)


@pytest.fixture
async def executes(make: ProviderFactory) -> ProviderFactory:
    """Returns the factory of the provider; skips the test if its sandboxes do not execute code here."""
    if refusal := await _refusal(make, ExecutionSpec()):
        pytest.skip(refusal)
    return make


async def test_it_has_sandboxes_of_some_kind(make: ProviderFactory, spec: SandboxSpec) -> None:
    """At least one of serving and executing code is possible."""
    refusals = [await _refusal(make, wanted) for wanted in (spec, command_server(), ExecutionSpec())]
    assert not all(refusals), "; ".join(refusals)


async def test_it_serves_the_chosen_environment(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Environment `finqa`, unless the settings name another one: its server is a module of finqa with a snapshot."""
    if refusal := await _refusal(make, spec):
        pytest.skip(f"not with this provider: {refusal}")


async def test_it_serves_environments_that_are_commands(make: ProviderFactory) -> None:
    """Environment `openenv` with a folder."""
    if refusal := await _refusal(make, command_server()):
        pytest.skip(f"not with this provider: {refusal}")


async def test_it_executes_code_for_environments(executes: ProviderFactory) -> None:
    """Environments `code` and `mbpp`."""


async def test_a_sandbox_serves_is_listed_and_stops(make: ProviderFactory, serves: SandboxSpec) -> None:
    """A sandbox is found by its labels until it is stopped, and may be stopped twice."""
    await check_life_of_a_sandbox(make, serves)


async def test_sandboxes_are_told_apart(make: ProviderFactory, serves: SandboxSpec) -> None:
    """Five sandboxes run at once, and one of them is stopped."""
    await check_sandboxes_are_told_apart(make, serves)


async def test_closing_the_provider_ends_everything(make: ProviderFactory, serves: SandboxSpec) -> None:
    """Closing ends every sandbox, and none can be started afterwards."""
    await check_close_ends_everything(make, serves)


async def test_sandboxes_are_reaped_from_elsewhere(make: ProviderFactory, serves: SandboxSpec) -> None:
    """`finqa sandbox reap` needs this after a run was killed."""
    await check_sandboxes_are_reaped_from_elsewhere(make, serves)


async def test_a_cancelled_start_leaves_nothing(make: ProviderFactory, serves: SandboxSpec) -> None:
    """Runs can be interrupted at any time."""
    await check_a_cancelled_start_leaves_nothing(make, serves)


async def test_a_failed_start_is_a_sandbox_error_and_leaves_nothing(make: ProviderFactory, serves: SandboxSpec) -> None:
    """The error is a SandboxError, after which another attempt may succeed."""
    if not isinstance(serves, ServerSpec) or not serves.command:
        pytest.skip("only a command can be replaced by one that fails")
    broken = replace(serves, command=(sys.executable, "-c", "raise SystemExit('the data is damaged')"))
    await check_a_failed_start_leaves_nothing(make, broken)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__.removeprefix("check_") for check in CHECKS])
async def test_code_is_executed_within_its_limits_and_apart(executes: ProviderFactory, check: Check) -> None:
    """Runs one of the checks of `execution_checks`."""
    await check(executes)


async def _refusal(make: ProviderFactory, spec: SandboxSpec) -> str:
    """Returns why the provider can never start such a sandbox; empty if it did or if another attempt may succeed."""
    provider = make()
    try:
        await (await provider.start(spec, LABELS)).stop()
    except SandboxError:
        return ""
    except FinqaError as error:
        return error.message
    finally:
        await provider.close()
    return ""


async def check_life_of_a_sandbox(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Starts a sandbox, lists it by label, checks its health and stops it twice."""
    provider = make()
    assert isinstance(provider, SandboxProvider)
    try:
        sandbox = await provider.start(spec, LABELS)
        assert isinstance(sandbox, Sandbox)
        if isinstance(sandbox, ServingSandbox):
            assert sandbox.url().startswith(("http://", "https://"))
        assert await sandbox.healthy()
        (listed,) = await provider.list({"finqa.run": "contract"})
        assert (listed.id, listed.state, dict(listed.labels)) == (sandbox.id, "started", LABELS)
        assert listed.created > 0
        assert not await provider.list({"finqa.run": "another"})
        await sandbox.stop()
        await sandbox.stop()
        assert not await sandbox.healthy()
        assert not await provider.list(LABELS)
    finally:
        await provider.close()


async def check_sandboxes_are_told_apart(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Several sandboxes have different ids, and stopping one leaves the others."""
    provider = make()
    try:
        sandboxes = await asyncio.gather(*(provider.start(spec, {**LABELS, "n": str(n)}) for n in range(5)))
        assert len({sandbox.id for sandbox in sandboxes}) == 5
        await sandboxes[0].stop()
        assert all(await asyncio.gather(*(sandbox.healthy() for sandbox in sandboxes[1:])))
        assert {info.id for info in await provider.list(LABELS)} == {sandbox.id for sandbox in sandboxes[1:]}
    finally:
        await provider.close()


async def check_close_ends_everything(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Close is thorough and idempotent; no sandbox can be started afterwards."""
    provider = make()
    sandboxes = await asyncio.gather(*(provider.start(spec, LABELS) for _ in range(3)))
    await provider.close()
    await provider.close()
    assert not any(await asyncio.gather(*(sandbox.healthy() for sandbox in sandboxes)))
    another = make()
    assert not await another.list(LABELS)
    await another.close()
    for sandbox in sandboxes:
        await sandbox.stop()
    with pytest.raises(SandboxError):
        await provider.start(spec, LABELS)


async def check_sandboxes_are_reaped_from_elsewhere(make: ProviderFactory, spec: SandboxSpec) -> None:
    """Another provider object lists a sandbox and ends it by its id; ending it again or an unknown id has no effect."""
    owner, other = make(), make()
    try:
        sandbox = await owner.start(spec, LABELS)
        assert [info.id for info in await other.list(LABELS)] == [sandbox.id]
        await other.reap(sandbox.id)
        assert not await sandbox.healthy()
        assert not await other.list(LABELS)
        await other.reap(sandbox.id)
        await other.reap("unknown")
        await sandbox.stop()
    finally:
        await owner.close()
        await other.close()


async def check_a_failed_start_leaves_nothing(make: ProviderFactory, broken: SandboxSpec) -> None:
    """If a sandbox does not become ready, `start` raises a SandboxError and no sandbox is left."""
    provider = make()
    try:
        with pytest.raises(SandboxError):
            await provider.start(broken, LABELS)
        assert not await provider.list(LABELS)
    finally:
        await provider.close()


async def check_a_cancelled_start_leaves_nothing(make: ProviderFactory, spec: SandboxSpec) -> None:
    """If a caller cancels a start, no sandbox is left."""
    provider = make()
    try:
        start = asyncio.create_task(provider.start(spec, LABELS))
        await asyncio.sleep(0)  # now the start has begun; no real start ends within one iteration of the event loop
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert not await provider.list(LABELS)
    finally:
        await provider.close()
