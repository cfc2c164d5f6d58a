"""Chat codecs: between messages and token ids, for one model family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from finqa_cli.types import AssistantTurn, Message, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecContext:
    """`model` is the folder or hub id whose tokenizer and chat template are used."""

    model: str


@runtime_checkable
class ChatCodec(Protocol):
    """Constructed as `Codec(config, context)`.

    An episode's token sequence is only ever appended to: `opening`, sampled ids, `tool_reply`, sampled ids, ... Sampled
    ids are never decoded and encoded again. Content (questions, tool replies) is encoded so that control-token
    strings inside it stay ordinary text.
    """

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[L] system, tools and user messages, ending where the assistant is to speak."""
        ...

    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[L] what follows the sampled ids: the rest of the assistant turn's end (all of it when the turn was cut and
        `stopped` is False), the tool message, and the opening of the next assistant turn.
        """
        ...

    def assistant(self, message: Message) -> tuple[int, ...]:
        """[L] an assistant message as the model would have to sample it, stop id included: for demonstrations."""
        ...

    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Finds the tool call in a completion. Any input gives a turn: a call, or a reason why there is none."""
        ...
