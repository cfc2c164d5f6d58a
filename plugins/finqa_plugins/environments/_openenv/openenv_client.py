"""Client of OpenEnv's wire protocol over one websocket. Needs `websockets`.

The protocol has no correlation ids: a reply belongs to the request before it. So calls are strictly serial, and a
socket whose reply did not arrive in time, or whose caller was cancelled, is dropped and never read again. An unexpected
frame ends the session as well, as does a reply of another kind or of another tool than requested. A duplicate reply
that arrives late may be taken for the next reply, and then shifts all replies that follow. The first request of another
kind then gets a reply of the wrong kind. So callers that must be sure that no reply was shifted request `state`.

This client asks servers with a queue for notices: `{"type": "queue", "data": {"waiting": true}}` before the
reply while the request waits there, and `"waiting": false` when its work begins. The time limit of the reply begins
again with each, and the episode's time does not count while the request waits.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException

from finqa_cli.contracts import uncounted
from finqa_cli.documents import parse_json
from finqa_cli.errors import EnvironmentFault, SandboxError
from finqa_cli.types import ToolSpec
from finqa_plugins.environments._openenv.server_facts import is_loopback
from finqa_plugins.environments._openenv.server_token import authorization, refusal

MAX_REPLY_BYTES = 2**20
MAX_REQUEST_BYTES = 2**18
REFUSALS = ("VALIDATION_ERROR", "INVALID_JSON")
"""Codes with which a server refuses the form of a request."""

FAILED_STEP = "EXECUTION_ERROR"
"""Code with which a server reports that the environment raised an exception."""

QUEUE_NOTICES = {"X-OpenEnv-Queue-Notices": "1"}
LONGEST_QUEUE_S = 1800.0
"""Seconds in the queue after which a request counts as lost: as long as a session may be idle."""

_NOTICE = '{"type": "queue"'
_ADDRESS = re.compile(r"\w+://\S+")
_SANDBOX_CODES = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"})


class RefusedRequestError(Exception):
    """The server, or this client in its place, did not accept the form of a request. The session continues."""


class NoFreeSessionError(SandboxError):
    """The server has no session free now."""


class _WithoutRedirects(connect):
    """A connection that follows no redirects: a token is for one server."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the error instead of following a redirect."""
        return exc


