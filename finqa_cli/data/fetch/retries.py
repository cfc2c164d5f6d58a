"""The HTTP client of a fetch: which responses are retried, and which error each other response becomes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import httpx

from finqa_cli.backoff import Backoff, retry_after_s
from finqa_cli.data.fetch.known_sources import Host
from finqa_cli.errors import AuthenticationError, DataError, FinqaError, ServiceUnavailableError

T = TypeVar("T")
KEPT = "Check the network, or set a mirror with --endpoint, and run the same command again: downloaded data is kept."
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class Transient(Exception):
    """A failure that may not recur, so the request is retried.

    Attributes:
        wait_s: Pause that the host requests, in seconds; None if it requests none.
    """

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Attempts, pauses and time limits of requests.

    Attributes:
        attempts: Largest number of attempts of one request.
        first_pause_s: Pause after the first failure; each further pause is twice as long.
        longest_pause_s: Longest pause; if the host requests a longer one, the fetch ends.
        connect_s: Timeout of a connection, and of the listing of a repository.
        read_s: Timeout between two parts of a response.
    """

    attempts: int = 5
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    connect_s: float = 10.0
    read_s: float = 30.0

    def pause_s(self, attempt: int) -> float:
        """Returns the pause after the attempt of this number, counted from 1."""
        return Backoff(self.first_pause_s, self.longest_pause_s).pause_s(attempt)


async def persist(attempt: Callable[[], Awaitable[T]], patience: Patience, tell: Callable[[str], None]) -> T:
    """Repeats an attempt until it succeeds, fails permanently or has failed too often.

    Raises:
        ServiceUnavailableError: Every attempt failed with a transient error, or the host requests too long a pause.
    """
    number = 0
    while True:
        number += 1
        try:
            return await attempt()
        except Transient as problem:
            pause = patience.pause_s(number) if problem.wait_s is None else problem.wait_s
            if pause > patience.longest_pause_s:
                message = f"{problem}; the host requests a pause of {pause:.0f} s."
                raise ServiceUnavailableError(message, remedy=KEPT) from problem
            if number >= patience.attempts:
                raise ServiceUnavailableError(f"{problem}; gave up after attempt {number}.", remedy=KEPT) from problem
            tell(f"{problem}; attempt {number + 1} of {patience.attempts} in {pause:.0f} s")
        await asyncio.sleep(pause)


def refusal(host: Host, what: str, status: int, headers: Mapping[str, str]) -> FinqaError | Transient:
    """Returns the error for an HTTP status of 400 and above.

    Args:
        host: The service that answered.
        what: Name of what was requested.
        status: The HTTP status.
        headers: Headers of the answer, by case-insensitive or lower-case name.
    """
    if status in _PASSING:
        return Transient(f"{what}: {host.name} answered HTTP {status}", retry_after_s(headers.get("retry-after")))
    if status in (401, 403):
        return AuthenticationError(
            f"{what}: {host.name} refused access (HTTP {status}). It is private or gated, or does not exist.",
            remedy=host.sign_in,
        )
    if status in (404, 410):
        return DataError(f"{what}: {host.name} does not have it (HTTP {status}).", remedy="Check --revision.")
    return ServiceUnavailableError(f"{what}: {host.name} answered HTTP {status}.", remedy=KEPT)


def error_text(error: Exception) -> str:
    """Returns the message of a network error, or the name of its class if it has no message, as timeouts do."""
    return str(error) or type(error).__name__


def open_client(headers: Mapping[str, str], patience: Patience) -> httpx.AsyncClient:
    """Opens a client that follows redirects; httpx sends the Authorization header to the first origin only."""
    timeout = httpx.Timeout(patience.read_s, connect=patience.connect_s, pool=None)
    return httpx.AsyncClient(headers=headers, timeout=timeout, verify=_certificates(), follow_redirects=True)


@cache
def _certificates() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # cached: loading the certificates takes longer than most requests
