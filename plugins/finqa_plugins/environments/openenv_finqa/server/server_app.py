"""The ASGI application: openenv-core's server around our environment, with corrections.

- `FinQAServerEnvironment`: a session as openenv-core's `Environment`, with the frames of OpenEnv's own FinQA server,
  but without a FastMCP round trip per call.
- `QuietWebSockets`: a malformed frame gets a short error, and a client that disconnects causes no traceback.
- `JoinableSessions`: a websocket can join a session, which clients of openenv 0.10 need. Such a client makes a session
  by `openenv/session/create` on `/mcp`, joins it by `/ws?session_id=` for reset, step and state, and calls tools on
  `/mcp`. openenv-core 0.3.0 ignores the query, so reset and tools would be in two sessions.
- Bad HTTP requests get a short reply with status 4xx, and cause no traceback in the server's log.

Access control is around all of this: see `server_middlewares`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType, TracebackType
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from finqa_plugins.environments.openenv_finqa.finqa_tools import ServedTool
from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.queue_notices import FIRST_NOTICE_S, QueueNotices
from finqa_plugins.environments.openenv_finqa.server.server_episode import (
    Episode,
    RefusedCallError,
    ServerOptions,
    ToolService,
)
from finqa_plugins.environments.openenv_finqa.server.server_limits import ServerLimits, peer_of
from finqa_plugins.environments.openenv_finqa.server.server_middlewares import (
    Application,
    Event,
    Receive,
    Send,
    guard,
    wanted_session,
)
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotQuestion


class _EmptyNames(ModuleType):
    """A module in which every public name is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return type(name, (), {})


@contextlib.contextmanager
def _unused_libraries() -> Iterator[None]:
    """Keep openenv-core from importing libraries that take seconds and that this server never uses.

    gradio is for its web interface, and openenv-core works without it. fastmcp is for environments that contain an MCP
    server, which ours does not: openenv-core only needs the names that it imports.
    """
    names = ("fastmcp", "fastmcp.client", "fastmcp.client.client", "mcp", "mcp.types")
    substitutes: dict[str, ModuleType | None] = {name: _EmptyNames(name) for name in names if name not in sys.modules}
    if "gradio" not in sys.modules:
        substitutes["gradio"] = None  # with None, importing the module fails
    sys.modules.update(substitutes)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in substitutes:
            sys.modules.pop(name, None)


os.environ["ENABLE_WEB_INTERFACE"] = "false"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
with _unused_libraries():
    from openenv.core.env_server.exceptions import SessionCapacityError
    from openenv.core.env_server.http_server import HTTPEnvServer
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.mcp_types import (
        CallToolAction,
        CallToolObservation,
        ListToolsAction,
        ListToolsObservation,
        Tool,
        ToolError,
        ToolErrorType,
    )
    from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
    from openenv.core.utils import run_async_safely

LONGEST_EPISODE_ID = 255  # as in openenv-core's ResetRequest
MAX_SESSIONS = 4096
LONGEST_MESSAGE = 300
MAX_PROBLEMS = 5
LONGEST_ECHO = 64
MAX_DEPTH = 64
LONGEST_ERROR = 2048
_NOT_JSON = "{"  # HTTPEnvServer replies INVALID_JSON to this and keeps the session
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_wanted: ContextVar[str] = ContextVar("_wanted", default="")
_peer: ContextVar[str] = ContextVar("_peer", default="")
_unseeded = itertools.count()


def build_app(service: ToolService, options: ServerOptions, limits: ServerLimits, peers: Peers) -> Application:
    """Build an application that serves `/ws`, `/health`, `/metadata`, `/schema` and `/mcp`; no web interface.

    Args:
        service: The data and its tools.
        options: Options of the sessions.
        limits: Who may send requests, and how many.
        peers: Counts of each peer, shared with the protocols of the server.
    """
    app = FastAPI(title="finqa_env", version="1.0.0")
    server = JoinableSessions(
        functools.partial(FinQAServerEnvironment, service, options),
        CallToolAction,
        CallToolObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=MAX_SESSIONS, session_timeout=options.session_timeout_s
        ),
        per_peer=limits.sessions_per_peer,
    )
    server.register_routes(app)
    answer_bad_requests(app)
    return guard(QuietWebSockets(QueueNotices(SessionOrigin(app))), limits, peers)


