"""What an OpenEnv server reports about itself over HTTP: `/metadata` and `/schema` (openenv-core 0.3)."""

from __future__ import annotations

import asyncio
import ipaddress
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from finqa_cli.documents import parse_json
from finqa_cli.errors import SandboxError
from finqa_plugins.environments._openenv.server_token import authorization, refusal

LOOK_S = 2.0
"""Seconds within which a running server must answer."""

MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A server's description of itself.

    Attributes:
        name: Name of the environment, such as `EchoEnvironment`; empty if the server does not report it.
        description: Its description of the environment.
        action: JSON schema of its actions; empty if it has none.
    """

    name: str = ""
    description: str = ""
    action: Mapping[str, Any] = field(default_factory=dict)


async def read_facts(url: str, *, sandbox: str = "", token: str = "", timeout_s: float = LOOK_S) -> ServerFacts:
    """Ask a server for its name and the form of its actions.

    Args:
        url: Address of the server.
        sandbox: Id of the sandbox that it runs in, if any. Errors name it: its address may contain a key.
        token: Bearer token of a server that needs one.
        timeout_s: Seconds for each of the two replies.

    Raises:
        SandboxError: The server does not answer in time, is not an OpenEnv server, or refuses the connection.
        AuthenticationError: A running server that is not in a sandbox needs a token, or another one.
    """
    where = f"in sandbox {sandbox}" if sandbox else f"at {url.partition('?')[0]}"
    try:
        metadata, schema = await asyncio.gather(
            *(_get(url, path, where, token, timeout_s) for path in ("metadata", "schema"))
        )
    except urllib.error.HTTPError as error:
        if sandbox:  # its address may have expired; the session's connection will show it
            return ServerFacts()
        raise refusal(error.code, error.read(MAX_BYTES), where=where, token=token) from None
    action = schema.get("action")
    name, description = str(metadata.get("name") or ""), str(metadata.get("description") or "")
    if description == f"{name} environment":  # the default of openenv-core for an environment without one
        description = ""
    return ServerFacts(name=name, description=description, action=action if isinstance(action, dict) else {})


def http_url(url: str, path: str) -> str:
    """Return `scheme://host/base?query` with a path below the base."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    return urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", parts.query, ""))


def is_loopback(url: str) -> bool:
    """Return whether an address is one of this machine, which a proxy of the environment must not see."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_url(request: urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """Send a request, through the proxy that the environment names unless the server is on this machine.

    Raises:
        URLError: The server cannot be reached, or answers with an error (HTTPError).
    """
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(request.full_url) else []
    reply: HTTPResponse = urllib.request.build_opener(*proxies).open(request, timeout=timeout_s)
    return reply


async def _get(url: str, path: str, where: str, token: str, timeout_s: float) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(timeout_s + 0.5):
            return await asyncio.to_thread(_read, http_url(url, path), token, timeout_s)
    except (TimeoutError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
            raise
        if isinstance(error, urllib.error.HTTPError):
            return {}  # it answers and describes nothing, like servers of older versions
        late = isinstance(error, TimeoutError) or isinstance(reason, TimeoutError)
        what = f"does not answer within {timeout_s:g} s" if late else f"cannot be reached: {reason}"
        raise SandboxError(f"The server {where} {what}.", remedy="start it, or correct its address") from None
    except (OSError, ValueError, HTTPException, RecursionError) as error:
        raise SandboxError(
            f"The server {where} is not an OpenEnv server: /{path} gave {type(error).__name__}.",
            remedy="correct the address",
        ) from None


def _read(address: str, token: str, timeout_s: float) -> Mapping[str, Any]:
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"{address} is no address")
    request = urllib.request.Request(address)
    for name, value in authorization(token).items():
        request.add_unredirected_header(name, value)  # a token is for one server
    with open_url(request, timeout_s) as reply:
        document = parse_json(reply.read(MAX_BYTES))
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    return document
