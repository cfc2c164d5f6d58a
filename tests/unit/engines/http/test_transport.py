"""The connections to a server: how many there are, who sees a request, and that none of it outlives its caller."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

from finqa_cli.errors import ConfigError
from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.transport import PassingError, Transport, find_proxy
from finqa_plugins.engines._http.usage import Usage

KEY = "sk-right-0123456789"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
PATIENCE_S = 10.0

Reply = Callable[[bytes, bytes], Awaitable[bytes]]
"""From head and body of a request to all bytes of the reply; empty ends the connection without one."""


class Peer:
    """A server that answers what a test says, and remembers what it saw."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.heads: list[bytes] = []
        self.connections = self.open = self.waiting = self.most_waiting = 0
        self.url = ""
        self.ends = False  # after each reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b""
                )
                body = await reader.readexactly(int(length.partition(b":")[2] or 0))
                self.waiting += 1
                self.most_waiting = max(self.most_waiting, self.waiting)
                answering, ending = (
                    asyncio.ensure_future(self._reply(head, body)),
                    asyncio.ensure_future(reader.read(1)),
                )
                await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
                self.waiting -= 1
                ending.cancel()
                await asyncio.wait({ending})
                if not answering.done() or not answering.result():
                    answering.cancel()
                    return
                writer.write(answering.result())
                await writer.drain()
                if self.ends:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def peer(reply: Reply, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    one = Peer(reply)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=tls, backlog=1024)
    one.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield one


@asynccontextmanager
async def connected(url: str, key: str = "", **options: float) -> AsyncIterator[Transport]:
    transport = Transport(ServerConfig.model_validate({"base_url": url, **options}), SecretStr(key) if key else None)
    try:
        yield transport
    finally:
        await transport.close()