class OpenEnvClient:
    """One session. Every method but `close` raises SandboxError once the connection is lost."""

    def __init__(
        self,
        url: str,
        *,
        sandbox: str = "",
        token: str = "",
        connect_timeout_s: float = 30.0,
        reply_timeout_s: float = 60.0,
        tools: Collection[str] = (),
        refusals: Collection[str] = REFUSALS,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        """Store the options; nothing is sent yet.

        Args:
            url: Address of the server.
            sandbox: Id of the sandbox that the server runs in, if any. Errors name it then and not the address, which
                may contain a key to the sandbox in its host name (Daytona's signed preview URLs), its path or its
                query.
            token: Bearer token of a server that needs one; sent to the server of this address only.
            connect_timeout_s: Seconds for opening the connection.
            reply_timeout_s: Seconds for each reply.
            tools: Names of the server's tools, if known: a reply that names another tool than the call is an error.
            refusals: Codes of errors that refuse a request and leave the session as it was.
            max_reply_bytes: Bytes of one reply; a longer one ends the session.
        """
        self._url = websocket_url(url)
        self._sandbox = sandbox
        self._token = token
        self._connect_timeout_s = connect_timeout_s
        self._reply_timeout_s = reply_timeout_s
        self._tools = frozenset(tools)
        self._refusals = frozenset(refusals)
        self._max_reply_bytes = max_reply_bytes
        self._socket: ClientConnection | None = None
        self._serial = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """False before `connect`, after `close` and once a fault or a cancelled call has dropped the connection."""
        return self._socket is not None

    async def connect(self) -> None:
        """Open the session.

        Raises:
            SandboxError: The server cannot be reached or refuses the connection.
            AuthenticationError: A running server that is not in a sandbox needs a token, or another one.
        """
        connecting = _WithoutRedirects if self._token else connect
        try:
            self._socket = await connecting(
                self._url,
                additional_headers={**QUEUE_NOTICES, **authorization(self._token)},
                open_timeout=self._connect_timeout_s,
                close_timeout=1.0,
                max_size=self._max_reply_bytes,
                ping_interval=20.0,
                ping_timeout=None,  # keeps proxies awake; the reply timeout decides who is dead
                compression=None,
                proxy=None if is_loopback(self._url) else True,
            )
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403) and not self._sandbox:
                status, body = error.response.status_code, error.response.body
                raise refusal(status, bytes(body or b""), where=self._where(), token=self._token) from None
            raise SandboxError(
                f"Cannot connect to the environment server {self._where()}: {self._reason(error)}"
            ) from error

    async def reset(self, **options: object) -> dict[str, Any]:
        """Begin an episode and return the reply's `observation`, `reward` and `done`.

        Servers take the options that they know, such as `seed`; FinQA's `question_id` and `split`.

        Raises:
            EnvironmentFault: The server refuses, for instance because it does not know the question or lacks a key.
        """
        try:
            reply = await self._exchange({"type": "reset", "data": options}, "observation")
        except RefusedRequestError as error:
            raise EnvironmentFault(f"The environment server refused to reset: {error}") from error
        if reply.get("done"):
            # Environments that lack a key or a service end the episode here, with the reason in the observation.
            seen = _plain(json.dumps(reply.get("observation"), ensure_ascii=False), 300)
            raise EnvironmentFault(f"The environment server started an episode that is already over: {seen}")
        return reply

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool; return the reply's `observation`, `reward` and `done`.

        Raises:
            RefusedRequestError: The call cannot be sent or its form is refused; the session continues.
            EnvironmentFault: The reply breaks the protocol.
        """
        reply = await self.step({"type": "call_tool", "tool_name": name, "arguments": dict(arguments)})
        answered = reply["observation"].get("tool_name", name)
        if answered != name and (
            answered in self._tools or name in self._tools
        ):  # the name of an unknown tool may come back cut
            raise self._breach(f"a reply of {str(answered)[:40]!r} where one of {name[:40]!r} was due")
        return reply

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Take an action of the server's own type; return the reply's `observation`, `reward` and `done`.

        Raises:
            RefusedRequestError: The action cannot be sent or its form is refused; the session continues.
            EnvironmentFault: The reply breaks the protocol.
        """
        reply = await self._exchange({"type": "step", "data": dict(action)}, "observation")
        if not isinstance(reply.get("observation"), dict) or not isinstance(reply.get("done"), bool):
            raise self._breach("an observation with missing fields")
        return reply

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the tools as the server describes them (MCP `tools/list`); none where it has no MCP.

        Raises:
            EnvironmentFault: The reply breaks the protocol, or the list is empty.
        """
        request = {"jsonrpc": "2.0", "method": "tools/list", "id": 1}
        try:
            reply = await self._exchange({"type": "mcp", "data": request}, "mcp")
        except RefusedRequestError as error:
            raise EnvironmentFault(f"The environment server refused to list its tools: {error}") from error
        if "result" not in reply and "error" in reply:  # a server of typed actions: it has no MCP
            return ()
        try:
            tools = [_tool_spec(tool) for tool in reply["result"]["tools"]]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise self._breach("a list of tools with missing fields") from error
        if not tools:
            raise self._breach("an empty list of tools")
        return tools

    async def state(self) -> dict[str, Any]:
        """Return the server's view of the episode.

        Raises:
            EnvironmentFault: The reply breaks the protocol.
        """
        try:
            return await self._exchange({"type": "state"}, "state")
        except RefusedRequestError as error:
            raise EnvironmentFault(f"The environment server refused to return its state: {error}") from error

    async def close(self) -> None:
        """End the session. Idempotent, never raises."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        try:
            async with asyncio.timeout(2.0):
                await socket.close()
        except (OSError, TimeoutError, WebSocketException):
            socket.transport.abort()
        except asyncio.CancelledError:
            socket.transport.abort()
            raise

    async def _exchange(self, request: Mapping[str, object], expected: str) -> dict[str, Any]:
        text = _encoded(request)
        async with self._serial:
            if (frame := self._unread()) is not None:
                raise self._unexpected_error(frame)
            raw = await self._send_and_receive(text)
        kind, data = self._frame(raw)
        if kind == "error":
            raise self._server_error(data)
        if kind != expected:
            raise self._breach(f"{kind[:40]!r} where {expected!r} was due")
        return data

    def _frame(self, raw: str | bytes) -> tuple[str, dict[str, Any]]:
        try:
            reply = parse_json(raw)
            kind, data = reply["type"], reply["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._breach("a reply that is not a valid message") from error
        if not isinstance(data, dict):
            raise self._breach("a frame without data")
        return str(kind), data

    def _unread(self) -> str | bytes | None:
        """Return a frame that has arrived and was not read, or None. It does not wait."""
        receiving = self._receive()
        try:
            receiving.send(None)  # runs to its end when a frame is there, else to where it starts to wait
        except StopIteration as received:
            frame: str | bytes = received.value
            return frame
        receiving.close()
        return None

    async def _send_and_receive(self, text: str) -> str | bytes:
        clock = asyncio.get_running_loop().time
        last = clock() + LONGEST_QUEUE_S
        try:
            frame = await self._receive_in_time(text)
            while (waits := _queue_notice(frame)) is not None:
                if clock() > last:
                    self._drop()
                    raise SandboxError(f"The environment server kept a request in its queue for {LONGEST_QUEUE_S:g} s.")
                with uncounted.get()() if waits else nullcontext():
                    frame = await self._receive_in_time()
        except asyncio.CancelledError:
            self._drop()
            raise
        return frame

    async def _receive_in_time(self, request: str | None = None) -> str | bytes:
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                return await self._receive(request)
        except TimeoutError:
            # The reply may have arrived unread, if our own event loop was busy all the time.
            if (unread := self._unread()) is not None:
                return unread
        self._drop()
        raise SandboxError(f"The environment server did not reply within {self._reply_timeout_s:g} s.")

    async def _receive(self, request: str | None = None) -> str | bytes:
        socket = self._socket
        if socket is None:
            raise SandboxError("The connection to the environment server is closed.")
        try:
            if request is not None:
                await socket.send(request)
            return await socket.recv()
        except (OSError, WebSocketException) as error:
            self._drop()
            raise SandboxError(f"The connection to the environment server was lost: {self._reason(error)}") from error

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.transport.abort()
            self._socket = None

    def _where(self) -> str:
        return f"in sandbox {self._sandbox}" if self._sandbox else f"at {_shown(self._url)}"

    def _reason(self, error: Exception) -> str:
        """Describe an error without the address, which errors about redirects and certificates contain."""
        host = urlsplit(self._url).hostname
        if not self._sandbox or not host:
            return str(error)
        return _ADDRESS.sub("another address", str(error)).replace(host, "its address")

    def _breach(self, what: str) -> EnvironmentFault:
        self._drop()
        return EnvironmentFault(f"The environment server violated the protocol: {what}.")

    def _unexpected_error(self, raw: str | bytes) -> Exception:
        kind, data = self._frame(raw)
        if kind == "error" and data.get("code") in _SANDBOX_CODES:  # how a server without a free session reports it
            return self._server_error(data)
        return self._breach("an unexpected frame")

    def _server_error(self, data: Mapping[str, Any]) -> Exception:
        code, message = _plain(data.get("code", ""), 40), _plain(data.get("message", ""), 300)
        if code in self._refusals:
            return RefusedRequestError(f"{message}{_details(data.get('errors'))}")
        self._drop()
        if code in _SANDBOX_CODES:
            kind = NoFreeSessionError if code == "CAPACITY_REACHED" else SandboxError
            return kind(f"The environment server refused a session ({code}): {message}")
        return EnvironmentFault(f"The environment server failed ({code}): {message}")


def _queue_notice(frame: str | bytes) -> bool | None:
    """Whether the request waits in the server's queue, from a queue notice; None if the frame is another one."""
    if not isinstance(frame, str) or not frame.startswith(_NOTICE):
        return None
    with suppress(ValueError, LookupError, TypeError):
        waits = parse_json(frame)["data"]["waiting"]
        return waits if isinstance(waits, bool) else None
    return None


def _plain(text: object, longest: int) -> str:
    """Return the start of a server's text, as one line that cannot control a terminal."""
    return "".join(each if each.isprintable() else " " for each in str(text)[:longest])


def _details(errors: object) -> str:
    """The first errors of pydantic that a server lists, such as `: action: Input should be 'UP' or 'DOWN'`."""
    listed = [each for each in errors[:3] if isinstance(each, Mapping)] if isinstance(errors, list) else []
    shown = [
        _plain(f"{'.'.join(map(str, each.get('loc') or ()))}: {each.get('msg', '')}", 200)
        for each in listed
        if isinstance(each.get("loc") or (), list | tuple)
    ]
    return f": {'; '.join(shown)}" if shown else ""


def _tool_spec(tool: Mapping[str, Any]) -> ToolSpec:
    # camel case is MCP's, snake case what fastmcp 4 writes
    name, parameters = tool["name"], tool["inputSchema"] if "inputSchema" in tool else tool["input_schema"]
    description = tool.get("description") or ""
    if not (isinstance(name, str) and isinstance(description, str) and isinstance(parameters, dict)):
        raise ValueError("a field of another type")
    return ToolSpec(name=name, description=description, parameters=parameters)


def websocket_url(url: str) -> str:
    """Return `http://host/base?query` as `ws://host/base/ws?query`; https becomes wss."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + "/ws", parts.query, ""))


def _encoded(request: Mapping[str, object]) -> str:
    try:
        text = json.dumps(request)
    except (TypeError, ValueError, RecursionError):
        raise RefusedRequestError("The arguments cannot be written as JSON.") from None
    if len(text) > MAX_REQUEST_BYTES:
        raise RefusedRequestError(f"The arguments are longer than {MAX_REQUEST_BYTES} bytes.")
    return text


def _shown(url: str) -> str:
    """Return the address without its query: signed addresses carry a token there."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.hostname or "", parts.path, "", ""))
