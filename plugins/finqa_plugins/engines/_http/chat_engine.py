"""Chat on one server, whatever its dialect: limits of the context, adaptations to refusals, usage and cost.

An unknown refusal is judged by its structure, because each server words it differently. After a shorter prompt of the
same episode was accepted, it means that the context is full, which the smallest possible request confirms. Where no
request of a run was ever accepted, every further one would be refused too, and the run ends.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import structlog

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import AssistantTurn, ChatRequest
from finqa_cli.types.model_providers import provider_at
from finqa_plugins.engines._http.chat_replies import Reply, unreadable_reply
from finqa_plugins.engines._http.config import ChatServerConfig, find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.json_documents import BadReplyError, ModelCard, write_document
from finqa_plugins.engines._http.recorded_replies import RecordedReplies
from finqa_plugins.engines._http.refusals import (
    DOCTOR,
    NAME_MODEL,
    PromptTooLongError,
    Refusal,
    RefusedFieldError,
    RefusedRequestError,
    reply_limit_of,
    room_of,
)
from finqa_plugins.engines._http.usage import KEPT_EPISODES, Ledger, Usage, estimate_tokens

log = structlog.get_logger(__name__)

REFUSED_AT_FIRST = 3
"""Requests that may be refused for an unknown reason before the first one is accepted."""

_OF_THE_REQUEST = (400, 413, 422)
"""Statuses with which a server refuses a request for what it contains."""

_MOST_CHANGES = 8
"""Adaptations of one request, more than there are kinds of them."""


class ServerChatEngine(ChatEngine):
    """Chat on one server. Each request contains the whole conversation.

    Attributes:
        path: Path of the API for a turn.
    """

    path: ClassVar[str]

    def __init__(self, config: ChatServerConfig, context: EngineContext) -> None:
        self.config = config
        self._model = config.model or context.model
        self._seed = context.seed
        provider = provider_at(config.base_url)
        self._ledger = Ledger(
            config.price_of(self._model),
            model=self._model,
            charged=provider is not None and provider.name == "openrouter",
        )
        self._replies = None if config.replies is None else RecordedReplies(config.replies, config.base_url)
        self._client: Client | None = None
        self._starting = asyncio.Lock()
        self._warned: set[str] = set()
        self._accepted: OrderedDict[str, int] = OrderedDict()  # episode -> bytes of its longest accepted request
        self._refused_at_first = 0
        self._longest_reply: int | None = None

    @abstractmethod
    def request_body(self, request: ChatRequest) -> dict[str, Any]:
        """The JSON body of a request, with the adaptations so far."""

    @abstractmethod
    def read_reply(self, document: Mapping[str, Any], request: ChatRequest) -> Reply:
        """The turn in a reply; raises BadReplyError if it is none."""

    @abstractmethod
    def read_usage(self, document: Mapping[str, Any]) -> Usage:
        """The usage in a reply, which may be unreadable otherwise."""

    @property
    @abstractmethod
    def limit_field(self) -> str:
        """Name of the request field for the token limit."""

    def with_limit(self, body: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """The body with a limit of tokens for the reply."""
        return {**body, self.limit_field: limit}

    @abstractmethod
    def adapt(self, refusal: Refusal) -> str:
        """Changes how requests are written so that the server accepts them; returns what was changed, or ""."""

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
                raise ConfigError("The engine needs the name of a model on the server.", remedy=NAME_MODEL)
            client = Client(self.config, find_key(self.config), seed=self._seed)
            client.retried = self._ledger.retried
            client.spoiled = self._charge_spoiled
            try:
                self._check_model(await client.listing())
            except BaseException:
                await client.close()
                raise
            if self.config.prices and self._ledger.price is None:
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
        if reply.written_call and self._is_first("written call"):
            # Log: Once, when a reply of a chat server contains a call as text, which is read from there.
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
        for _ in range(_MOST_CHANGES):
            body = self.request_body(request)
            try:
                return await self._within_context(request, body)
            except (RefusedRequestError, RefusedFieldError) as error:
                refused = error
            if changed := self._shorten(request, refused.refusal) or self.adapt(refused.refusal):
                self._ledger.adapted.append(changed)
                # Log: Once for each change, when a server refuses a field or a message that its dialect lacks.
                log.warning("requests are adapted to the server", change=changed, refusal=refused.refusal.text)
            elif self.request_body(request) == body:  # else another request has adapted it meanwhile
                break
        raise self._final(refused, body)

    def _shorten(self, request: ChatRequest, refusal: Refusal) -> str:
        """Takes the server's limit of a reply if it refuses the requested one; returns what was changed, or ""."""
        limit = min(request.sampling.max_tokens, self._longest_reply or request.sampling.max_tokens)
        if (longest := reply_limit_of(refusal.text, limit)) is None:
            return ""
        self._longest_reply = longest
        return f"replies have at most {longest:,} tokens"

    async def _within_context(self, request: ChatRequest, body: Mapping[str, Any]) -> Reply:
        """One turn; if the context has no room for a whole reply, one of the length that fits.

        Raises:
            PromptTooLongError: Not even the shortest reply fits.
            RefusedRequestError, RefusedFieldError: The server refuses the request for another reason.
            FinqaError: See `Client.complete`.
        """
        limit = min(request.sampling.max_tokens, self._longest_reply or request.sampling.max_tokens)
        try:
            return await self._send(request, body, limit)
        except PromptTooLongError as error:
            room = error.room
            if room is None and not self._accepted:  # no request of the run was accepted, so the words may mislead
                self._count_refused(f"The server answers: {error}", body)
        except RefusedRequestError as error:
            if not self._may_be_full(request, body, error.refusal):
                raise
            room = room_of(error.refusal.text, limit, estimate_tokens(len(write_document(body))))
            if room is None and not await self._fits(request, body, error):
                # Log: A chat server refused a prompt, even with the shortest reply, but accepted a shorter one before.
                log.info("an unknown refusal counts as a full context", reason=error.refusal.text)
                raise PromptTooLongError(None) from error
            room = limit // 4 if room is None else room
        if room is None or not 0 < room < limit:
            raise PromptTooLongError(room)
        try:
            return await self._send(request, body, room)
        except RefusedRequestError as error:
            raise PromptTooLongError(None) from error

    def _may_be_full(self, request: ChatRequest, body: Mapping[str, Any], refusal: Refusal) -> bool:
        before = self._accepted.get(request.key.rpartition("#")[0], 0)
        return refusal.status in _OF_THE_REQUEST and 0 < before < len(write_document(body))

    async def _fits(self, request: ChatRequest, body: Mapping[str, Any], refused: RefusedRequestError) -> bool:
        """Whether the server accepts the prompt with the shortest reply."""
        try:
            await self._send(request, body, 1)
        except (RefusedRequestError, PromptTooLongError):
            return False
        return True

    async def _send(self, request: ChatRequest, body: Mapping[str, Any], limit: int) -> Reply:
        client = self._client
        if client is None:
            raise EngineError("The engine is not started, or is closed.")
        body = self.with_limit(body, limit)
        if (recorded := self._recorded(request, body)) is not None:
            return recorded
        documents: list[Mapping[str, Any]] = []

        def read(document: Mapping[str, Any]) -> Reply:
            reply = self.read_reply(document, request)
            documents.append(document)
            return reply

        reply = await client.complete(
            body,
            key=request.key,
            limit=limit,
            read=read,
            unreadable=unreadable_reply if request.tools else None,
            path=self.path,
        )
        self._ledger.add(request.key, self._metered(reply, body))
        self._note_accepted(request, body)
        if self._replies is not None and documents:
            await asyncio.to_thread(self._replies.keep, body, request.key, documents[-1])
        return reply

    def _recorded(self, request: ChatRequest, body: Mapping[str, Any]) -> Reply | None:
        """The recorded reply to a request; None without one."""
        if self._replies is None or (found := self._replies.find(body, request.key)) is None:
            return None
        document, age_s = found
        try:
            reply = self.read_reply(document, request)
        except BadReplyError:
            return None
        self._ledger.replayed(request.key, self._metered(reply, body), age_s)
        self._note_accepted(request, body)
        return reply

    def _note_accepted(self, request: ChatRequest, body: Mapping[str, Any]) -> None:
        episode, size = request.key.rpartition("#")[0], len(write_document(body))
        self._accepted[episode] = max(size, self._accepted.pop(episode, 0))
        if len(self._accepted) > KEPT_EPISODES:
            self._accepted.popitem(last=False)

    def _charge_spoiled(self, key: str, document: Mapping[str, Any]) -> None:
        if (usage := self.read_usage(document)).tokens:
            self._ledger.add(key, usage)

    def _metered(self, reply: Reply, body: Mapping[str, Any]) -> Usage:
        """The usage of a reply; where the server reported none, its estimate from the length of the texts."""
        if not reply.usage.unmetered:
            return reply.usage
        if self._is_first("no usage"):
            # Log: Once, when a reply has no `usage`; the estimates are marked with `about`.
            log.warning("the server reports no usage, so tokens and cost are estimated from the length of the texts")
        return reply.usage.estimated(estimate_tokens(len(write_document(body))), estimate_tokens(len(reply.turn.text)))

    def _final(
        self, error: RefusedRequestError | RefusedFieldError, body: Mapping[str, Any]
    ) -> EngineError | ConfigError:
        """The error for a refusal to which requests cannot be adapted; it ends the run if nothing was ever accepted."""
        if isinstance(error, RefusedFieldError) or self._accepted or error.refusal.status not in _OF_THE_REQUEST:
            return error
        try:
            self._count_refused(error.message, body)
        except ConfigError as all_of_them:
            return all_of_them
        return error

    def _count_refused(self, reason: str, body: Mapping[str, Any]) -> None:
        """Counts a refused request of a run that none was accepted of; raises ConfigError for the third one."""
        self._refused_at_first += 1
        if self._refused_at_first < REFUSED_AT_FIRST:
            return
        raise ConfigError(
            f"The server has refused all of the first requests of this run. {reason} The requests had: {_shape(body)}.",
            remedy=f"{DOCTOR}; engine.options can omit fields (omit), fold the system message into the first user "
            "message (system_message=fold) and merge messages of one role (roles=alternate)",
        )

    def _is_first(self, event: str) -> bool:
        """Whether this is the first call for an event, which is logged once."""
        first = event not in self._warned
        self._warned.add(event)
        return first

    def _check_model(self, cards: tuple[ModelCard, ...] | None) -> None:
        """Rejects a model folder that the server does not list; other unknown names are left to the server."""
        known = [card.name for card in cards or ()]
        if known and self._model not in known and Path(self._model).is_dir():
            raise ConfigError(
                f"{self._model} is a folder of this machine; the server at {self.config.base_url} serves: "
                f"{', '.join(known[:20])}.",
                remedy=f"--set engine.options.model={known[0]}",
            )


def _shape(body: Mapping[str, Any]) -> str:
    """The fields of a request and the roles of its messages, without their texts."""
    roles = ", ".join(str(message.get("role")) for message in body.get("messages", ()))
    fields = [name for name in body if name != "messages"]
    return f"messages ({roles}), {', '.join(fields)}"
