"""Chat codecs: conversion between messages and token ids, for one model family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finqa_cli.contracts.call_format import CallFormat
from finqa_cli.errors import ConfigError
from finqa_cli.types import AssistantTurn, Message, Prompt

ReplyRole = Literal["tool", "user"]
"""Role of the reply to a turn: `tool` for the result of a call, `user` for an environment that answers as the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecContext:
    """Context of a codec.

    Attributes:
        model: Folder or hub id whose tokenizer and chat template are used.
        call_formats: Name of each known call format -> function that makes it.
    """

    model: str
    call_formats: Mapping[str, Callable[[], CallFormat]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """One turn of the episode so far.

    Attributes:
        completion_ids: [Lc] sampled ids, with the stop id if it was sampled.
        stopped: A stop id was sampled; False when the turn was cut at a limit.
        reply: The reply of the environment.
        role: Role of the reply.
        further_replies: The replies to the further calls of a turn with several.
    """

    completion_ids: tuple[int, ...]
    stopped: bool
    reply: str
    role: ReplyRole = "tool"
    further_replies: tuple[str, ...] = ()

    @property
    def replies(self) -> tuple[str, ...]:
        """All replies, in the order of the calls."""
        return (self.reply, *self.further_replies)


class ChatCodec(ABC):
    """Base class of all chat codecs, constructed as `Codec(config, context)`.

    The token sequence of an episode only grows: `opening`, sampled ids, `tool_reply`, sampled ids, ... (`user_reply` in
    an episode without tools). Sampled ids are never decoded and encoded again. Content (questions, replies) is encoded
    so that control-token strings inside it stay ordinary text.

    A chat template may rewrite earlier turns, for example to drop their reasoning. Then `rewrites` returns True, and
    the whole prompt of each turn comes from `history`. A new sequence starts where that prompt does not begin with the
    tokens so far. `rewrites` and `history` have defaults. So have `parse_calls` and `tool_replies`, which a codec
    overrides to support several calls per turn. All other methods are required.
    """

    @property
    @abstractmethod
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""

    @abstractmethod
    def opening(self, prompt: Prompt) -> tuple[int, ...]:
        """[L] ids of the system message, the tools and the user messages, up to the start of the assistant's turn."""

    @abstractmethod
    def tool_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[L] ids that follow the sampled ids: the rest of the end of the assistant turn, the tool message, and the
        opening of the next assistant turn. If `stopped` is False the turn was cut, and its whole end is included.
        """

    @abstractmethod
    def user_reply(self, text: str, *, stopped: bool) -> tuple[int, ...]:
        """[L] as `tool_reply`, with a message of the user.

        Raises:
            ConfigError: The chat template does not support a second user message, or rewrites messages in an
                unsupported way.
        """

    @abstractmethod
    def assistant(self, message: Message) -> tuple[int, ...]:
        """[L] ids of an assistant message as the model would sample it, stop id included, for demonstrations."""

    @abstractmethod
    def parse(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Find the tool call in a completion.

        Any input results in a turn: with a call, or with the reason why there is none.
        """

    def parse_calls(self, completion_ids: tuple[int, ...]) -> AssistantTurn:
        """Parse as `parse` does, for a session that takes several calls in one turn.

        Default: `parse`, so that the model's turns have one call each.
        """
        return self.parse(completion_ids)

    def tool_replies(self, texts: Sequence[str], *, stopped: bool) -> tuple[int, ...]:
        """[L] as `tool_reply`, with a tool message for each call of the turn, at least one.

        Default: one message.

        Raises:
            ConfigError: There are several, and this codec takes turns with one call only.
        """
        if len(texts) > 1:
            raise ConfigError(
                f"Codec {type(self).__name__} supports one call per turn, but this turn has {len(texts)}."
            )
        return self.tool_reply(texts[0], stopped=stopped)

    def facts(self) -> Mapping[str, Any]:
        """Facts about the format that prompts have, for the manifest of a run. Default: none."""
        return {}

    def chat_template(self) -> str | None:
        """A chat template (Jinja, as transformers reads it) that renders what this codec renders, for exports.

        Default: None; an export then keeps the chat template of its base model.
        """
        return None

    def rewrites(self, role: ReplyRole) -> bool:
        """Whether this model's template rewrites earlier turns in episodes whose replies have this role.

        Default: False, episodes append and `history` is not called.

        Raises:
            ConfigError: The template rewrites messages in an unsupported way.
        """
        return False

    def history(self, prompt: Prompt, turns: Sequence[PlayedTurn]) -> tuple[int, ...]:
        """[L] ids of the conversation as the template renders it, up to the start of the assistant's turn.

        Where the template keeps the text of an earlier turn unchanged, its ids are the sampled ones.

        Args:
            prompt: The opening prompt of the episode.
            turns: All turns since, at least one.

        Raises:
            ConfigError: The codec rewrites no history. This is the default.
        """
        raise ConfigError(f"Codec {type(self).__name__} rewrites no history.")
