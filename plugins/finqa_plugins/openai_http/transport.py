"""One HTTP request to the server and its whole reply, with time and size limits; the key never comes back out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
from pydantic import SecretStr

from finqa_plugins.openai_http.bodies import ACCEPTED, BadBodyError, Body
from finqa_plugins.openai_http.config import LOOPBACK, ServerConfig
from finqa_plugins.openai_http.documents import BadReplyError, parse_document
from finqa_plugins.openai_http.refusals import Refusal, one_line, read_refusal

LARGEST_REPLY = 16 * 2**20
"""Bytes; a server that sends more is broken."""

SHORTEST_KEY = 8
"""Characters of what is hidden in the server's words; servers without keys are often given one such as `EMPTY`."""


class PassingError(Exception):
    """One try failed in a way that another may not. `wait_s` is what the server asks for, `limited`: a rate limit."""

    def __init__(self, reason: str, *, limited: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.limited = limited
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, not judged yet; `data` is without the key."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def text(self) -> str:
        """Its beginning."""
        return self.data[:4000].decode("utf-8", errors="replace")

    def document(self) -> Mapping[str, Any] | None:
        """The JSON object that it is, or None."""
        try:
            return parse_document(self.data)
        except BadReplyError:
            return None


class Transport:
    """The connections to one server."""

    def __init__(self, config: ServerConfig, key: SecretStr | None) -> None:
        self._base = config.base_url
        self._key = key.get_secret_value().encode() if key else b""
        self._http = httpx.AsyncClient(
            headers={
                "Accept-Encoding": ACCEPTED,
                **({"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}),
            },
            timeout=httpx.Timeout(None, connect=config.connect_timeout_s),  # `send` limits the whole
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=config.max_concurrent),
            trust_env=config.host not in LOOPBACK,  # a proxy of the environment does not see this machine's servers
        )

    async def send(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        *,
        timeout_s: float,
        query: Mapping[str, str] | None = None,
        root: bool = False,
    ) -> Answer:
        """Sends one request.

        Args:
            method: GET or POST.
            path: Below the address of the API.
            content: JSON.
            timeout_s: For everything.
            query: Parameters of the address.
            root: The path lies beside `/v1`, not below it.

        Raises:
            PassingError: No whole reply came.
        """
        headers = {"Content-Type": "application/json"} if content is not None else {}
        url = (self._base.removesuffix("/v1") if root else self._base) + path
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.stream(method, url, content=content, headers=headers, params=query) as response,
            ):
                body = Body(response.headers.get("Content-Encoding", ""), LARGEST_REPLY)
                async for chunk in response.aiter_raw():
                    body.add(chunk)
                # before anything is cut: a key that is cut in two would not be found
                return Answer(response.status_code, response.headers, self._without_key(bytes(body.data)))
        except BadBodyError as error:
            raise PassingError(str(error)) from error
        except TimeoutError:
            raise PassingError(f"no whole reply within {timeout_s:g} s") from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise PassingError(one_line(str(error)) or type(error).__name__) from error

    def refusal(self, answer: Answer) -> Refusal:
        """What the server says in an answer that is no completion."""
        refusal = read_refusal(answer.status, answer.headers, answer.text, answer.document())
        return replace(refusal, text=self._without_key(refusal.text.encode()).decode())

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    def _without_key(self, data: bytes) -> bytes:
        """Some servers repeat the key."""
        return data.replace(self._key, b"**********") if len(self._key) >= SHORTEST_KEY else data
