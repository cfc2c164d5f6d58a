"""HTTP of the loopback Daytona over raw sockets: requests cut anywhere, malformed ones, errors, and lost replies."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
from fixtures.loopback_daytona import client, create, serve, until_healthy

from finqa_testing import Faults, LoopbackConfig, LoopbackDaytona

TIMEOUT_S = 30.0
Socket = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def opened(loopback: LoopbackDaytona) -> AsyncIterator[Socket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", loopback.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def send_in_pieces(writer: asyncio.StreamWriter, data: bytes, places: Sequence[int]) -> None:
    """Sends the data in pieces that arrive one after the other."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    for start, end in pairwise(edges):
        writer.write(data[start:end])
        await writer.drain()
        await asyncio.sleep(0.001)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", "0"))), TIMEOUT_S)
    return int(head[0].split()[1]), headers, body


def post(loopback: LoopbackDaytona, body: bytes, path: str = "/api/sandbox", framing: str = "") -> bytes:
    framing = framing or f"Content-Length: {len(body)}"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization:  Bearer {loopback.api_key}\r\n{framing}\r\n\r\n"
    return head.encode() + body


async def until_answered(loopback: LoopbackDaytona) -> None:
    """The loopback still serves."""
    assert (await loopback.control.stats())["up_s"] > 0


@pytest.mark.parametrize("seed", range(12))
async def test_requests_are_read_the_same_however_they_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"finqa-{number}" for number in range(rng.randint(1, 4))]
    async with LoopbackDaytona() as loopback, opened(loopback) as (reader, writer):
        bodies = [json.dumps({"name": name, "labels": {"text": "\r\n\r\n" * rng.randint(0, 40)}}) for name in names]
        data = b"".join(post(loopback, body.encode()) for body in bodies)  # pipelined on one connection
        await send_in_pieces(writer, data, [rng.randrange(len(data)) for _ in range(rng.randint(0, 25))])
        for name, body in zip(names, bodies, strict=True):
            status, headers, content = await answer(reader)
            made = json.loads(content)
            assert (status, headers["content-type"]) == (200, "application/json")
            assert (made["name"], made["labels"]) == (name, json.loads(body)["labels"])
        assert (await loopback.control.stats())["sandboxes"] == len(names)


@pytest.mark.parametrize("seed", range(8))
async def test_chunked_bodies_are_put_together(seed: int) -> None:
    rng = random.Random(seed)
    body = json.dumps({"name": "finqa-1", "labels": {"filler": "x" * rng.randint(0, 500)}}).encode()
    cuts = sorted({0, len(body), *(rng.randrange(len(body)) for _ in range(5))})
    chunks = b"".join(f"{b - a:X};a=b\r\n".encode() + body[a:b] + b"\r\n" for a, b in pairwise(cuts))
    async with LoopbackDaytona() as loopback, opened(loopback) as (reader, writer):
        data = post(loopback, chunks + b"0\r\n\r\n", framing="Transfer-Encoding: chunked")
        await send_in_pieces(writer, data, [rng.randrange(len(data)) for _ in range(20)])
        status, _, content = await answer(reader)
        assert (status, json.loads(content)["labels"]) == (200, json.loads(body)["labels"])


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n0\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_its_connection_closed(data: bytes) -> None:
    async with LoopbackDaytona() as loopback, opened(loopback) as (reader, writer):
        writer.write(data)
        received = await asyncio.wait_for(reader.read(), TIMEOUT_S)  # to the end of the connection
        assert received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 "))
        await until_answered(loopback)


async def test_no_bytes_disturb_other_connections() -> None:
    rng = random.Random(0)
    async with LoopbackDaytona() as loopback, client(loopback) as daytona:
        for _ in range(60):
            async with opened(loopback) as (_, writer):
                writer.write(rng.randbytes(rng.randint(0, 300)) + b"\r\n\r\n")
                await writer.drain()
        assert (await create(daytona)).state == "started"
        assert (await loopback.control.stats())["sandboxes"] == 1


