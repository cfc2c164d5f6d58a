"""Starting, watching and ending a server process. The server is a small one with vLLM's command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.fake_vllm import fake_vllm

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError, EngineError, MissingDependencyError, ServiceUnavailableError
from finqa_cli.processes import start_time
from finqa_plugins.engines.vllm.config import VllmEngineConfig
from finqa_plugins.engines.vllm.supervisor import Pulse, Supervisor

OUT_OF_MEMORY = "(Worker pid=9) ERROR 11-21 19:07:17 [x.py:1] torch.OutOfMemoryError: CUDA out of memory."
HANG_S = 60.0


@pytest.fixture
def server_folder(tmp_path: Path) -> Path:
    return tmp_path / "server"


@pytest.fixture
async def supervise(server_folder: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def make(behaviour: str = "serve", *, busy: bool = False, **options: Any) -> Supervisor:
        options = {
            "python": fake_vllm(server_folder, behaviour),
            "start_timeout_s": 60,
            "health_timeout_s": 5,
        } | options
        config = VllmEngineConfig.model_validate(options)
        context = EngineContext(model="org/model", log_dir=tmp_path / "logs")
        made.append(Supervisor(config, context, gpu=False, busy=lambda: busy))
        return made[-1]

    yield make
    for supervisor in made:
        await supervisor.close()


def processes(server_folder: Path) -> list[int]:
    """Server and its child."""
    pids: list[int] = json.loads((server_folder / "pids").read_text())
    return pids


def traces(server_folder: Path) -> list[Path]:
    """Its folder of temporary files and its shared memory."""
    return [Path(one) for one in json.loads((server_folder / "traces").read_text())]


def starts(server_folder: Path) -> int:
    return int((server_folder / "starts").read_text())


async def gone(pids: list[int], within_s: float = HANG_S) -> bool:
    async with asyncio.timeout(within_s):
        while any(start_time(pid) is not None for pid in pids):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return True


async def test_nothing_is_left_of_a_server_that_was_closed(supervise: Any, server_folder: Path, tmp_path: Path) -> None:
    supervisor = supervise()
    address = await supervisor.start()
    pids = [*processes(server_folder), supervisor.pid]
    assert all(start_time(pid) is not None for pid in pids)
    arguments = json.loads((server_folder / "arguments.json").read_text())
    assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert f":{arguments[arguments.index('--port') + 1]}/v1" in address
    assert (tmp_path / "logs" / "vllm-0.log").is_file()
    assert [one.exists() for one in traces(server_folder)] == [True, sys.platform == "linux"]
    assert json.loads((server_folder / "environment.json").read_text())["TMPDIR"] == str(traces(server_folder)[0])
    await supervisor.close()
    assert await gone(pids)
    assert not any(one.exists() for one in traces(server_folder))
    await supervisor.close()
    with pytest.raises(EngineError, match="closed"):
        await supervisor.revive()


async def test_the_servers_environment_holds_no_secrets(
    supervise: Any, server_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    monkeypatch.setenv("HF_TOKEN", "hf-ours")
    supervisor = supervise()
    await supervisor.start()
    text = (server_folder / "environment.json").read_text()
    assert "ours" not in text
    assert json.loads(text)["VLLM_API_KEY"] == supervisor.key.get_secret_value()


async def test_a_death_at_start_is_told_in_the_servers_words(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise("die ValueError: Sleep mode is not supported on current platform.")
    with pytest.raises(ServiceUnavailableError, match="Sleep mode is not supported on current platform"):
        await supervisor.start()
    assert await gone(processes(server_folder))


async def test_too_little_memory_at_start_is_a_config_error(supervise: Any) -> None:
    with pytest.raises(ConfigError, match="CUDA out of memory") as caught:
        await supervise(f"die {OUT_OF_MEMORY}").start()
    assert "--gpu-memory-utilization" in caught.value.remedy or "kv_cache_gb" in caught.value.remedy


async def test_a_start_that_takes_too_long_ends_with_what_was_said_last(supervise: Any, server_folder: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"not ready in 4 s.*Loading the model") as caught:
        await supervise("silent", start_timeout_s=4).start()
    assert "start_timeout_s=8" in caught.value.remedy
    assert await gone(processes(server_folder))


async def test_an_interpreter_without_vllm_or_none_at_all_is_told_with_its_remedy(
    supervise: Any, tmp_path: Path
) -> None:
    with pytest.raises(MissingDependencyError) as missing:
        await supervise(python=sys.executable).start()
    assert "then finqa setup vllm" in missing.value.remedy
    with pytest.raises(ConfigError, match="is not a program"):
        await supervise(python=tmp_path / "nothing").start()


async def test_a_start_that_is_given_up_leaves_nothing(supervise: Any, server_folder: Path) -> None:
    task = asyncio.create_task(supervise("silent").start())
    while not (server_folder / "pids").is_file():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    pids = processes(server_folder)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(pids)


async def test_a_dead_server_is_restarted_once_for_all_who_ask(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise(restarts=2)
    await supervisor.start()
    await supervisor.revive()
    assert (starts(server_folder), supervisor.restarts) == (1, 0), "nothing was wrong"
    before, left = processes(server_folder), traces(server_folder)
    os.kill(before[0], signal.SIGKILL)
    hasty = asyncio.create_task(supervisor.revive())
    waiting = [asyncio.create_task(supervisor.revive()) for _ in range(5)]
    await asyncio.sleep(0.05)
    hasty.cancel()
    await asyncio.gather(*waiting)
    assert (starts(server_folder), supervisor.restarts) == (2, 1)
    assert await gone(before), "the child of the server that was killed"
    assert processes(server_folder) != before
    assert not any(one.exists() for one in left) and traces(server_folder)[0].is_dir()


async def test_a_killed_guard_takes_its_server_along(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise()
    await supervisor.start()
    before, guarding, (folder, memory) = processes(server_folder), supervisor.pid, traces(server_folder)
    os.kill(guarding, signal.SIGKILL)
    assert await gone([guarding]), "until then the server still answers, and revive() is content with that"
    await supervisor.revive()
    assert await gone(before)
    assert starts(server_folder) == 2 and not folder.exists()
    memory.unlink(missing_ok=True)  # its tracker was ended with the group, and may have had no time for it


async def test_a_hung_server_is_ended_and_replaced(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise(health_timeout_s=0.6)
    await supervisor.start()
    before, left = processes(server_folder), traces(server_folder)
    os.kill(before[0], signal.SIGSTOP)
    assert await gone(before)
    await supervisor.revive()
    assert starts(server_folder) == 2 and not any(one.exists() for one in left)


async def test_a_server_that_answers_but_makes_no_tokens_hangs(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise(busy=True, health_timeout_s=0.6)
    await supervisor.start()
    assert await gone(processes(server_folder))
    idle = supervise(busy=False, health_timeout_s=2.0)
    await idle.start()
    await asyncio.sleep(3.0)
    assert all(start_time(pid) is not None for pid in processes(server_folder)), "no tokens were requested"


@pytest.mark.parametrize("in_flight", [True, False])
async def test_time_in_which_our_own_loop_was_busy_is_no_silence_of_the_server(
    supervise: Any, server_folder: Path, in_flight: bool
) -> None:
    supervisor = supervise(busy=True, health_timeout_s=600)
    address = await supervisor.start()
    pulse = Pulse(VllmEngineConfig().connection(address), supervisor.key, busy=lambda: True, patience_s=2.0)
    try:
        assert await pulse.look() == ""
        looking = asyncio.create_task(pulse.look())
        if in_flight:
            await asyncio.sleep(0)
        time.sleep(3.0)  # noqa: ASYNC251  the fault: a long computation in the event loop
        assert await looking == ""
        assert await pulse.look() == ""
    finally:
        await pulse.close()


async def test_a_look_that_our_own_busy_loop_missed_restarts_nothing(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise(health_timeout_s=8)
    await supervisor.start()
    reviving = asyncio.create_task(supervisor.revive())
    await asyncio.sleep(0.001)
    time.sleep(2.5)  # noqa: ASYNC251  longer than a look
    await reviving
    assert (starts(server_folder), supervisor.restarts) == (1, 0)


async def test_completions_are_signs_of_life_where_the_server_has_no_time_for_looks(
    supervise: Any, server_folder: Path
) -> None:
    supervisor = supervise(health_timeout_s=1.0)
    await supervisor.start()
    before = processes(server_folder)
    os.kill(before[0], signal.SIGSTOP)
    for _ in range(30):
        await asyncio.sleep(0.1)
        supervisor.heard()
    assert all(start_time(pid) is not None for pid in before)
    assert await gone(before), "none comes any more"


async def test_restarts_are_limited_and_then_the_run_ends(supervise: Any, server_folder: Path) -> None:
    supervisor = supervise("leave", restarts=1)
    await supervisor.start()
    for _ in range(2):
        await gone(processes(server_folder)[:1])
        with contextlib.suppress(ServiceUnavailableError):
            await supervisor.revive()
    with pytest.raises(ServiceUnavailableError, match="failed again after 1 restarts") as caught:
        await supervisor.revive()
    assert not isinstance(caught.value, EngineError), "an error of one episode would be retried"
    assert starts(server_folder) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_parent_takes_everything_along(tmp_path: Path, server_folder: Path) -> None:
    fake_vllm(server_folder)
    program = f"""
        import asyncio
        from pathlib import Path
        from finqa_cli.contracts import EngineContext
        from finqa_plugins.engines.vllm.config import VllmEngineConfig
        from finqa_plugins.engines.vllm.supervisor import Supervisor

        async def main():
            config = VllmEngineConfig(python={str(server_folder / "python")!r})
            context = EngineContext(model="m", log_dir=Path({str(tmp_path)!r}))
            supervisor = Supervisor(config, context, gpu=False, busy=lambda: False)
            await supervisor.start()
            print("ready", flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert any(line == b"ready\n" for line in parent.stdout)
        parent.kill()
    pids, deadline = processes(server_folder), time.monotonic() + HANG_S
    while any(one.exists() for one in traces(server_folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [start_time(pid) for pid in pids] == [None, None]
    assert not any(one.exists() for one in traces(server_folder))
