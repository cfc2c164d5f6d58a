"""HTTP client of one server: sends a request and its retries, within rate limits. It knows nothing of episodes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import structlog
from pydantic import SecretStr

from finqa_cli.backoff import Backoff
from finqa_cli.contracts import uncounted
from finqa_plugins.engines._http.config import ServerConfig
from finqa_plugins.engines._http.json_documents import (
    BadReplyError,
    ModelCard,
    parse_document,
    parse_events,
    read_listing,
    write_document,
)
from finqa_plugins.engines._http.refusals import (
    ControlError,
    Meaning,
    PromptTooLongError,
    UnreadableCallError,
    exhausted,
    refused,
    unreachable,
)
from finqa_plugins.engines._http.transport import Answer, PassingError, Transport
from finqa_plugins.engines._http.usage import Usage, estimate_tokens

log = structlog.get_logger(__name__)


class Pace:
    """A rate limit in units per minute, evenly spread, because hosted models reject bursts."""

    def __init__(self, per_minute: int | None, now: Callable[[], float] = time.monotonic) -> None:
        """`per_minute`: units per minute; None for no limit. `now`: clock in seconds."""
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._now = now
        self._next = 0.0

    def reserve(self, units: int) -> float:
        """Reserves `units` at the next free time; returns the seconds until then."""
        now = self._now()
        begin = max(now, self._next)
        self._next = begin + units * self._seconds_each
        return begin - now

    def correct(self, units: int) -> None:
        """Enlarges an earlier reservation by `units`; a negative number reduces it."""
        self._next += units * self._seconds_each


class Gate:
    """Decides when a request may start: by a limit of concurrent requests, rate limits, and pauses of the server."""

    def __init__(
        self, *, places: int, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
    ) -> None:
        self._places = asyncio.Semaphore(places)
        self._requests = Pace(requests_per_minute)
        self._tokens = Pace(tokens_per_minute)
        self._paused_until = 0.0

    @asynccontextmanager
    async def place(self, tokens: int) -> AsyncIterator[None]:
        """Waits until a request of about `tokens` tokens may start, and occupies a place while it runs."""
        with uncounted.get()():  # waiting for a limit is not the policy's time
            await self._places.acquire()
        try:
            begins = time.monotonic() + max(self._requests.reserve(1), self._tokens.reserve(tokens))
            try:
                with uncounted.get()():
                    while (left := max(begins, self._paused_until) - time.monotonic()) > 0:  # noqa: ASYNC110  a pause may grow
                        await asyncio.sleep(left)
            except asyncio.CancelledError:
                self._requests.correct(-1)
                self._tokens.correct(-tokens)
                raise
            yield
        finally:
            self._places.release()

    def pause(self, seconds: float) -> None:
        """Starts no request for `seconds`: a rate limit that one request exceeds holds for all."""
        self._paused_until = max(self._paused_until, time.monotonic() + seconds)

    def used(self, tokens: int, reserved: int) -> None:
        """Replaces the reserved tokens of a request by the number that it used."""
        self._tokens.correct(tokens - reserved)


CHAT, COMPLETIONS = "/chat/completions", "/completions"

LISTING_S = 20.0
"""Seconds for the list of models: a server that takes longer counts as unreachable."""


class Used(Protocol):
    """A parsed reply."""

    @property
    def usage(self) -> Usage:
        """Tokens used."""
        ...


R = TypeVar("R", bound=Used)


class Client:
    """Connection to one server, with its limits and retries.

    Attributes:
        retried: Called with a request's name when it is sent again.
        spoiled: Called with a request's name and the reply, if that cannot be used: its tokens are paid all the same.
    """

    def __init__(self, config: ServerConfig, key: SecretStr | None, *, seed: int, proxied: bool = True) -> None:
        """`proxied`: see `Transport`."""
        self.config = config
        self.seed = seed
        self.retried: Callable[[str], None] = lambda key: None
        self.spoiled: Callable[[str, Mapping[str, Any]], None] = lambda key, document: None
        self._backoff = Backoff(first_s=config.backoff_s, longest_s=config.max_wait_s)
        self._known: tuple[str, ...] = ()
        self._gate = Gate(
            places=config.max_concurrent,
            requests_per_minute=config.requests_per_minute,
            tokens_per_minute=config.tokens_per_minute,
        )
        self._transport = Transport(config, key, proxied=proxied)

    async def listing(self) -> tuple[ModelCard, ...] | None:
        """The models that the server lists, by name; None if it does not report them.

        Raises:
            ServiceUnavailableError: Nothing answers at the address.
            AuthenticationError: The key is refused.
        """
        try:
            timeout_s = min(self.config.request_timeout_s, LISTING_S)
            answer = await self._transport.send("GET", "/models", timeout_s=timeout_s)
        except PassingError as failure:
            raise unreachable(failure.reason, self.config) from failure
        if answer.status != 200:
            refusal = self._transport.refusal(answer)
            if refusal.meaning is Meaning.KEY:
                raise refused(refusal, self.config)
            return None
        cards = read_listing(answer.document())
        if cards is not None:
            self._known = tuple(card.name for card in cards)
        return cards

    async def complete(
        self,
        body: Mapping[str, Any],
        *,
        key: str,
        limit: int,
        read: Callable[[Mapping[str, Any]], R],
        unreadable: Callable[[str, str], R] | None = None,
        path: str = COMPLETIONS,
    ) -> R:
        """One completion. Temporary failures are retried.

        The wait before a retry grows with each one and has a seeded jitter; it is longer if the server asks for that.

        Args:
            body: The request.
            key: The request's name; the jitter of waits depends on it.
            limit: Most tokens of the completion; they are reserved from the token limit.
            read: Reads the reply; raises BadReplyError.
            unreadable: Makes the reply when the server could not parse the model's tool call, from the server's reason
                and the text that the model wrote. None: this counts as a temporary failure.
            path: Path of the API.

        Raises:
            PromptTooLongError: The context is too short for it.
            NoAnswerError: The server is gone, hangs or sends invalid replies, also after all retries.
            RateLimitError: The server's rate limit was exceeded in all tries.
            UnknownModelError: The server does not have the body's model.
            EngineError: The server rejected this request.
            FinqaError: Every request would fail: the key, the account or the address is wrong.
        """
        content, model = write_document(body), str(body["model"])
        del body  # the garbage collector would visit each of its token ids again and again while the reply is awaited
        reserved = estimate_tokens(len(content)) + limit  # until the reply reports the real number
        jitter: random.Random | None = None
        began, tries = 0.0, 0
        while True:
            tries, spent = tries + 1, 0
            async with self._gate.place(reserved):
                began = began or time.monotonic()
                try:
                    timeout_s = self.config.request_timeout_s
                    answer = await self._transport.send("POST", path, content, timeout_s=timeout_s)
                    document = self._checked(answer, path, model)
                    try:
                        reply = read(document)
                    except BadReplyError:
                        self.spoiled(key, document)
                        raise
                    spent = reply.usage.tokens or reserved
                    return reply
                except UnreadableCallError as error:
                    if unreadable is not None:
                        spent = reserved
                        # Log: A model server refused a completion with a malformed call. It counts as a turn without a
                        # call.
                        log.info("the server could not parse a tool call", request=key, reason=error.reason)
                        return unreadable(error.reason, error.written)
                    failure = PassingError(error.reason)
                except BadReplyError as error:
                    failure = PassingError(f"the server sent an invalid response: {error}")
                except PassingError as error:
                    failure = error
                finally:
                    self._gate.used(spent, reserved)
            jitter = jitter or random.Random(f"openai:{self.seed}:{key}")
            wait = max(self._backoff.pause_s(tries, jitter.random()), failure.wait_s or 0.0)
            over = time.monotonic() + wait - began > self.config.give_up_s
            if tries > self.config.max_retries or over:  # a wait that the server asks for may exceed max_wait_s
                asked = "" if failure.wait_s is None else f" (it requests a pause of {failure.wait_s:.0f} s)"
                raise exhausted(f"{failure.reason}{asked}", failure.limited, tries, self.config)
            self.retried(key)
            # Log: A model server was busy, limited the rate or failed; the request is sent again after `wait_s`
            # seconds.
            log.info("request repeated", request=key, reason=failure.reason, tries=tries, wait_s=round(wait, 2))
            if failure.limited:
                self._gate.pause(wait)
            with uncounted.get()():
                await asyncio.sleep(wait)

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
        query: Mapping[str, str] | None = None,
        root: bool = False,
    ) -> Mapping[str, Any]:
        """One control call, without retries and outside the limits for completions.

        Args:
            path: Path below the address of the API.
            body: JSON; None sends nothing.
            timeout_s: Seconds for the whole call.
            query: Parameters of the address.
            root: The path is beside `/v1`, not below it (vLLM: `/sleep`, `/pause`).

        Returns:
            The JSON object of the reply; empty where it is something else.

        Raises:
            ControlError: The server refused, in its own words.
            NoAnswerError: It did not answer.
            AuthenticationError: It refused the key.
        """
        content = None if body is None else write_document(body)
        try:
            answer = await self._transport.send("POST", path, content, timeout_s=timeout_s, query=query, root=root)
        except PassingError as failure:
            raise exhausted(failure.reason, limited=False, tries=1, config=self.config) from failure
        if answer.status == 200:
            return answer.document() or {}
        refusal = self._transport.refusal(answer)
        if refusal.meaning is Meaning.KEY:
            raise refused(refusal, self.config)
        raise ControlError(f"{self.config.base_url} refused {path}: {refusal.text} (HTTP {answer.status})", refusal)

    async def healthy(self, timeout_s: float) -> bool:
        """Whether the server answers `/health`, beside `/v1`, with status 200 (vLLM, SGLang, llama.cpp)."""
        try:
            answer = await self._transport.send("GET", "/health", timeout_s=timeout_s, root=True)
        except PassingError:
            return False
        return answer.status == 200

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    def _checked(self, answer: Answer, path: str, model: str) -> Mapping[str, Any]:
        if answer.status == 200:
            try:
                streamed = answer.data[:200].lstrip().startswith((b"data:", b"event:", b":"))
                document = parse_events(answer.data) if streamed else parse_document(answer.data)
            except BadReplyError as error:
                raise BadReplyError(f"{error}: {answer.text[:100]!r}") from error
            if not document.get("error"):
                return document
        refusal = self._transport.refusal(answer)
        match refusal.meaning:
            case Meaning.UNREADABLE:
                raise UnreadableCallError(refusal.text, refusal.written)
            case Meaning.CONTEXT:
                raise PromptTooLongError(refusal.room)
            case Meaning.LIMIT | Meaning.PASSING:
                reason = f"{refusal.text or 'no reason given'} (HTTP {refusal.status})"
                limited = refusal.meaning is Meaning.LIMIT
                raise PassingError(reason, limited=limited, wait_s=refusal.retry_after_s)
            case _:
                raise refused(refusal, self.config, model=model, known=self._known, path=path)
