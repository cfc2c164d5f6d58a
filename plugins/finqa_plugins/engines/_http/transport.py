"""One HTTP request to the server and its whole reply, with time and size limits; the key never appears in a result."""

from __future__ import annotations

import asyncio
import os
import ssl
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import certifi
from pydantic import SecretStr

from finqa_cli.errors import ConfigError
from finqa_plugins.engines._http.config import LOOPBACK, ServerConfig
from finqa_plugins.engines._http.json_documents import BadReplyError, parse_document
from finqa_plugins.engines._http.refusals import Refusal, one_line, read_refusal

ACCEPTED = "gzip"
"""Value of Accept-Encoding. With other encodings a few bytes could expand beyond any limit in one step."""

_GZIP = 16 + zlib.MAX_WBITS


class BadBodyError(Exception):
    """A reply is too long, or compressed in a way that was not requested; the message states which."""


class Body:
    """The body of one reply; `data` contains the decompressed bytes that have arrived."""

    def __init__(self, encoding: str, limit: int) -> None:
        """`encoding` is the reply's Content-Encoding, `limit` the largest size after decompression, in bytes.

        Raises:
            BadBodyError: The encoding is neither identity nor `ACCEPTED`.
        """
        packing = encoding.strip().lower().removeprefix("x-")
        if packing not in ("", "identity", ACCEPTED):
            raise BadBodyError(f"the reply is compressed as {packing[:40]!r}, which was not requested")
        self._unpack = zlib.decompressobj(_GZIP) if packing == ACCEPTED else None
        self._limit = limit
        self.data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Adds a chunk as it was received.

        Raises:
            BadBodyError: The body exceeds the limit, or is not gzip.
        """
        if self._unpack is None:
            self.data += chunk
        else:
            try:
                self.data += self._unpack.decompress(chunk, self._limit + 1 - len(self.data))
            except zlib.error as error:
                raise BadBodyError(f"the reply cannot be decompressed ({error})") from error
        if len(self.data) > self._limit:
            raise BadBodyError(f"the reply is longer than {self._limit} bytes")


LARGEST_REPLY = 16 * 2**20
"""Largest reply in bytes; a server that sends more is broken."""

KEEP_ALIVE_S = 4.0
"""Seconds after which an idle connection is not used again: uvicorn, and so vLLM, closes them after 5."""

SHORTEST_KEY = 8
"""Characters of the shortest key that is masked in replies. Servers without keys often get one such as `EMPTY`."""


class PassingError(Exception):
    """One try failed, but another may succeed.

    Attributes:
        reason: What happened.
        limited: Whether a rate limit was exceeded.
        wait_s: Seconds that the server asks to wait; None if it does not.
    """

    def __init__(self, reason: str, *, limited: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.limited = limited
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of any status; `data` is its body, in which the key is masked."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def text(self) -> str:
        """The first 4000 bytes of the body as text."""
        return self.data[:4000].decode("utf-8", errors="replace")

    def document(self) -> Mapping[str, Any] | None:
        """The body as a JSON object; None if it is none."""
        try:
            return parse_document(self.data)
        except BadReplyError:
            return None


class Transport:
    """The connections to one server, opened on demand in the event loop that runs then.

    `proxied`: use the proxy of the environment. It is False for servers that finqa starts.

    Raises:
        ConfigError: The proxy of the environment is of a kind that is not supported.
    """

    def __init__(self, config: ServerConfig, key: SecretStr | None, *, proxied: bool = True) -> None:
        self._base = config.base_url
        self._connect_timeout_s = config.connect_timeout_s
        self._key = key.get_secret_value().encode() if key else b""
        self._headers = {"Accept-Encoding": ACCEPTED, **config.extra_headers}
        if key is not None:
            self._headers |= config.key_headers(key.get_secret_value())
        # A proxy of the environment does not see the servers of this machine. aiohttp's own `trust_env` would look the
        # proxy up in a thread for each request, and send a password of ~/.netrc.
        self._proxy = find_proxy(config.base_url) if proxied and config.host not in LOOPBACK else None
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        timeout_s: float,
        query: Mapping[str, str] | None = None,
        root: bool = False,
    ) -> Answer:
        """Sends one request.

        Args:
            method: GET or POST.
            path: Path below the address of the API.
            content: JSON document; None sends no body.
            timeout_s: Seconds for connection, request and reply together.
            query: Parameters of the address.
            root: The path is beside `/v1`, not below it.

        Raises:
            PassingError: No complete reply came.
        """
        url = (self._base.removesuffix("/v1") if root else self._base) + path
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(method, url, content, query)
        except BadBodyError as error:
            raise PassingError(str(error)) from error
        except aiohttp.ConnectionTimeoutError:
            raise PassingError(f"no connection within {self._connect_timeout_s:g} s") from None
        except TimeoutError:
            raise PassingError(f"no complete reply within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            said = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
            said = self._without_key(said.encode(errors="replace")).decode()
            raise PassingError(one_line(said) or type(error).__name__) from error

    def refusal(self, answer: Answer) -> Refusal:
        """The message of the server in an answer that is not a completion."""
        refusal = read_refusal(answer.status, answer.headers, answer.text, answer.document())
        return replace(refusal, text=self._without_key(refusal.text.encode()).decode())

    async def close(self) -> None:
        """Closes the connections. Idempotent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _exchange(self, method: str, url: str, content: bytes | None, query: Mapping[str, str] | None) -> Answer:
        """Sends the request and reads the reply.

        A server may close an idle connection at the moment it is reused (RFC 9112, 9.3.1). So if a connection ends
        before the reply begins, the request is sent a second time, on another connection.
        """
        headers = self._headers if content is None else {**self._headers, "Content-Type": "application/json"}
        for last in (False, True):
            try:
                async with self._opened().request(
                    method, url, data=content, headers=headers, params=query, proxy=self._proxy, allow_redirects=False
                ) as response:
                    body = Body(response.headers.get("Content-Encoding", ""), LARGEST_REPLY)
                    async for chunk in response.content.iter_any():
                        body.add(chunk)
                    # before anything is cut: a key that is cut in two would not be found
                    return Answer(response.status, response.headers, self._without_key(bytes(body.data)))
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                if last:
                    raise
        raise AssertionError("the second try returns or raises")

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise aiohttp.ClientConnectionError("the connections were closed")
        if self._session is None:
            secure = urlsplit(self._base).scheme == "https"
            self._session = aiohttp.ClientSession(
                # no limit of its own: `Gate` limits completions, and health and control calls must not wait for them
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=_certificates() if secure else True
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),  # `send` limits all
                auto_decompress=False,  # `Body` decompresses, up to a limit
                skip_auto_headers=("Content-Type",),
            )
        return self._session

    def _without_key(self, data: bytes) -> bytes:
        """`data` with the key masked: some servers repeat it."""
        return data.replace(self._key, b"**********") if len(self._key) >= SHORTEST_KEY else data


def find_proxy(url: str) -> str | None:
    """The proxy that the environment names for an address: HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, and NO_PROXY.

    Raises:
        ConfigError: The proxy is not an HTTP proxy.
    """
    parts, proxies = urlsplit(url), urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return None
    scheme, _, place = proxy.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ConfigError(
            f"The environment variables set a {scheme} proxy for {url}, but only HTTP proxies are supported.",
            remedy=f"export NO_PROXY={parts.hostname}, or {parts.scheme.upper()}_PROXY=http://...",
        )
    return f"{scheme or 'http'}://{place}"


def _certificates() -> ssl.SSLContext:
    """Trusts the authorities of SSL_CERT_FILE or SSL_CERT_DIR where they are set, else those of certifi."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=file or (None if folder else certifi.where()), capath=folder)
