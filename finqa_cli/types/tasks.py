"""Tasks, messages, tool calls, observations and rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
"""Role of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question. Only the environment that grades it has the right answer.

    Attributes:
        id: Stable, unique inside its data set.
        prompt: The question as the agent reads it.
        split: `train`, `dev` or `test`.
        cluster: Cluster of the task for clustered statistics; for FinQA the company.
        kind: Question type, for breakdowns (`lookup`, `growth_rate`, ...); may be empty.
    """

    id: str
    prompt: str
    split: str
    cluster: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """Where an environment's tasks come from.

    Attributes:
        name: Name for users: the snapshot, the file, or `embedded`.
        digest: `sha256:...` of the content.
        evaluation_only: The data is marked as not for training.
    """

    name: str
    digest: str
    evaluation_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool in OpenAI function form; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_function(self) -> dict[str, Any]:
        """The `{"type": "function", ...}` dictionary that chat templates expect."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A parsed call. `arguments` are JSON values as the model wrote them; the environment validates them."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message.

    Only assistant messages have `tool_call`, and `further_calls` if a turn has several calls. A tool message has the
    `name` of the tool, and answers the first earlier call without a tool message. `images` follow the text; each is a
    data URI or a web address.
    """

    role: Role
    content: str
    tool_call: ToolCall | None = None
    name: str = ""
    further_calls: tuple[ToolCall, ...] = ()
    images: tuple[str, ...] = ()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls of the message, in their order."""
        return () if self.tool_call is None else (self.tool_call, *self.further_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Opening of an episode: the messages, the available tools, and whether one turn may call several."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    several_calls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Reply of the environment to one step.

    Attributes:
        text: What the model reads.
        done: The episode is over; `Session.grade` may be called.
        is_error: The call was refused or failed because of a mistake of the model (unknown tool, bad arguments, SQL
            error).
        images: Images after the text, for models that support images: data URIs or web addresses.
    """

    text: str
    done: bool = False
    is_error: bool = False
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """The verdict on one episode.

    Attributes:
        total: The number used for training.
        components: Named parts, for logs and reports.
        explanation: The reason, in one readable line.
        weight: Factor on the attempt's advantage, independent of its reward.
        judged: What a judge decided, for the record of the attempt (see `Judgement.facts`); empty if none was asked.
    """

    total: float
    components: Mapping[str, float] = field(default_factory=dict)
    explanation: str = ""
    weight: float = 1.0
    judged: Mapping[str, Any] = field(default_factory=dict)
