"""HTTP: one request with its repetitions. Nothing here knows what an episode is."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
import structlog
from pydantic import SecretStr

from finqa_plugins.openai_engine.config import LOOPBACK, OpenAIEngineConfig
from finqa_plugins.openai_engine.faults import PromptTooLongError, UnreadableCallError, exhausted, refused, unreachable
from finqa_plugins.openai_engine.pacing import Gate
from finqa_plugins.openai_engine.refusals import Meaning, Refusal, one_line, read_refusal
from finqa_plugins.openai_engine.replies import BadReplyError, Reply, parse_document, unreadable_reply

log = structlog.get_logger(__name__)

LARGEST_REPLY = 16 * 2**20
"""Bytes; a server that sends more is broken."""

LISTING_S = 20.0
"""Seconds for the list of models: longer than that and nobody is there."""

SHORTEST_KEY = 8
"""Characters of what is hidden in the server's words; servers without keys are often given one such as `EMPTY`."""

CHARACTERS_PER_TOKEN = 4
"""For the estimate that holds a place in the token limit until the reply says what was used."""


class _PassingError(Exception):
    """One try failed in a way that another may not. `wait_s` is what the server asks for, `limited`: a rate limit."""

    def __init__(self, reason: str, *, limited: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.limited = limited
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    data: bytes


class Client:
    """One server, one model."""

    def __init__(self, config: OpenAIEngineConfig, key: SecretStr | None, *, model: str, seed: int) -> None:
        self._config = config
        self._key = key
        self._model = model
        self._seed = seed
        self._known: tuple[str, ...] = ()
        self._gate = Gate(
            places=config.max_concurrent,
            requests_per_minute=config.requests_per_minute,
            tokens_per_minute=config.tokens_per_minute,
        )
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key.get_secret_value()}"} if key else {},
            timeout=httpx.Timeout(None, connect=config.connect_timeout_s),  # `_send` limits the whole
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=config.max_concurrent),
            trust_env=config.host not in LOOPBACK,  # a proxy of the environment does not see this machine's servers
        )

    async def models(self) -> tuple[str, ...] | None:
        """Names of the models that the server lists, sorted; None when it does not say.

        Raises:
            ServiceUnavailableError: Nothing answers at the address.
            AuthenticationError: The key is refused.
        """
        try:
            answer = await self._send("GET", "/models", timeout_s=min(self._config.request_timeout_s, LISTING_S))
        except _PassingError as failure:
            raise unreachable(failure.reason, self._config) from failure
        try:
            document = parse_document(answer.data)
        except BadReplyError:
            document = {}
        if answer.status != 200:
            refusal = self._refusal(answer, document)
            if refusal.meaning is Meaning.KEY:
                raise refused(refusal, self._config, self._model, ())
            return None
        listed = document.get("data")
        if not isinstance(listed, list):
            return None
        names = [one.get("id") for one in listed if isinstance(one, dict)]
        self._known = tuple(sorted({name for name in names if isinstance(name, str)}))
        return self._known

    async def complete(self, body: Mapping[str, Any], *, key: str, read: Callable[[Mapping[str, Any]], Reply]) -> Reply:
        """One completion; passing failures are repeated with growing, seeded waits, or those that the server names.

        Args:
            body: The request.
            key: The request's name; the jitter of waits depends on it.
            read: Reads the reply; raises BadReplyError.

        Raises:
            PromptTooLongError: The context is too short for it.
            EngineError: This request fails for good: limits, hangs, nonsense.
            FinqaError: Every request would fail so: the key, the model, the account, the address.
        """
        content = json.dumps(body, allow_nan=False).encode()
        reserved = len(content) // CHARACTERS_PER_TOKEN + int(body[self._config.limit_field])
        jitter = random.Random(f"openai:{self._seed}:{key}")
        began, tries = 0.0, 0
        while True:
            tries, spent = tries + 1, 0
            async with self._gate.place(reserved):
                began = began or time.monotonic()
                try:
                    reply = read(self._checked(await self._ask(content)))
                    spent = reply.usage.tokens or reserved
                    return reply
                except UnreadableCallError as error:
                    if "tools" in body:
                        spent = reserved
                        log.info("the server could not read a tool call", request=key, reason=error.reason)
                        return unreadable_reply(error.reason, error.written)
                    failure = _PassingError(error.reason)
                except BadReplyError as error:
                    failure = _PassingError(f"the server answers nonsense: {error}")
                except _PassingError as error:
                    failure = error
                finally:
                    self._gate.used(spent, reserved)
            backoff = self._config.backoff_s * 2.0 ** min(tries - 1, 30) * (0.5 + jitter.random() / 2)
            wait = max(min(backoff, self._config.max_wait_s), failure.wait_s or 0.0)
            over = time.monotonic() + wait - began > self._config.give_up_s
            if tries > self._config.max_retries or wait > self._config.max_wait_s or over:
                asked = "" if failure.wait_s is None else f" (it asks for {failure.wait_s:.0f} s)"
                raise exhausted(f"{failure.reason}{asked}", failure.limited, tries, self._config)
            log.info("request repeated", request=key, reason=failure.reason, tries=tries, wait_s=round(wait, 2))
            if failure.limited:
                self._gate.pause(wait)
            await asyncio.sleep(wait)

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    def _checked(self, answer: _Answer) -> Mapping[str, Any]:
        try:
            document: Mapping[str, Any] | None = parse_document(answer.data)
        except BadReplyError as error:
            if answer.status == 200:
                raise BadReplyError(f"{error}: {self._text(answer)[:100]!r}") from error
            document = None
        if answer.status == 200 and document is not None and not document.get("error"):
            return document
        refusal = self._refusal(answer, document)
        match refusal.meaning:
            case Meaning.UNREADABLE:
                raise UnreadableCallError(refusal.text, refusal.written)
            case Meaning.CONTEXT:
                raise PromptTooLongError(refusal.room)
            case Meaning.LIMIT | Meaning.PASSING:
                reason = f"{refusal.text or 'no reason given'} (HTTP {refusal.status})"
                limited = refusal.meaning is Meaning.LIMIT
                raise _PassingError(reason, limited=limited, wait_s=refusal.retry_after_s)
            case _:
                raise refused(refusal, self._config, self._model, self._known)

    async def _ask(self, content: bytes) -> _Answer:
        return await self._send("POST", "/chat/completions", content, timeout_s=self._config.request_timeout_s)

    async def _send(self, method: str, path: str, content: bytes | None = None, *, timeout_s: float) -> _Answer:
        headers = {"Content-Type": "application/json"} if content is not None else {}
        data = bytearray()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream(method, self._config.base_url + path, content=content, headers=headers) as response,
            ):
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > LARGEST_REPLY:
                        raise _PassingError(f"the reply is longer than {LARGEST_REPLY} bytes")
                # before anything is cut: a key that is cut in two would not be found
                return _Answer(response.status_code, response.headers, self._without_key(bytes(data)))
        except TimeoutError:
            raise _PassingError(f"no whole reply within {timeout_s:g} s") from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise _PassingError(one_line(str(error)) or type(error).__name__) from error

    def _refusal(self, answer: _Answer, document: Mapping[str, Any] | None) -> Refusal:
        refusal = read_refusal(answer.status, answer.headers, self._text(answer), document)
        return replace(refusal, text=self._without_key(refusal.text.encode()).decode())

    def _text(self, answer: _Answer) -> str:
        return answer.data[:4000].decode("utf-8", errors="replace")

    def _without_key(self, data: bytes) -> bytes:
        """Some servers repeat the key."""
        key = self._key.get_secret_value().encode() if self._key else b""
        return data.replace(key, b"**********") if len(key) >= SHORTEST_KEY else data
