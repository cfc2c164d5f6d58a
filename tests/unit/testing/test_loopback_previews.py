"""Preview URLs: HTTP and WebSocket really reach the server, and accidents reach open sockets."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from fixtures.loopback_daytona import (
    FINQA,
    PORT,
    client,
    connected,
    create,
    serve,
    until_healthy,
    websocket,
)
from fixtures.tiny_snapshot import write_tiny_snapshot
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from finqa_testing import Delay, Faults, Latency, LoopbackConfig, LoopbackProcess

CALL = {"type": "call_tool", "tool_name": "get_descriptions", "arguments": {"company_name": "acme"}}


async def status(url: str, headers: dict[str, str] | None = None) -> int:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"{url}/health", headers=headers)).status_code


async def test_http_and_websockets_pass_through_unchanged() -> None:
    async with connected() as (loopback, daytona):
        sandbox = await create(daytona)
        url = await serve(sandbox)
        await until_healthy(url)
        async with httpx.AsyncClient() as http:
            seen = (await http.get(f"{url}/deep/path?a=1&b=%20")).json()
        assert seen["path"] == "/deep/path?a=1&b=%20"
        assert "DAYTONA_API_KEY" not in seen
        async with connect(websocket(url), max_size=None) as socket:
            for frame in ("short", "x" * 3_000_000, b"\x00\xff" * 1000):
                await socket.send(frame)
                assert await socket.recv() == frame
            assert (await loopback.control.stats())["websockets_open"] == 1
        plain = await sandbox.get_preview_link(PORT)
        assert await status(plain.url) == 401
        assert await status(plain.url, {"X-Daytona-Preview-Token": plain.token}) == 200
        assert await status((await sandbox.create_signed_preview_url(PORT + 1, 60)).url) == 502


async def test_urls_expire_and_can_be_renewed() -> None:
    async with connected(LoopbackConfig(url_ttl_cap_s=6)) as (loopback, daytona):
        sandbox = await create(daytona)
        with pytest.raises(Exception, match="between 1 and 6"):
            await sandbox.create_signed_preview_url(PORT, 7)
        short = (await sandbox.create_signed_preview_url(PORT, 5)).url
        assert await status(short) == 502
        await asyncio.sleep(5.1)
        assert await status(short) == 401
        renewed = (await sandbox.create_signed_preview_url(PORT, 6)).url
        assert await status(renewed) == 502
        await loopback.control.expire_urls()
        assert await status(renewed) == 401


async def test_killed_sandboxes_reset_their_connections() -> None:
    async with connected() as (loopback, daytona):
        sandboxes = [await create(daytona, name=name) for name in ("broken", "lying", "vanished", "spared")]
        urls = [await serve(sandbox) for sandbox in sandboxes]
        await until_healthy(urls[0])
        async with AsyncExitStack() as stack:
            sockets = [await stack.enter_async_context(connect(websocket(url))) for url in urls]
            for name, leave in (("broken", "error"), ("lying", "started"), ("vanished", "destroyed")):
                assert len(await loopback.control.kill([name], leave=leave)) == 1
            for socket in sockets[:3]:
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(socket.recv(), 30)
            await sockets[3].send("still there")
            assert await sockets[3].recv() == "still there"
        assert [await status(url) for url in urls] == [502, 502, 404, 200]
        states = {sandbox["name"]: sandbox["state"] for sandbox in await loopback.control.sandboxes()}
        assert states == {"broken": "error", "lying": "started", "spared": "started"}
        for sandbox in (sandboxes[0], sandboxes[1]):
            await daytona.delete(sandbox)
        assert (await loopback.control.stats())["sandboxes"] == 1


async def test_frozen_sandboxes_answer_nothing_until_they_thaw() -> None:
    async with connected() as (loopback, daytona):
        sandbox = await create(daytona)
        url = await serve(sandbox)
        await until_healthy(url)
        async with connect(websocket(url)) as socket:
            await loopback.control.freeze([sandbox.id])
            await socket.send("one")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(socket.recv(), 0.3)
            with pytest.raises(httpx.ReadTimeout):
                async with httpx.AsyncClient(timeout=httpx.Timeout(30, read=0.3)) as http:
                    await http.get(f"{url}/health")
            await sandbox.refresh_data()
            assert sandbox.state == "started"
            await loopback.control.thaw()
            assert await asyncio.wait_for(socket.recv(), 30) == "one"
            await loopback.control.freeze()
            await daytona.delete(sandbox)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 30)


async def test_latency_faults_and_deaths_of_their_own() -> None:
    slow = Latency(boot=Delay(median_s=1.0), proxy=Delay(median_s=0.05))
    faults = Faults(dies=1.0, fault_after=Delay(median_s=12.0))
    async with connected(LoopbackConfig(latency=slow, faults=faults)) as (loopback, daytona):
        began = time.monotonic()
        url = await serve(await create(daytona))
        await until_healthy(url)
        assert time.monotonic() - began >= 1.0
        async with connect(websocket(url)) as socket:
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 30)
        await loopback.control.set_faults(Faults(proxy_error=1.0))
        url = await serve(await create(daytona))
        with pytest.raises(InvalidStatus, match="502"):
            await connect(websocket(url))


@pytest.mark.parametrize("number", [120, pytest.param(500, marks=pytest.mark.slow)])
async def test_many_sandboxes_with_a_socket_each_at_once(tmp_path: Path, number: int) -> None:
    snapshot = write_tiny_snapshot(tmp_path / "snapshot")
    config = LoopbackConfig(images={"tiny": snapshot.path}, create_limit=0)
    async with LoopbackProcess(config) as loopback, client(loopback) as daytona:
        sandboxes = await asyncio.gather(*(create(daytona, "tiny", name=f"finqa-{n}") for n in range(number)))
        urls = await asyncio.gather(*(serve(sandbox, FINQA) for sandbox in sandboxes))
        await until_healthy(urls[0])
        everyone = asyncio.Barrier(number)

        async def play(url: str) -> int:
            async with connect(websocket(url), open_timeout=30) as socket:
                await everyone.wait()
                for _ in range(3):
                    await socket.send(json.dumps({"type": "step", "data": CALL}))
                    assert "income_statement" in await asyncio.wait_for(socket.recv(), 30)
                return 3

        before = await loopback.async_control.stats()
        assert sum(await asyncio.gather(*(play(url) for url in urls))) == 3 * number
        after = await loopback.async_control.stats()
        assert after["websockets_most"] == after["sandboxes"] == number
        assert len(after["servers"]) == 1
        assert after["cpu_s"] > before["cpu_s"]
        await asyncio.gather(*(daytona.delete(sandbox) for sandbox in sandboxes))
        assert (await loopback.async_control.stats())["sandboxes"] == 0
