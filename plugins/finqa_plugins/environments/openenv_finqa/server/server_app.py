"""The ASGI application: OpenEnv's server around our environment, with corrections.

- `FinQAServerEnvironment`: a session as OpenEnv's `Environment`, with the frames of OpenEnv's own FinQA server,
  but without a FastMCP round trip per call.
- `QuietWebSockets`: a malformed frame gets a short error, and a client that disconnects causes no traceback.
- `server_sessions`: sessions are limited for each peer, and with openenv-core 0.3 a websocket can join one.
- Bad HTTP requests get a short reply with status 4xx, and cause no traceback in the server's log.

Access control is around all of this: see `server_middlewares`.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from finqa_plugins.environments.openenv_finqa.finqa_tools import ServedTool
from finqa_plugins.environments.openenv_finqa.server.mcp_endpoint import McpEndpoint
from finqa_plugins.environments.openenv_finqa.server.openenv_names import (
    HAS_TASKS,
    Action,
    CallToolAction,
    CallToolObservation,
    ConcurrencyConfig,
    Environment,
    EnvironmentMetadata,
    ListToolsAction,
    ListToolsObservation,
    Observation,
    State,
    Tool,
    ToolError,
    ToolErrorType,
    run_async_safely,
)
from finqa_plugins.environments.openenv_finqa.server.peers import Peers
from finqa_plugins.environments.openenv_finqa.server.queue_notices import FIRST_NOTICE_S, QueueNotices
from finqa_plugins.environments.openenv_finqa.server.server_episode import (
    Episode,
    RefusedCallError,
    ServerOptions,
    ToolService,
)
from finqa_plugins.environments.openenv_finqa.server.server_limits import ServerLimits
from finqa_plugins.environments.openenv_finqa.server.server_middlewares import (
    Application,
    Event,
    Receive,
    Send,
    guard,
)
from finqa_plugins.environments.openenv_finqa.server.server_sessions import (
    LONGEST_ECHO,
    MAX_SESSIONS,
    SESSIONS,
    SessionOrigin,
)
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotQuestion

NAME = "finqa_env"
MOST_TASKS = 1000
"""Tasks in one reply of the Task API, whose JSON is made on the event loop that all sessions share."""

LONGEST_EPISODE_ID = 255  # as in OpenEnv's ResetRequest
LONGEST_MESSAGE = 300
MAX_PROBLEMS = 5
MAX_DEPTH = 64
LONGEST_ERROR = 2048
_NOT_JSON = "{"  # HTTPEnvServer replies INVALID_JSON to this and keeps the session
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_unseeded = itertools.count()


def build_app(service: ToolService, options: ServerOptions, limits: ServerLimits, peers: Peers) -> Application:
    """Build an application that serves `/ws`, `/health`, `/metadata`, `/schema` and `/mcp`; no web interface.

    Args:
        service: The data and its tools.
        options: Options of the sessions.
        limits: Who may send requests, and how many.
        peers: Counts of each peer, shared with the protocols of the server.
    """
    app = FastAPI(title=NAME, version="1.0.0")
    server = SESSIONS(
        functools.partial(FinQAServerEnvironment, service, options),
        CallToolAction,
        CallToolObservation,
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=MAX_SESSIONS, session_timeout=options.session_timeout_s
        ),
        per_peer=limits.sessions_per_peer,
        **({"env_name": NAME} if HAS_TASKS else {}),
    )
    server.register_routes(app)
    answer_bad_requests(app)
    return guard(QuietWebSockets(QueueNotices(SessionOrigin(McpEndpoint(app, server)))), limits, peers)


class QuietWebSockets:
    """ASGI middleware that corrects how OpenEnv handles websockets.

    OpenEnv (0.3 and 0.10) ends the session on a frame that is valid JSON but not an object, on binary frames, and on
    JSON that it cannot echo (nested too deeply, or with half a surrogate pair). It echoes wrong input of any size, and
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
    """Return the frame in a form that OpenEnv can read and echo."""
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


