"""`/mcp` for clients of the Model Context Protocol: its Streamable HTTP transport, revision 2025-06-18.

OpenEnv's own route calls tools of sessions that it names its own way, and knows no `initialize`. Here `initialize`
makes a session and begins an episode; its reply has the question as instructions. Later requests name the session in
the header `Mcp-Session-Id`. The query of the address selects the question as `reset` does: `task_id`, or `split` and
`index`, or `seed`. All other requests go to OpenEnv's route.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from finqa_plugins.environments.openenv_finqa.server.openenv_names import SessionCapacityError
from finqa_plugins.environments.openenv_finqa.server.server_episode import RefusedCallError
from finqa_plugins.environments.openenv_finqa.server.server_middlewares import Application, Event, Receive, Send
from finqa_plugins.environments.openenv_finqa.server.server_sessions import PeerSessions

REVISIONS = ("2025-06-18", "2025-03-26", "2024-11-05")
INVALID_PARAMS, SERVER_ERROR = -32602, -32000
_NUMBERS = ("seed", "index")


class McpEndpoint:
    """ASGI middleware that answers MCP's requests at `/mcp`, and passes all others on."""

    def __init__(self, application: Application, sessions: PeerSessions) -> None:
        self._application = application
        self._sessions = sessions

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] != "http" or scope["path"] != "/mcp" or scope["method"] not in ("POST", "DELETE"):
            await self._application(scope, receive, send)
            return
        named = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"mcp-session-id"), "")
        if scope["method"] == "DELETE":
            await self._end(named, send)
            return
        event = await receive()  # `BodyLimit` gives whole bodies
        request = _request(event.get("body", b""))
        if request is None or not (named or request.get("method") == "initialize"):
            replayed = [event]

            async def again() -> Event:
                return replayed.pop() if replayed else await receive()

            await self._application(scope, again, send)
        elif request.get("method") == "initialize":
            await self._initialize(scope, request, send)
        else:
            await self._answer(named, request, send)

    async def _initialize(self, scope: Event, request: dict[str, Any], send: Send) -> None:
        session_id = ""
        try:
            session_id, environment = await self._sessions._create_session()
            await environment.reset_async(**_selection(scope["query_string"]))
        except SessionCapacityError as error:
            await _reply(send, 200, _error(request, SERVER_ERROR, str(error)))
            return
        except (LookupError, ValueError) as error:
            await self._sessions._destroy_session(session_id)
            await _reply(send, 200, _error(request, INVALID_PARAMS, str(error.args[0])))
            return
        asked = (request.get("params") or {}).get("protocolVersion")
        state = environment.state.model_dump()
        result: dict[str, Any] = {
            "protocolVersion": asked if asked in REVISIONS else REVISIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": environment.get_metadata().name, "version": environment.get_metadata().version},
            "instructions": f"Answer this question about {state['current_company']} with the tools, and submit the "
            f"answer with submit_answer: {state['current_question']}",
        }
        await _reply(send, 200, _result(request, result), session_id)

    async def _answer(self, named: str, request: dict[str, Any], send: Send) -> None:
        environment = self._sessions._sessions.get(named)
        if environment is None:
            await _reply(send, 404, _error(request, INVALID_PARAMS, "Unknown session: initialize again."))
            return
        self._sessions._update_session_activity(named, increment_step=request.get("method") == "tools/call")
        if "id" not in request:  # a notification
            await _reply(send, 202, None)
            return
        method, params = request.get("method"), request.get("params")
        if method == "ping":
            await _reply(send, 200, _result(request, {}))
        elif method == "tools/list":
            tools = [
                {key: tool[key] for key in ("name", "description", "inputSchema")}
                for tool in await environment.mcp_client.list_tools()
            ]
            await _reply(send, 200, _result(request, {"tools": tools}))
        elif method == "tools/call" and isinstance(params, dict):
            await _reply(send, 200, _result(request, await _call(environment, params)))
        else:
            await _reply(send, 200, _error(request, -32601, "Unknown method."))

    async def _end(self, named: str, send: Send) -> None:
        known = self._sessions._sessions.get(named) is not None
        if known:
            await self._sessions._destroy_session(named)
        await _reply(send, 200 if known else 404, None)


async def _call(environment: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool; `_meta` has the reward of an answer that ended the episode."""
    name, arguments = params.get("name"), params.get("arguments") or {}
    failed = False
    try:
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RefusedCallError("invalid_args", "name must be a text, and arguments an object")
        text = (await environment.mcp_client.call_tool(name, arguments))["data"]
    except (RefusedCallError, RuntimeError) as error:
        text, failed = str(error), True
    state = environment.state.model_dump()
    verdict = {"_meta": {"done": True, "reward": state["reward"]}} if state["done"] and not failed else {}
    plain = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent back
    return {"content": [{"type": "text", "text": plain}], "isError": failed, **verdict}


def _request(body: bytes) -> dict[str, Any] | None:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return request if isinstance(request, dict) else None


def _selection(query: bytes) -> dict[str, Any]:
    """Return the arguments of the reset that an address names.

    Raises:
        ValueError: A number is none.
    """
    found: dict[str, Any] = dict(parse_qsl(query.decode("latin-1")))
    chosen = {key: value for key, value in found.items() if key in ("task_id", "split", *_NUMBERS)}
    for key in _NUMBERS:
        if key in chosen and not (chosen[key].isdecimal() and len(chosen[key]) < 10):
            raise ValueError(f"{key} must be a whole number")
    return {key: int(value) if key in _NUMBERS else value for key, value in chosen.items()}


def _result(request: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": _id(request), "result": result}


def _error(request: dict[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": _id(request), "error": {"code": code, "message": message[:300]}}


def _id(request: dict[str, Any]) -> str | int | None:
    """Return the id of a request in a form and length that may be echoed."""
    given = request.get("id")
    return given[:64] if isinstance(given, str) else given if isinstance(given, int) and abs(given) < 2**63 else None


async def _reply(send: Send, status: int, document: dict[str, Any] | None, session_id: str = "") -> None:
    body = b"" if document is None else json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if session_id:
        headers.append((b"mcp-session-id", session_id.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
