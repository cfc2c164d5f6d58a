"""The session as openenv-core's `Environment`, with upstream's frames but without a FastMCP round trip per call."""

from __future__ import annotations

import itertools
from types import TracebackType
from typing import Any

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
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from openenv.core.utils import run_async_safely

from finqa_plugins.environments.openenv_finqa.finqa_tools import TOOLS
from finqa_plugins.environments.openenv_finqa.server.server_episode import Episode, RefusedCallError, ToolService
from finqa_plugins.environments.openenv_finqa.server.server_options import ServerOptions
from finqa_plugins.environments.openenv_finqa.server.server_snapshot import SnapshotQuestion

LONGEST_EPISODE_ID = 255  # as in openenv-core's ResetRequest

_unseeded = itertools.count()


class FinQAServerEnvironment(Environment):  # type: ignore[misc]  # openenv-core ships no types
    """One per connection; the data behind it is shared."""

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
        """Begin an episode: `question_id` names its question, else `seed` draws one, from `split` when given.

        Raises:
            LookupError: There is no such question or split, or a value is of the wrong type.
        """
        if episode_id is not None and not (isinstance(episode_id, str) and len(episode_id) <= LONGEST_EPISODE_ID):
            raise LookupError(f"episode_id must be a text of at most {LONGEST_EPISODE_ID} characters")
        self._episode.reset(self._question(seed, options), episode_id)
        return Observation(done=False, reward=0.0)

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Observation:
        """Begin an episode; HTTPEnvServer prefers this method, and so needs no other thread."""
        return self.reset(seed, episode_id, **options)

    def step(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        """Carry out a tool call, for the stateless HTTP endpoint."""
        return run_async_safely(self.step_async(action))

    async def step_async(self, action: Action, timeout_s: float | None = None, **options: Any) -> Observation:
        """Carry out a tool call. A call that ends the episode is answered with the reward alone, as upstream."""
        if isinstance(action, ListToolsAction):
            return ListToolsObservation(
                tools=[Tool(name=t.name, description=t.description, input_schema=t.schema()) for t in TOOLS.values()]
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
        return CallToolObservation(tool_name=action.tool_name, result=tool_result(text))

    @property
    def state(self) -> State:
        """Return the redacted state."""
        return State(**self._episode.state())

    def get_metadata(self) -> EnvironmentMetadata:
        """Return what `/metadata` answers; options that make it another task are in the description."""
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
                raise LookupError(f"Unknown question_id {str(wanted)[:64]!r}")
            return questions[wanted]
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
            raise LookupError("seed must be an integer")
        split = options.get("split") or ""
        return self._service.snapshot.choose(str(split), f"unseeded {next(_unseeded)}" if seed is None else str(seed))


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
        return [_mcp_tool(name) for name in TOOLS]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return tool_result(await self._episode.call(name, arguments))


def _mcp_tool(name: str) -> dict[str, Any]:
    tool = TOOLS[name]
    output = {
        "properties": {"result": {"type": "string"}},
        "required": ["result"],
        "type": "object",
        "x-fastmcp-wrap-result": True,
    }
    return {
        "name": name,
        "title": None,
        "description": tool.description,
        "inputSchema": tool.schema(),
        "outputSchema": output,
        "icons": None,
        "annotations": None,
        "meta": {"fastmcp": {"tags": []}},
    }


def tool_result(text: str) -> dict[str, Any]:
    """Return FastMCP's `CallToolResult` of a tool that returns a string, as it reads on the wire."""
    return {
        "content": [{"type": "text", "text": text, "annotations": None, "meta": None}],
        "structured_content": {"result": text},
        "meta": {"fastmcp": {"wrap_result": True}},
        "data": text,
        "is_error": False,
    }


def _refused(tool: str, error: RefusedCallError, *, done: bool) -> CallToolObservation:
    reason = ToolError(error_type=ToolErrorType(error.kind), message=str(error))
    name = tool[:64].encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent back
    return CallToolObservation(tool_name=name, result=None, error=reason, done=done)
