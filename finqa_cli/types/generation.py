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
        temperature: Sampling temperature; 0: greedy.
        top_p: Probability mass of nucleus sampling; 1: all tokens.
        max_tokens: Most tokens of this one generation.
        stop_ids: Ids that end the generation; the stop id is kept in the completion.
        seed: Seed of the samples, which do not depend on other requests in a batch. An engine may have an option to
            sample without seeds.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Request to a token engine for one completion.

    Attributes:
        key: `<episode>#<turn>`. It orders the requests of a batch, which then does not depend on arrival order.
        token_ids: [L] the whole prompt.
        sampling: Sampling parameters.
    """

    key: str
    token_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Completion that a token engine sampled.

    Attributes:
        token_ids: [Lc] ids as sampled, stop id included.
        logprobs: [Lc] log-probabilities in nats under the distribution that was sampled from, temperature applied. For
            greedy requests, under the distribution at temperature 1.
        stop: `stop` (a stop id was sampled) or `length` (the token limit).
        policy_version: The version that sampled all of its tokens.
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
        task: Id of the task, for an expert that looks up its solution; other engines do not read it.
        several_calls: One turn may call several tools, see `Prompt`.
        takes_text: A turn without a call is passed on as a text, see `Session`.
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
        text: The whole text of the turn.
        words: The part of the text before the call, reasoning included; empty without a call.
        tool_call: The call, or None.
        further_calls: The calls after the first, in their order; only where the session supports several per turn.
        parse_error: What is wrong with the call, as a message for the model; empty when `tool_call` is set.
        no_call: The text contains no trace of a call, so it is a text answer if the session takes texts.
        stop: How a chat engine's turn ended: `stop`, `length` (cut at the token limit), or `full`. `full`: the
            conversation is longer than the model's context, so there is no turn and the episode ends with status
            `max_tokens`. For token engines see `Completion.stop`.
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
    """Return calls as text for transcripts: JSON in `<tool_call>` tags, the Hermes format of most chat templates."""
    payloads = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
    return "\n".join(f"<tool_call>\n{json.dumps(each, ensure_ascii=False)}\n</tool_call>" for each in payloads)
