"""Whether a server is well: asked through the proxy of the environment, and not doubted for a restart of Daytona's."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from fixtures.daytona_provider import RUN, DaytonaBench, nothing_is_left

from finqa_cli.errors import SandboxError
from finqa_plugins.sandboxes.daytona import daytona_sandbox as sandbox_module
from finqa_plugins.sandboxes.daytona.server import Prober
from finqa_testing.daytona.config import Faults

HANG_S = 60.0


async def test_sandboxes_outlive_a_restart_of_the_proxy_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "OUT_OF_REACH_S", HANG_S)
    monkeypatch.setattr(sandbox_module, "HEALTH_TIMEOUT_S", HANG_S)
    bench = DaytonaBench(tmp_path, monkeypatch)
    async with bench.loopback() as loopback:
        bench.use(loopback)
        provider = bench.provider()
        sandbox = await provider.start(bench.spec, RUN)
        await loopback.control.set_faults(Faults(proxy_error=1.0))
        check = asyncio.create_task(sandbox.healthy())
        async with asyncio.timeout(HANG_S):
            while (await loopback.control.stats())["faults"].get("proxy_error", 0) < 2 and not check.done():  # noqa: ASYNC110  asked over HTTP
                await asyncio.sleep(0.02)
        await loopback.control.set_faults(Faults())
        assert await check
        (server,) = (await loopback.control.stats())["servers"]
        os.kill(server, signal.SIGKILL)
        began = time.monotonic()
        assert not await sandbox.healthy()
        assert time.monotonic() - began < HANG_S / 2, "a server that is known to have ended is not waited for"
        await provider.close()


async def test_a_server_that_does_not_come_up_in_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = DaytonaBench(tmp_path, monkeypatch)
    async with bench.loopback(latency={"boot": {"median_s": 600.0}}) as loopback:
        bench.use(loopback)
        provider = bench.provider(start_timeout_s=0.5)
        with pytest.raises(SandboxError, match=r"for 0\.5 s"):
            async with asyncio.timeout(HANG_S):
                await provider.start(bench.spec, RUN)
        await provider.close()
        await nothing_is_left(bench, loopback)


async def test_health_is_asked_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with proxy:
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        prober = Prober()
        assert await prober.status("http://8000-token.sandbox.invalid/health") == 200
        await prober.close()
    assert asked == [b"GET http://8000-token.sandbox.invalid/health HTTP/1.1\r\n"]
