"""The `openai` engine: chat on a server with OpenAI's chat completions, or token ids for a run that needs them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_cli.types import ChatRequest
from finqa_plugins.engines._http.adapter_files import vocabulary
from finqa_plugins.engines._http.chat_engine import ServerChatEngine
from finqa_plugins.engines._http.chat_replies import Reply
from finqa_plugins.engines._http.config import OMITTABLE, find_key
from finqa_plugins.engines._http.http_client import CHAT, Client
from finqa_plugins.engines._http.refusals import Refusal
from finqa_plugins.engines._http.served_engine import ServedTokenEngine
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines._http.usage import Usage, read_usage
from finqa_plugins.engines.openai.chat_messages import read_reply, request_body
from finqa_plugins.engines.openai.config import CHAT_ONLY, OpenAIEngineConfig

_RENAMED = re.compile(r"max_completion_tokens", re.IGNORECASE)


class OpenAIEngine(ServerChatEngine):
    """Chat completions on one server."""

    path = CHAT
    config: OpenAIEngineConfig

    def __init__(self, config: OpenAIEngineConfig | None, context: EngineContext) -> None:
        super().__init__(config or OpenAIEngineConfig(), context)

    @property
    def limit_field(self) -> str:
        """See `OpenAIEngineConfig.limit_field`."""
        return self.config.limit_field

    def request_body(self, request: ChatRequest) -> dict[str, Any]:
        """A request for a chat completion."""
        return request_body(request, self._model, self.config)

    def read_reply(self, document: Mapping[str, Any], request: ChatRequest) -> Reply:
        """The turn in a chat completion."""
        return read_reply(document, tools=bool(request.tools), several_calls=request.several_calls)

    def read_usage(self, document: Mapping[str, Any]) -> Usage:
        """The usage of a chat completion."""
        return read_usage(document)

    def adapt(self, refusal: Refusal) -> str:
        """Renames or omits the field that the server names, folds the system message, or joins messages of one role."""
        config, words = self.config, refusal.text
        if config.max_tokens_field is None and config.limit_field == "max_tokens" and _RENAMED.search(words):
            return self._change("max_tokens_field", "max_completion_tokens", "max_tokens is renamed")
        if refusal.field in OMITTABLE and refusal.field not in config.omit:
            return self._change("omit", (*config.omit, refusal.field), f"{refusal.field} is omitted")
        if config.system_message == "send" and refusal.says("system"):
            return self._change("system_message", "fold", "the system message is part of the first user message")
        if config.roles == "as_sent" and refusal.says("roles"):
            return self._change("roles", "alternate", "neighbouring messages of one role are joined")
        return ""

    def _change(self, option: str, value: object, change: str) -> str:
        self.config = self.config.model_copy(update={option: value})
        return change


def make_engine(config: OpenAIEngineConfig | None, context: EngineContext) -> OpenAIEngine | ServedTokenEngine:
    """The engine, not started.

    Raises:
        ConfigError: The options do not fit the number of replicas, or are for chat while the run needs tokens.
        AuthenticationError: The run needs tokens and the key is missing.
    """
    config = (config or OpenAIEngineConfig()).of_replica(context.replica, context.replicas)
    return _token_engine(config, context) if context.needs_tokens else OpenAIEngine(config, context)


def _token_engine(config: OpenAIEngineConfig, context: EngineContext) -> ServedTokenEngine:
    chat_only = sorted(CHAT_ONLY & config.model_fields_set - ({"omit"} if set(config.omit) <= {"seed"} else set()))
    if chat_only:
        raise ConfigError(
            f"engine.options.{chat_only[0]} applies to chat requests; a run that trains or plays an "
            "adapter uses token ids.",
            remedy=f"leave engine.options.{chat_only[0]} out",
        )
    if context.lora_rank < 1:
        raise ConfigError(
            "Engine 'openai' loads new weights as adapters, but --lora-rank 0 trains the whole model.",
            remedy="--lora-rank 16, or --engine vllm or transformers",
        )
    server = TokenServer(
        Client(config, find_key(config), seed=context.seed),
        model=config.model,
        folder=context.model,
        max_context=context.max_context,
        vocabulary=vocabulary(context.model),
        paths=config.adapter_paths,
        load_timeout_s=config.load_timeout_s,
        seeded="seed" not in config.omit,
    )
    price = config.price_of(config.model or context.model)
    return ServedTokenEngine(server, context=context, tolerance=config.probe_tolerance or "measured", price=price)
