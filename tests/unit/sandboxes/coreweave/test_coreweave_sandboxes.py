"""Sandboxes of the `cwsandbox` provider: made, marked, found again and ended, by the real SDK on the loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cwsandbox import Sandbox
from unit.sandboxes.coreweave.conftest import RUN, CoreWeaveBench, python

from finqa_cli.errors import AuthenticationError, ConfigError, SandboxError, ServiceUnavailableError
from finqa_cli.types import Ending, ExecutionSpec, ServerSpec, Snapshot
from finqa_plugins.sandboxes.coreweave import coreweave_sandbox as sandbox_module

FRESH = ExecutionSpec(fresh=True)
USED_AGAIN = ExecutionSpec()


async def test_a_sandbox_is_made_as_the_options_say(bench: CoreWeaveBench) -> None:
    provider = bench.provider(cpu=0.5, memory_mib=512, max_lifetime_s=120)
    sandbox = await provider.start(USED_AGAIN, {**RUN, "n": "1"})
    (made,) = (await bench.stats())["sandboxes"]
    assert made["tags"] == ["finqa", sandbox.id, "job-r", "label:finqa.run=r", "label:n=1"]
    assert (made["image"], made["lifetime_s"], made["denied"]) == ("python:3.11", 120, [True, True])
    assert made["resources"] == {"cpu": "0.5", "memory": "512Mi"}
    await sandbox.stop()
    await bench.provider(network=True).start(USED_AGAIN, RUN)
    (made,) = (await bench.stats())["sandboxes"]
    assert made["denied"] == [False, False]


async def test_a_sandbox_that_is_used_once_is_made_by_its_first_execution(bench: CoreWeaveBench) -> None:
    provider = bench.provider()
    sandbox = await provider.start(FRESH, RUN)
    assert await sandbox.healthy()
    assert not (await bench.stats())["sandboxes"]
    requests = [python("print(1)", problem="mbpp-11"), python("print(2)", problem="mbpp-11")]
    results = await asyncio.gather(*map(sandbox.execute, requests))
    assert [result.stdout for result in results] == [b"1\n", b"2\n"]
    (made,) = (await bench.stats())["sandboxes"]
    assert made["tags"][:4] == ["finqa", sandbox.id, "job-r", "problem-mbpp-11"]
    assert [info.id for info in await provider.list(RUN)] == [sandbox.id]
    await sandbox.stop()
    with pytest.raises(SandboxError, match="was stopped"):
        await sandbox.execute(requests[0])


async def test_others_go_on_while_a_sandbox_is_slow_to_start(bench: CoreWeaveBench) -> None:
    await bench.configure(start_s=2.0)
    turns = 0

    async def go_on() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    others = asyncio.create_task(go_on())
    provider = bench.provider(request_timeout_s=1.5)  # the SDK waits no longer for a start, we do
    assert await (await provider.start(USED_AGAIN, RUN)).healthy()
    others.cancel()
    assert turns > 5


async def test_an_environment_with_a_server_is_sent_elsewhere(bench: CoreWeaveBench) -> None:
    spec = ServerSpec(snapshot=Snapshot(name="s", digest="d", path=Path()), module="m")
    with pytest.raises(ConfigError) as raised:
        await bench.provider().start(spec, RUN)
    assert "--sandbox local" in raised.value.remedy


async def test_many_sandboxes_are_listed_with_their_labels_over_several_pages(bench: CoreWeaveBench) -> None:
    provider = bench.provider()
    sandboxes = await asyncio.gather(*(provider.start(USED_AGAIN, {**RUN, "n": str(n)}) for n in range(5)))
    listed = await bench.provider().list(RUN)
    assert {info.id: info.labels["n"] for info in listed} == {sandbox.id: str(n) for n, sandbox in enumerate(sandboxes)}
    assert {info.state for info in listed} == {"started"}
    assert all(info.created > 1e9 for info in listed)
    assert [info.id for info in await provider.list({**RUN, "n": "3"})] == [sandboxes[3].id]


async def test_sandboxes_of_others_are_neither_listed_nor_ended(bench: CoreWeaveBench) -> None:
    theirs = Sandbox(tags=["job-r", "label:finqa.run=r"])
    await theirs.start()
    provider = bench.provider()
    assert not await provider.list(RUN)
    assert theirs.sandbox_id is not None
    for name in (theirs.sandbox_id, "job-r", "finqa-0123456789ab", ""):
        await provider.reap(name)
    assert len((await bench.stats())["sandboxes"]) == 1
    await theirs.stop(graceful_shutdown_seconds=0)


@pytest.mark.parametrize("fault", ["unavailable", "lost_reply", "busy"])
async def test_a_create_that_fails_now_and_then_makes_one_sandbox(bench: CoreWeaveBench, fault: str) -> None:
    await bench.configure(**{fault: 0.4})
    provider = bench.provider()
    before = (await bench.stats())["sandboxes_ever"]
    sandboxes = await asyncio.gather(*(provider.start(USED_AGAIN, RUN) for _ in range(4)))
    stats = await bench.stats()
    assert stats["faults"][fault] > 0
    assert (stats["sandboxes_ever"] - before, stats["duplicates"]) == (4, 0)
    assert len({sandbox.id for sandbox in sandboxes}) == 4


async def test_a_create_that_is_never_answered_leaves_no_sandbox(bench: CoreWeaveBench) -> None:
    await bench.configure(hang=1.0)
    before = (await bench.stats())["sandboxes_ever"]
    provider = bench.provider(request_timeout_s=3.0, create_timeout_s=0.3)
    with pytest.raises(SandboxError, match="creating sandbox finqa-"):
        await provider.start(USED_AGAIN, RUN)
    stats = await bench.stats()
    assert (stats["sandboxes_ever"] - before, stats["sandboxes"]) == (1, [])


async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_sandbox(bench: CoreWeaveBench) -> None:
    await bench.configure(lost_reply=0.3, start_s=0.02)
    provider = bench.provider()
    starts = [asyncio.create_task(provider.start(USED_AGAIN, RUN)) for _ in range(8)]
    for number, start in enumerate(starts):
        await asyncio.sleep(0.004 * number)
        start.cancel()
    ended = await asyncio.gather(*starts, return_exceptions=True)
    for sandbox in ended:
        if not isinstance(sandbox, BaseException):
            await sandbox.stop()
    assert not (await bench.stats())["sandboxes"]


async def test_a_sandbox_that_does_not_start_is_gone_and_says_why(bench: CoreWeaveBench) -> None:
    with pytest.raises(ConfigError, match="Failed to pull image nowhere:1") as refused:
        await bench.provider(container_image="nowhere:1").start(USED_AGAIN, RUN)
    assert "container_image" in refused.value.remedy
    await bench.configure(start_failed=1.0)
    with pytest.raises(SandboxError, match="ContainerCannotRun"):
        await bench.provider().start(USED_AGAIN, RUN)
    await bench.configure(most_sandboxes=0)
    with pytest.raises(ServiceUnavailableError, match="used up") as full:
        await bench.provider().start(USED_AGAIN, RUN)
    assert not isinstance(full.value, SandboxError)
    assert "--sandboxes" in full.value.remedy


async def test_a_fresh_sandbox_that_failed_to_start_may_be_asked_again(bench: CoreWeaveBench) -> None:
    await bench.configure(start_failed=1.0)
    sandbox = await bench.provider().start(FRESH, RUN)
    with pytest.raises(SandboxError):
        await sandbox.execute(python("print(1)"))
    await bench.configure()
    assert (await sandbox.execute(python("print(1)"))).stdout == b"1\n"


async def test_what_breaks_is_a_fault_and_never_a_result(bench: CoreWeaveBench) -> None:
    provider = bench.provider()
    sandbox = await provider.start(USED_AGAIN, RUN)
    execution = asyncio.create_task(sandbox.execute(python("import time; time.sleep(60)", wall_s=90.0)))
    await bench.until_commands(1)
    assert len(await bench.loopback.control.kill()) == 1
    with pytest.raises(SandboxError):
        await execution
    assert not await sandbox.healthy()
    with pytest.raises(SandboxError):
        await sandbox.execute(python("print(1)"))
    await sandbox.stop()
    assert not await provider.list(RUN)


async def test_a_killed_supervisor_is_the_codes_doing_only_in_a_sandbox_that_lives(
    bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "command", lambda request: (("sh", "-c", "kill -9 $$"), b""))
    sandbox = await bench.provider().start(USED_AGAIN, RUN)
    assert (await sandbox.execute(python("print(1)"))).ending is Ending.KILLED
    asked = sandbox.healthy

    async def asked_of_a_dead_sandbox() -> bool:
        await bench.loopback.control.kill()
        return await asked()

    monkeypatch.setattr(sandbox, "healthy", asked_of_a_dead_sandbox)
    with pytest.raises(SandboxError, match="ended during an execution"):
        await sandbox.execute(python("print(1)"))


async def test_executions_outlive_a_flaky_connection(bench: CoreWeaveBench) -> None:
    sandbox = await bench.provider().start(USED_AGAIN, RUN)
    await bench.configure(unavailable=0.2, execution_cut=0.2)
    for number in range(4):
        assert (await sandbox.execute(python(f"print({number})"))).stdout == f"{number}\n".encode()
    assert (await bench.stats())["faults"]


async def test_an_execution_that_is_cancelled_leaves_no_process(bench: CoreWeaveBench) -> None:
    sandbox = await bench.provider().start(USED_AGAIN, RUN)
    execution = asyncio.create_task(sandbox.execute(python("import time; time.sleep(60)", wall_s=90.0)))
    await bench.until_commands(1)
    execution.cancel()
    with pytest.raises(asyncio.CancelledError):
        await execution
    await bench.until_commands(0)
    assert (await sandbox.execute(python("print(1)"))).ending is Ending.EXITED


async def test_a_stop_ends_what_is_being_made_and_executed(bench: CoreWeaveBench) -> None:
    provider = bench.provider()
    sandbox = await provider.start(FRESH, RUN)
    execution = asyncio.create_task(sandbox.execute(python("import time; time.sleep(60)", wall_s=90.0)))
    await asyncio.sleep(0)
    await sandbox.stop()
    with pytest.raises(SandboxError):
        await execution
    assert not (await bench.stats())["sandboxes"]


async def test_a_wrong_key_and_a_missing_one(bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (USED_AGAIN, FRESH):  # a fresh sandbox is made later, but a wrong key is told at once
        with pytest.raises(AuthenticationError) as refused:
            await bench.provider(key="wrong-key-123456").start(spec, RUN)
        assert "wrong-key-123456" not in str(refused.value)
    monkeypatch.delenv("CWSANDBOX_API_KEY")
    for spec in (USED_AGAIN, FRESH):
        with pytest.raises(AuthenticationError, match="CWSANDBOX_API_KEY is not set") as missing:
            await bench.provider().start(spec, RUN)
    assert "CWSANDBOX_API_KEY" in missing.value.remedy


async def test_a_service_that_is_out_of_reach(bench: CoreWeaveBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CWSANDBOX_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("finqa_plugins.sandboxes.coreweave.coreweave_provider.SEARCH_PATIENCE_S", 0.0)
    monkeypatch.setattr("finqa_plugins.sandboxes.coreweave.coreweave_provider.LAST_LOOK_S", 0.0)
    provider = bench.provider(create_timeout_s=0.3)
    monkeypatch.setattr("finqa_plugins.sandboxes.coreweave.coreweave_provider.FIRST_LOOK_S", 0.3)
    for spec, doing in ((USED_AGAIN, "creating sandbox"), (FRESH, "listing the sandboxes")):
        with pytest.raises(SandboxError, match=doing):
            await provider.start(spec, RUN)
    await provider.close()