def answer_bad_requests(app: FastAPI) -> None:
    """Register handlers of errors, because OpenEnv echoes any input and fails on what it cannot echo."""

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


class FinQAServerEnvironment(Environment):  # type: ignore[misc]  # OpenEnv ships no types
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
        """Begin an episode.

        `task_id` or `question_id` names its question, or `split` and `index` as the Task API counts; else `seed`
        selects one, from `split` if given.

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
        return EnvironmentMetadata(name=NAME, description=description, version="1.0.0")

    def close(self) -> None:
        """Refuse every later call; called on disconnect and when an idle session expires."""
        self._episode.expire()

    def list_splits(self) -> list[dict[str, str]]:
        """Return the splits; the type of one that is none of the standard three is `validation`."""
        types = {"train": "train", "test": "test"}
        return [{"name": name, "type": types.get(name, "validation")} for name in self._splits]

    def num_tasks(self, split: str) -> int:
        """Return the number of questions in a split.

        Raises:
            LookupError: There is no such split.
        """
        return len(self._of(split))

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Return the first `MOST_TASKS` questions of a split, as `get_task` describes them.

        Raises:
            LookupError: There is no such split.
        """
        return [_described(index, question) for index, question in enumerate(self._of(split)[:MOST_TASKS])]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Return what a client may know of a question: `reset` begins an episode of it by `id`, or split and index.

        Raises:
            LookupError: There is no such split or question.
        """
        return _described(index, self._at(split, index))

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Return the questions from `start` up to and without `stop`; None: from the first, to the last.

        Raises:
            LookupError: There is no such split.
            ValueError: The range is longer than `MOST_TASKS`.
        """
        chosen = range(len(self._of(split)))[start:stop]
        if len(chosen) > MOST_TASKS:
            raise ValueError(f"A range has at most {MOST_TASKS} tasks, not {len(chosen)}; ask for several ranges.")
        return [_described(index, self._at(split, index)) for index in chosen]

    @property
    def _splits(self) -> Mapping[str, Sequence[SnapshotQuestion]]:
        return self._service.snapshot.splits

    def _of(self, split: object) -> Sequence[SnapshotQuestion]:
        if not isinstance(split, str) or split not in self._splits:
            raise LookupError(f"Unknown split {_echo(split)}")
        return self._splits[split]

    def _at(self, split: object, index: object) -> SnapshotQuestion:
        questions = self._of(split)
        if not isinstance(index, int) or isinstance(index, bool):
            raise LookupError("index must be an integer")
        if not 0 <= index < len(questions):
            raise IndexError(f"Split {_echo(split)} has the tasks 0 to {len(questions) - 1}")
        return questions[index]

    def _question(self, seed: int | None, options: dict[str, Any]) -> SnapshotQuestion:
        split, index = options.get("split") or "", options.get("index")
        named = [self._named(options[key], key) for key in ("task_id", "question_id") if options.get(key) is not None]
        if index is not None:
            named.append(self._at(split, index))
        if len({question.id for question in named}) > 1:
            raise LookupError("task_id, question_id, split and index name different questions")
        if named:
            return named[0]
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise LookupError("seed must be an integer")
        if not isinstance(split, str):
            raise LookupError(f"Unknown split {_echo(split)}")
        return self._service.snapshot.choose(split, f"unseeded {next(_unseeded)}" if seed is None else str(seed))

    def _named(self, wanted: object, key: str) -> SnapshotQuestion:
        questions = self._service.snapshot.questions
        if not isinstance(wanted, str) or wanted not in questions:
            raise LookupError(f"Unknown {key} {_echo(wanted)}")
        return questions[wanted]


def _described(index: int, question: SnapshotQuestion) -> dict[str, Any]:
    """Return the public facts of a question, never its answer."""
    facts = {"id": question.id, "index": index, "question": question.user_query, "company": question.company}
    return facts | ({"type": question.kind} if question.kind else {})


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