class QuietWebSockets:
    """ASGI middleware that corrects how openenv-core handles websockets.

    openenv-core 0.3.0 ends the session on a frame that is valid JSON but not an object, on binary frames, and on JSON
    that it cannot echo (nested too deeply, or with half a surrogate pair). It echoes wrong input of any size, and
    raises an exception when the peer is gone.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] != "websocket":
            await self._application(scope, receive, send)
            return
        gone = False

        async def receive_object() -> Event:
            nonlocal gone
            event = await receive()
            if event["type"] == "websocket.disconnect":
                gone = True
            elif event["type"] == "websocket.receive":
                return {"type": "websocket.receive", "text": _readable(event.get("text"))}
            return event

        async def send_unless_gone(event: Event) -> None:
            nonlocal gone
            if gone:
                return
            if event["type"] == "websocket.send":
                event = {**event, "text": _brief(event["text"])}
            try:
                await send(event)
            except (OSError, RuntimeError):  # the peer disconnected while we replied; `receive` will report it
                gone = True

        await self._application(scope, receive_object, send_unless_gone)


def _readable(text: str | None) -> str:
    """Return the frame in a form that openenv-core can read and echo."""
    try:
        frame = json.loads(text or "")
    except (ValueError, RecursionError):
        return _NOT_JSON
    if text is None or not isinstance(frame, dict):
        return _NOT_JSON
    if text.count("{") + text.count("[") > MAX_DEPTH and not _shallow(frame, MAX_DEPTH):
        return _NOT_JSON
    if _SURROGATE.search(text):
        return json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text


def _shallow(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(item, levels - 1) for item in inner)


def _brief(text: str) -> str:
    """Return an error frame without the echo of wrong input; any other frame unchanged."""
    if len(text) <= LONGEST_ERROR or text.startswith('{"type":"observation"'):
        return text
    frame = json.loads(text)
    if frame.get("type") == "error":
        error = {key: str(frame["data"].get(key))[:LONGEST_MESSAGE] for key in ("message", "code")}
        return json.dumps({"type": "error", "data": error})
    reply = frame["data"] if frame.get("type") == "mcp" else frame
    if "error" not in reply and len(str(reply.get("id"))) <= LONGEST_MESSAGE:
        return text
    if "error" in reply:
        reply["error"] = {**reply["error"], "message": str(reply["error"].get("message"))[:LONGEST_MESSAGE]}
    if isinstance(reply.get("id"), str):
        reply["id"] = reply["id"][:LONGEST_MESSAGE]
    return json.dumps(frame)


class JoinableSessions(HTTPEnvServer):  # type: ignore[misc]  # openenv-core ships no types
    """openenv-core's server, with sessions that a websocket can join.

    A joined session outlives the websocket: its client closes it, or it expires. One peer may have at most `per_peer`
    sessions; more are refused with the error of a full server.
    """

    def __init__(self, *arguments: Any, per_peer: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._per_peer = per_peer
        self._joined: set[str] = set()
        self._peers: dict[str, str] = {}
        self._made: Counter[str] = Counter()

    async def _create_session(self) -> tuple[str, Any]:
        wanted = _wanted.get()
        if not wanted:
            return await self._create_for_peer(_peer.get())
        async with self._session_lock:
            environment = self._sessions.get(wanted)
            if environment is None:
                raise LookupError(f"Unknown session_id: {wanted[:LONGEST_ECHO]}")
            if wanted in self._joined:
                raise RuntimeError(f"Session {wanted} has a websocket already")
            self._joined.add(wanted)
        self._update_session_activity(wanted)
        return wanted, environment

    async def _create_for_peer(self, peer: str) -> tuple[str, Any]:
        if self._made[peer] >= self._per_peer or len(self._peers) >= 2 * MAX_SESSIONS:
            self._forget_ended()
        if self._made[peer] >= self._per_peer:
            message = f"This peer has {self._per_peer} sessions, as many as it may have."
            raise SessionCapacityError(self._made[peer], self._per_peer, message)
        self._made[peer] += 1
        try:
            session_id, environment = await super()._create_session()
        except BaseException:
            self._made[peer] -= 1
            raise
        self._peers[session_id] = peer
        return session_id, environment

    async def _destroy_session(self, session_id: str) -> None:
        self._joined.discard(session_id)
        if _wanted.get() != session_id:
            await super()._destroy_session(session_id)
            self._release(session_id)

    def _release(self, session_id: str) -> None:
        peer = self._peers.pop(session_id, None)
        if peer is not None:
            self._made[peer] -= 1
            if not self._made[peer]:
                del self._made[peer]

    def _forget_ended(self) -> None:
        """Release sessions that a client has closed on `/mcp`, which openenv-core does not report."""
        for session_id in [each for each in self._peers if each not in self._sessions]:
            self._release(session_id)


class SessionOrigin:
    """ASGI middleware that stores the peer, and the session that its websocket wants to join, for the server."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one connection or request."""
        if scope["type"] in ("http", "websocket"):
            _peer.set(peer_of(scope.get("client")))
            _wanted.set(wanted_session(scope) if scope["type"] == "websocket" else "")
        await self._application(scope, receive, send)


