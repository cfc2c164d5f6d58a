"""The `openai` engine: chat on a server with OpenAI's chat completions, or token ids for a run that needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import AssistantTurn, ChatRequest
from finqa_cli.types.model_providers import provider_at
from finqa_plugins.engines._http.adapter_files import vocabulary
from finqa_plugins.engines._http.config import find_key
from finqa_plugins.engines._http.http_client import CHAT, Client
from finqa_plugins.engines._http.json_documents import ModelCard, write_document
from finqa_plugins.engines._http.refusals import NAME_MODEL, PromptTooLongError
from finqa_plugins.engines._http.served_engine import ServedTokenEngine
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines._http.usage import Ledger, Usage, estimate_tokens
from finqa_plugins.engines.openai.chat_messages import Reply, read_reply, request_body, unreadable_reply
from finqa_plugins.engines.openai.config import CHAT_ONLY, OpenAIEngineConfig

log = structlog.get_logger(__name__)


class OpenAIEngine(ChatEngine):
    """Chat on one server. Stateless except for usage counts: each request contains the whole conversation."""

    def __init__(self, config: OpenAIEngineConfig | None, context: EngineContext) -> None:
        self._config = config or OpenAIEngineConfig()
        self._model = self._config.model or context.model
        self._seed = context.seed
        price = self._config.price_of(self._model)
        provider = provider_at(self._config.base_url)
        charged = provider is not None and provider.name == "openrouter"
        self._ledger = Ledger(price, model=self._model, charged=charged)
        self._client: Client | None = None
        self._starting = asyncio.Lock()
        self._warned_of_written_call = False
        self._warned_of_usage = False

    async def start(self) -> None:
        """Checks that the server answers and accepts the key. Idempotent.

        Raises:
            ConfigError: No model is named, or a folder on this machine that the server does not list.
            AuthenticationError: The key is missing or refused.
            ServiceUnavailableError: Nothing answers at the address.
        """
        async with self._starting:
            if self._client is not None:
                return
            if not self._model:
                raise ConfigError("Engine 'openai' needs the name of a model.", remedy=NAME_MODEL)
            client = Client(self._config, find_key(self._config), seed=self._seed)
            client.retried = self._ledger.retried
            try:
                self._check_model(await client.listing())
            except BaseException:
                await client.close()
                raise
            if self._config.prices and self._ledger.price is None:
                # Log: `engine.options.prices` has other models only.
                log.warning("no price for this model, so no cost is computed", model=self._model)
            self._client = client

    async def respond(self, request: ChatRequest) -> AssistantTurn:
        """The next assistant turn.

        A reply that contains no call, several or an unreadable one is a turn with a parse error.

        Raises:
            EngineError: The server failed for this request after all retries.
            FinqaError: Every request would fail: the key, the model, the account or the address is wrong.
        """
        try:
            reply = await self._complete(request)
        except PromptTooLongError:
            return AssistantTurn(text="", stop="full")
        if reply.written_call and not self._warned_of_written_call:
            self._warned_of_written_call = True
            # Log: Once, when a reply of engine `openai` contains a call as text.
            log.warning(
                "the server left a tool call in the text; start it with a tool-call parser for the model",
                model=self._model,
            )
        return reply.turn

    def usage(self, episode: str) -> dict[str, Any]:
        """What an episode used, all its restarts together: `requests`, tokens and `cost_usd` (None without a price).

        Args:
            episode: The part of the requests' keys before `#`.
        """
        return self._ledger.episode(episode)

    async def close(self) -> None:
        """Reports what was used and closes the connections. Idempotent."""
        client, self._client = self._client, None
        if client is None:
            return
        self._ledger.report("tokens used in all")
        await client.close()

    async def _complete(self, request: ChatRequest) -> Reply:
        client = self._client
        if client is None:
            raise EngineError("The engine is not started, or is closed.")
        body = request_body(request, self._model, self._config)

        async def send(body: Mapping[str, Any], limit: int) -> Reply:
            return await client.complete(
                body,
                key=request.key,
                limit=limit,
                read=lambda document: read_reply(
                    document, tools=bool(request.tools), several_calls=request.several_calls
                ),
                unreadable=unreadable_reply if request.tools else None,
                path=CHAT,
            )

        try:
            reply = await send(body, request.sampling.max_tokens)
        except PromptTooLongError as error:
            if error.room is None or not 0 < error.room < request.sampling.max_tokens:
                raise
            # the prompt fits, but not with a whole reply
            reply = await send({**body, self._config.limit_field: error.room}, error.room)
        self._ledger.add(request.key, self._metered(reply, body))
        return reply

    def _metered(self, reply: Reply, body: Mapping[str, Any]) -> Usage:
        """The usage of a reply; where the server reported none, its estimate from the length of the texts."""
        if not reply.usage.unmetered:
            return reply.usage
        if not self._warned_of_usage:
            self._warned_of_usage = True
            log.warning("the server reports no usage, so tokens and cost are estimated from the length of the texts")
        return reply.usage.estimated(estimate_tokens(len(write_document(body))), estimate_tokens(len(reply.turn.text)))

    def _check_model(self, cards: tuple[ModelCard, ...] | None) -> None:
        """Rejects a model folder that the server does not list; other unknown names are left to the server."""
        known = [card.name for card in cards or ()]
        if known and self._model not in known and Path(self._model).is_dir():
            raise ConfigError(
                f"{self._model} is a folder of this machine; the server at {self._config.base_url} serves: "
                f"{', '.join(known[:20])}.",
                remedy=f"--set engine.options.model={known[0]}",
            )


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