async def test_queries_and_segments_are_unquoted() -> None:
    async with LoopbackDaytona() as loopback, client(loopback) as daytona:
        await create(daytona, name="finqa-1", labels={"x": "1 &"})
        await create(daytona, name="finqa-2", labels={"x": "2"})
        headers = {"Authorization": f"Bearer {loopback.api_key}"}
        async with httpx.AsyncClient(base_url=loopback.api_url, headers=headers) as http:

            async def names(query: str) -> list[str]:
                return [item["name"] for item in (await http.get(f"/sandbox?{query}")).json()["items"]]

            assert await names("labels=%7B%22x%22%3A%221%20%26%22%7D") == ["finqa-1"]
            assert await names("states=started,error&states=stopped") == ["finqa-1", "finqa-2"]
            assert await names("states=error,destroyed&states=stopped") == []
            assert await names("name=finqa-2&labels=") == ["finqa-2"]
            image = await http.get("/snapshots/daytonaio%2Fsandbox")  # a quoted slash is part of the name
            assert image.json()["name"] == "daytonaio/sandbox"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "The body is no JSON"),
        (b"[1]", "The body is no JSON object"),
        (b"\xff", "The body is no JSON"),
        (b'{"name": 1}', "name must be a string"),
        (b'{"labels": {"a": 1}}', "labels must map strings to strings"),
        (b'{"autoStopInterval": true}', "autoStopInterval must be an integer number"),
    ],
)
async def test_a_wrong_body_is_refused_in_the_shape_of_daytonas_errors(body: bytes, message: str) -> None:
    async with LoopbackDaytona() as loopback, opened(loopback) as (reader, writer):
        writer.write(post(loopback, body))
        status, headers, content = await answer(reader)
        assert (status, headers["content-type"]) == (400, "application/json")
        assert json.loads(content) == {
            "statusCode": 400,
            "error": "Bad Request",
            "message": message,
            "path": "/api/sandbox",
            "source": "DAYTONA_API",
        }
        stats = await loopback.control.stats()
        assert (stats["creates"]["refused"], stats["sandboxes_ever"]) == (1, 0)


async def test_the_key_is_checked_first_and_unknown_paths_are_said() -> None:
    async with LoopbackDaytona() as loopback:
        origin = loopback.api_url.removesuffix("/api")
        async with httpx.AsyncClient(base_url=origin) as http:
            assert (await http.get("/api/nothing")).json()["message"] == "Invalid credentials"
            http.headers["Authorization"] = f"Bearer {loopback.api_key}"
            unknown = await http.patch("/api/nothing?x=1")
            assert (unknown.status_code, unknown.json()["message"]) == (404, "Cannot PATCH /api/nothing")
            assert (await http.get("/api/socket.io/?EIO=4")).status_code == 404
            toolbox = (await http.post("/toolbox/x/process/execute", json={})).json()
            assert (toolbox["statusCode"], toolbox["source"]) == (404, "DAYTONA_DAEMON")
            form = await http.post("/toolbox/x/files/bulk-upload", content=b"no form")
            assert form.status_code == 404  # the sandbox is looked for first
        requests = (await loopback.control.stats())["requests"]
        assert requests["GET unknown"] == {"401": 1, "404": 1} and requests["PATCH unknown"] == {"404": 1}


@pytest.mark.parametrize("content_type", ["", "multipart/form-data", "multipart/form-data; boundary=b"])
async def test_an_upload_that_is_no_form_is_refused(content_type: str) -> None:
    async with LoopbackDaytona() as loopback, client(loopback) as daytona:
        sandbox = await create(daytona)
        headers = {"Authorization": f"Bearer {loopback.api_key}", "Content-Type": content_type}
        url = f"{loopback.api_url.removesuffix('/api')}/toolbox/{sandbox.id}/files/bulk-upload"
        async with httpx.AsyncClient(headers=headers) as http:
            refused = await http.post(url, content=b"no form")
        assert (refused.status_code, refused.json()["source"]) == (400, "DAYTONA_DAEMON")


async def test_a_lost_reply_drops_the_connection_without_a_byte_and_leaves_a_sandbox() -> None:
    async with LoopbackDaytona(LoopbackConfig(faults=Faults(lost_reply=1.0))) as loopback:
        async with opened(loopback) as (reader, writer):
            writer.write(post(loopback, b'{"name": "finqa-1"}'))
            assert await asyncio.wait_for(reader.read(), TIMEOUT_S) == b""
        stats = await loopback.control.stats()
        assert (stats["sandboxes"], stats["requests"]["POST /api/sandbox"]) == (1, {"0": 1})


async def test_a_request_is_worked_on_after_its_client_has_left() -> None:
    async with LoopbackDaytona(LoopbackConfig.model_validate({"latency": {"create": {"median_s": 0.3}}})) as loopback:
        async with opened(loopback) as (_, writer):
            writer.write(post(loopback, b'{"name": "finqa-1"}'))
            async with asyncio.timeout(TIMEOUT_S):
                while (await loopback.control.stats())["sandboxes"] == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(TIMEOUT_S):
            while (await loopback.control.stats())["sandboxes_by_state"] != {"started": 1}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_reach_the_server_behind_a_preview(chunked: bool) -> None:
    async with LoopbackDaytona() as loopback, client(loopback) as daytona:
        sandbox = await create(daytona)
        url = await serve(sandbox, "fixtures.post_echo_server")
        await until_healthy(url)
        content = bytes(range(256)) * 4000

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(content), 100_000):
                yield content[start : start + 100_000]

        async with httpx.AsyncClient() as http:
            echoed = await http.post(f"{url}/echo", content=pieces() if chunked else content)
        assert echoed.content == content
