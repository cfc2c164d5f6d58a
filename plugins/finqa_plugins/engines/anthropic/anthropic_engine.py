"""The `anthropic` engine: chat on Anthropic's messages API."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import ChatRequest
from finqa_plugins.engines._http.chat_engine import ServerChatEngine
from finqa_plugins.engines._http.chat_replies import Reply
from finqa_plugins.engines._http.refusals import Refusal
from finqa_plugins.engines._http.usage import KEPT_EPISODES, Usage
from finqa_plugins.engines.anthropic.anthropic_messages import Blocks, read_reply, read_usage, request_body
from finqa_plugins.engines.anthropic.config import AnthropicConfig


class AnthropicEngine(ServerChatEngine):
    """Messages of one account. With reasoning it keeps the signed blocks of each turn, which the API requires back."""

    path = "/messages"
    config: AnthropicConfig

    def __init__(self, config: AnthropicConfig | None, context: EngineContext) -> None:
        super().__init__(config or AnthropicConfig(), context)
        self._sent: OrderedDict[str, dict[str, Blocks]] = OrderedDict()  # episode -> text of a turn -> its content

    @property
    def limit_field(self) -> str:
        """Name of the request field for the token limit."""
        return "max_tokens"

    def with_limit(self, body: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """The body with its limit, which includes the tokens for reasoning."""
        return super().with_limit(body, limit + (self.config.thinking_tokens or 0))

    def request_body(self, request: ChatRequest) -> dict[str, Any]:
        """A request for a message."""
        replies = self._sent.get(request.key.rpartition("#")[0], {})
        return request_body(request, self._model, self.config, replies)

    def read_reply(self, document: Mapping[str, Any], request: ChatRequest) -> Reply:
        """The turn in a message."""
        reply = read_reply(document, tools=bool(request.tools), several_calls=request.several_calls)
        if self.config.thinking_tokens is not None:
            self._sent.setdefault(request.key.rpartition("#")[0], {})[reply.turn.text] = tuple(document["content"])
            if len(self._sent) > KEPT_EPISODES:
                self._sent.popitem(last=False)
        return reply

    def read_usage(self, document: Mapping[str, Any]) -> Usage:
        """The usage of a message."""
        return read_usage(document.get("usage"))

    def adapt(self, refusal: Refusal) -> str:
        """Omits the temperature if the server rejects it."""
        if "temperature" in refusal.text and "temperature" not in self.config.omit:
            self.config = self.config.model_copy(update={"omit": ("temperature",)})
            return "temperature is omitted"
        return ""


def make_engine(config: AnthropicConfig | None, context: EngineContext) -> AnthropicEngine:
    """The engine, not started.

    Raises:
        ConfigError: More than one replica is set: an account has one address.
    """
    if context.replicas > 1:
        raise ConfigError(
            f"Engine 'anthropic' has one address, but there are {context.replicas} replicas.",
            remedy="--engine-replicas 1",
        )
    return AnthropicEngine(config, context)