def answer_bad_requests(app: FastAPI) -> None:
    """Register handlers of errors, because openenv-core 0.3.0 echoes any input and fails on what it cannot echo."""

    def refuse(_request: Request, error: Exception) -> JSONResponse:
        if isinstance(error, RequestValidationError):
            return _reply(422, error.errors())
        if isinstance(error, HTTPException):
            return _reply(error.status_code, error.detail)
        return _reply(400, str(error))

    for kind in (RequestValidationError, HTTPException, LookupError, ValueError, TypeError, RuntimeError):
        app.add_exception_handler(kind, refuse)


def _reply(status: int, detail: Any) -> JSONResponse:
    if isinstance(detail, list):
        shown: Any = [_problem(problem) for problem in detail[:MAX_PROBLEMS]]
    else:
        shown = _text(detail)
    return JSONResponse({"detail": shown}, status_code=status)


def _problem(problem: dict[str, Any]) -> dict[str, Any]:
    loc = [_text(part) for part in problem.get("loc", ())]
    return {"type": _text(problem.get("type", "")), "loc": loc, "msg": _text(problem.get("msg", ""))}


def _text(value: object) -> str:
    return str(value)[:LONGEST_MESSAGE].encode("utf-8", "replace").decode()


class FinQAServerEnvironment(Environment):  # type: ignore[misc]  # openenv-core ships no types
    """The environment of one session; all sessions share the data."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    # Makes HTTPEnvServer share one thread among all sessions instead of starting one each.
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self, service: ToolService, options: ServerOptions) -> None:
        super().__init__()
        self._service = service
        self._options = options
        self._episode = Episode(service, options)
        self.mcp_client = _McpClient(self._episode)
        self.mcp_server = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode: `question_id` names its question, else `seed` selects one, from `split` if given.

        Raises:
            LookupError: There is no such question or split, or a value is of the wrong type.
        """
        if episode_id is not None and not (isinstance(episode_id, str) and len(episode_id) <= LONGEST_EPISODE_ID):
            raise LookupError(f"episode_id must be a text of at most {LONGEST_EPISODE_ID} characters")
        self._episode.reset(self._question(seed, options), episode_id)
        return Observation(done=False, reward=0.0)

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode; HTTPEnvServer prefers this method, which needs no other thread."""
        return self.reset(seed, episode_id, **options)

    def step(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        """Execute a tool call, for the stateless HTTP endpoint."""
        return run_async_safely(self.step_async(action))

    async def step_async(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        """Execute a tool call. The reply that ends the episode has only the reward, as in OpenEnv's server."""
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(
                tools=[
                    Tool(name=tool.name, description=tool.description, input_schema=tool.schema())
                    for tool in self._episode.tools.values()
                ]
            )
        if not isinstance(action, CallToolAction):
            raise TypeError(f"Unknown action type: {type(action).__name__}")
        was_over = self._episode.verdict is not None
        try:
            text = await self._episode.call(action.tool_name, action.arguments)
        except RefusedCallError as error:
            if was_over or self._episode.verdict is None:
                return _refused(action.tool_name, error, done=was_over)
            text = ""
        if (verdict := self._episode.verdict) is not None:
            return Observation(done=True, reward=verdict.reward)
        return CallToolObservation(tool_name=action.tool_name, result=tool_result(text, self._episode.queued_s))

    @property
    def state(self) -> State:
        """Return the state without the truth."""
        return State(**self._episode.state())

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the document of `/metadata`; its description lists options that change the task."""
        options = self._options.described()
        description = "Financial questions over tables, with SQL tools" + (f" ({options})" if options else "")
        return EnvironmentMetadata(name="finqa_env", description=description, version="1.0.0")

    def close(self) -> None:
        """Refuse every later call; called on disconnect and when an idle session expires."""
        self._episode.expire()

    def _question(self, seed: int | None, options: dict[str, Any]) -> SnapshotQuestion:
        questions = self._service.snapshot.questions
        wanted = options.get("question_id")
        if wanted is not None:
            if not isinstance(wanted, str) or wanted not in questions:
                raise LookupError(f"Unknown question_id {_echo(wanted)}")
            return questions[wanted]
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise LookupError("seed must be an integer")
        split = options.get("split") or ""
        if not isinstance(split, str):
            raise LookupError(f"Unknown split {_echo(split)}")
        return self._service.snapshot.choose(split, f"unseeded {next(_unseeded)}" if seed is None else str(seed))


def _echo(value: object) -> str:
    """Return a value of a request for an error message: only texts are shown, and they are cut first."""
    return repr(value[:LONGEST_ECHO]) if isinstance(value, str) else f"of type {type(value).__name__}"


class _McpClient:
    """The interface of a FastMCP client that HTTPEnvServer uses for `/mcp` and `mcp` frames."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode

    def is_connected(self) -> bool:
        return True

    async def __aenter__(self) -> _McpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def list_tools(self) -> list[dict[str, Any]]:
        return [_mcp_tool(tool) for tool in self._episode.tools.values()]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        text = await self._episode.call(name, arguments)
        return tool_result(text, self._episode.queued_s)


