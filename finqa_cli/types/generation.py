"""Requests and results between a rollout and an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finqa_cli.types.tasks import Message, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters.

    Attributes:
        temperature: 0 is greedy.
        top_p: Nucleus mass; 1 keeps all.
        max_tokens: Limit of this one generation.
        stop_ids: Ids that end it; the stop id is kept in the completion.
        seed: Samples depend only on this seed, not on other requests in a batch. Engines with an option for it may
            sample
            without seeds.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Token ids in. `key` orders requests inside a batch, so that the batch does not depend on arrival order."""

    key: str
    token_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Token ids out.

    Attributes:
        token_ids: [Lc] as sampled, stop id included.
        logprobs: [Lc] under the distribution that was sampled from (temperature applied, nats). For greedy requests
            under the untempered distribution.
        stop: `stop` or `length`.
        policy_version: The version that served it from the first token to the last.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: str
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Request to an engine that uses messages, not tokens (an expert, a person, a hosted API).

    Attributes:
        key: Episode and turn, see `GenerateRequest`.
        messages: The conversation so far.
        tools: The tools that may be called.
        sampling: Sampling parameters, if the engine samples.
        task: Id of the task, for an expert that looks its solution up; other engines do not read it.
        several_calls: One turn may call several tools, see `Prompt`.
        takes_text: A turn without a call is a reply in words, see `Session`.
    """

    key: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling
    task: str = ""
    several_calls: bool = False
    takes_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """A parsed turn of the model.

    Attributes:
        text: All of it.
        words: The part of it before the call, reasoning included; empty without a call.
        tool_call: The call, or None.
        further_calls: The calls after it, in their order; only where the session takes several in one turn.
        parse_error: What is wrong with the call, in words that the model can act on; empty when `tool_call` is set.
        no_call: There is no trace of a call in it, so it is an answer in words where the session takes one.
        stop: How a chat engine's turn ended: `stop`, `length` (cut at the token limit), or `full`: the conversation
            has outgrown the model's context, so there is no turn and the episode ends at its own limit. Of token
            engines the `Completion` says it.
    """

    text: str
    words: str = ""
    tool_call: ToolCall | None = None
    further_calls: tuple[ToolCall, ...] = ()
    parse_error: str = ""
    stop: Literal["stop", "length", "full"] = "stop"
    no_call: bool = False

    @classmethod
    def calling(
        cls, *calls: ToolCall, words: str = "", stop: Literal["stop", "length", "full"] = "stop"
    ) -> AssistantTurn:
        """Return the turn of a chat engine with these calls, at least one, after some text."""
        text = "\n".join(filter(None, (words, transcribe_calls(calls))))
        return cls(text=text, words=words, tool_call=calls[0], further_calls=calls[1:], stop=stop)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls of the turn, in their order."""
        return () if self.tool_call is None else (self.tool_call, *self.further_calls)


def transcribe_calls(calls: Sequence[ToolCall]) -> str:
    """Return calls as text for transcripts: JSON in tags, the form of Hermes, which most chat templates write."""
    payloads = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
    return "\n".join(f"<tool_call>\n{json.dumps(each, ensure_ascii=False)}\n</tool_call>" for each in payloads)