async def settled(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  the server side has no event to wait for
            await asyncio.sleep(0.01)


async def fine(head: bytes, body: bytes) -> bytes:
    return OK


async def never(head: bytes, body: bytes) -> bytes:
    return await asyncio.get_running_loop().create_future()


async def test_320_requests_are_under_way_at_once_and_their_connections_are_used_again() -> None:
    everybody = asyncio.Event()

    async def when_all_are_here(head: bytes, body: bytes) -> bytes:
        if server.waiting == 320:
            everybody.set()
        await everybody.wait()
        text = json.dumps({"choices": [{"echo": json.loads(body)["n"]}]}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)

    class Echo:
        usage = Usage()

        def __init__(self, document: dict[str, list[dict[str, int]]]) -> None:
            self.number = document["choices"][0]["echo"]

    async with peer(when_all_are_here) as server:
        client = Client(ServerConfig(base_url=server.url, max_concurrent=320, max_retries=0), None, seed=0)
        for _ in range(2):
            asked = (
                client.complete({"model": "m", "n": n}, key=str(n), limit=1, read=lambda document: Echo(document))  # type: ignore[arg-type]
                for n in range(320)
            )
            assert [answer.number for answer in await asyncio.gather(*asked)] == list(range(320))
            everybody.clear()
        assert (server.most_waiting, server.connections) == (320, 320)
        await client.close()
        await settled(lambda: not server.open)


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with peer(never) as server, connected(server.url) as transport:
        requests = [asyncio.create_task(transport.send("POST", "/x", b"{}", timeout_s=60)) for _ in range(3)]
        await settled(lambda: server.waiting == 3)
        requests[0].cancel()
        await settled(lambda: server.open == 2)
        assert not requests[1].done() and server.waiting == 2
        with pytest.raises(PassingError, match=r"no complete reply within 0\.05 s"):
            await transport.send("POST", "/x", b"{}", timeout_s=0.05)
        await settled(lambda: server.open == 2)
        for request in requests:
            request.cancel()
        await settled(lambda: not server.open)


async def test_a_reply_that_drips_is_given_up_at_its_time_limit() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connected(f"http://127.0.0.1:{port}/v1") as transport:
            began = asyncio.get_running_loop().time()
            with pytest.raises(PassingError, match=r"no complete reply within 0\.3 s"):
                await transport.send("POST", "/x", b"{}", timeout_s=0.3)
            assert asyncio.get_running_loop().time() - began < 5
        server.close()


async def test_a_connection_that_the_server_closed_meanwhile_costs_no_request() -> None:
    """It reads the request and ends: the close of an idle connection and the next request crossed each other."""
    lost: list[bytes] = []

    async def drops_the_second(head: bytes, body: bytes) -> bytes:
        if b"/drop" in head and not lost:
            lost.append(body)
            return b""
        return OK

    async with peer(drops_the_second) as server, connected(server.url) as transport:
        await transport.send("POST", "/x", b"{}", timeout_s=5)
        assert (await transport.send("POST", "/drop", b'{"a": 1}', timeout_s=5)).status == 200
        assert lost == [b'{"a": 1}'] and server.connections == 2

    async def always(head: bytes, body: bytes) -> bytes:
        return b""

    async with peer(always) as server, connected(server.url) as transport:
        with pytest.raises(PassingError, match="disconnected"):
            await transport.send("POST", "/x", b"{}", timeout_s=5)
        assert len(server.heads) == 2


async def test_redirects_are_not_followed() -> None:
    async with peer(fine) as elsewhere:

        async def moved(head: bytes, body: bytes) -> bytes:
            return b"HTTP/1.1 307 Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % elsewhere.url.encode()

        async with peer(moved) as server, connected(server.url, KEY) as transport:
            assert (await transport.send("POST", "/x", b"{}", timeout_s=5)).status == 307
        assert not elsewhere.heads and b"Bearer " + KEY.encode() in server.heads[0]


async def test_a_proxy_of_the_environment_is_used_for_other_machines_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine engine.example login someone password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    async with peer(fine) as proxy, peer(fine) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.replace("//", "//me:pass@"))
        async with connected("http://engine.example/v1") as far, connected(server.url) as near:
            for transport in (far, near):
                assert (await transport.send("GET", "/models", timeout_s=5)).status == 200
        assert len(server.heads) == 1 and b"Proxy" not in server.heads[0]
        (head,) = proxy.heads
        assert head.startswith(b"GET http://engine.example/v1/models ")
        assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:pass") in head
        assert b"\r\nAuthorization" not in head, "what ~/.netrc has is not for a server of tokens"
    monkeypatch.setenv("ALL_PROXY", "proxy.example:3128")
    assert find_proxy("https://engine.example/v1") == "http://proxy.example:3128"
    monkeypatch.setenv("NO_PROXY", "engine.example")
    assert find_proxy("https://engine.example/v1") is find_proxy("http://engine.example:8000/v1") is None
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(ConfigError, match="socks5 proxy") as raised:
        Transport(ServerConfig(base_url="https://other.example/v1"), None)
    assert "NO_PROXY=other.example" in raised.value.remedy


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "payload is not completed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nbad \x01 header " + KEY.encode() + b"\r\n\r\n{}", "header"),
        (b"SSH-2.0 " + KEY.encode() + b"\r\n\r\n", "HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "(?i)chunk"),
    ],
)
async def test_what_is_no_whole_reply_is_a_passing_failure_without_the_key(reply: bytes, told: str) -> None:
    async def answer(head: bytes, body: bytes) -> bytes:
        return reply

    async with peer(answer) as server, connected(server.url, KEY) as transport:
        server.ends = True
        with pytest.raises(PassingError, match=told) as raised:
            await transport.send("POST", "/x", b"{}", timeout_s=5)
        assert KEY not in raised.value.reason


async def test_nobody_there_and_no_address_say_so() -> None:
    async with peer(fine) as server:
        url = server.url
    for address, told in ((url, "Cannot connect"), (f"http://{'a' * 70}.example/v1", ".")):
        async with connected(address, connect_timeout_s=2.0) as transport:
            with pytest.raises(PassingError, match=told):
                await transport.send("GET", "/models", timeout_s=5)
    with pytest.raises(PassingError, match="closed"):
        await transport.send("GET", "/models", timeout_s=5)


async def test_certificates_are_checked_against_those_that_are_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    async with peer(fine, tls) as server:
        async with connected(server.url) as transport:
            with pytest.raises(PassingError, match=r"(?i)certificate"):
                await transport.send("GET", "/models", timeout_s=5)
        assert not server.heads
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with connected(server.url, KEY) as transport:
            assert (await transport.send("GET", "/models", timeout_s=5)).status == 200


def self_signed(folder: Path) -> Path:
    """Key and certificate for 127.0.0.1 in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    path = folder / "loopback.pem"
    path.write_bytes(pem)
    return path