def _mcp_tool(tool: ServedTool) -> dict[str, Any]:
    output = {
        "properties": {"result": {"type": "string"}},
        "required": ["result"],
        "type": "object",
        "x-fastmcp-wrap-result": True,
    }
    return {
        "name": tool.name,
        "title": None,
        "description": tool.description,
        "inputSchema": tool.schema(),
        "outputSchema": output,
        "icons": None,
        "annotations": None,
        "meta": {"fastmcp": {"tags": []}},
    }


def tool_result(text: str, queued_s: float = 0.0) -> dict[str, Any]:
    """Return FastMCP's `CallToolResult` of a tool that returns a string, as it is sent.

    If the call waited in a queue, `meta` also contains the seconds.
    """
    waited = {"finqa": {"queued_s": round(queued_s, 3)}} if queued_s >= FIRST_NOTICE_S else {}
    return {
        "content": [{"type": "text", "text": text, "annotations": None, "meta": None}],
        "structured_content": {"result": text},
        "meta": {"fastmcp": {"wrap_result": True}, **waited},
        "data": text,
        "is_error": False,
    }


def _refused(tool: str, error: RefusedCallError, *, done: bool) -> CallToolObservation:
    reason = ToolError(error_type=ToolErrorType(error.kind), message=str(error))
    name = tool[:64].encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent back
    return CallToolObservation(tool_name=name, result=None, error=reason, done=done)
