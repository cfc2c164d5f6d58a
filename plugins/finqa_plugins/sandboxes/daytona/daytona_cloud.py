"""The SDK client of a provider: repeats failed requests and translates the SDK's errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    DaytonaConfig,
    DaytonaConnectionError,
    DaytonaError,
    DaytonaNotFoundError,
)

from finqa_cli.backoff import Backoff
from finqa_cli.errors import AuthenticationError, FinqaError, SandboxError
from finqa_plugins.sandboxes.daytona.config import KEY_VARIABLE, DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_errors import KEY_REMEDY, explained, is_passing, retry_after_s, status_of

log = structlog.get_logger(__name__)

URL_VARIABLE = "DAYTONA_API_URL"
CLOUD_URL = "https://app.daytona.io/api"
PATIENCE_S = 20.0
REQUEST_TIMEOUT_S = 30.0
DELETE_TRY_S = 15.0
"""Seconds after which an unfinished deletion is requested again: its reply may never come."""
BACKOFF = Backoff(first_s=0.3, longest_s=10.0)

T = TypeVar("T")


def api_key(config: DaytonaSandboxConfig) -> str:
    """The key of the options, else of the environment variable.

    Raises:
        AuthenticationError: There is no key.
    """
    key = config.api_key.get_secret_value() if config.api_key else os.environ.get(KEY_VARIABLE, "")
    if not key.strip():
        raise AuthenticationError(f"No Daytona API key: {KEY_VARIABLE} is not set.", remedy=KEY_REMEDY)
    return key.strip()


def api_url() -> str:
    """The address for requests: Daytona's cloud, unless this process's environment names another."""
    return os.environ.get(URL_VARIABLE) or CLOUD_URL


class Cloud:
    """One `AsyncDaytona` for all requests of a provider, created with the first. Belongs to one event loop."""

    def __init__(self, config: DaytonaSandboxConfig) -> None:
        self._config = config
        self._client: AsyncDaytona | None = None
        self._key = ""
        self._random = random.Random(0)  # only spreads retries; affects nothing that a run records
        self._closed = False
        self._out_of_reach_at = float("inf")

    def client(self) -> AsyncDaytona:
        """The SDK's client.

        Raises:
            AuthenticationError: There is no key.
            SandboxError: The provider is closed.
        """
        if self._closed:
            raise SandboxError("The sandbox provider is closed.")
        if self._client is None:
            self._key = api_key(self._config)
            config = DaytonaConfig(
                api_key=self._key, api_url=api_url(), target=self._config.target, connection_pool_maxsize=None
            )
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                self._client = AsyncDaytona(config)
            for warning in said:  # each warning is a paragraph with a line of our source
                # Log: A warning of Daytona's client library.
                log.warning(str(warning.message).partition(": ")[0].replace("`", ""))
        return self._client

    async def call(self, doing: str, request: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
        """Makes a request that may be made twice; repeats it while its errors are temporary.

        Args:
            doing: What the request does, for the error, such as `ending sandbox X`.
            request: Makes the request once.
            patience_s: Seconds after which no further try begins.

        Raises:
            DaytonaNotFoundError: The object does not exist; the caller knows what that means.
            FinqaError: The request failed and no retry is left.
        """
        try:
            return await self._repeat(request, time.monotonic() + patience_s, is_passing)
        except DaytonaNotFoundError:
            raise
        except DaytonaError as error:
            raise self.explain(error, doing) from error

    async def get(self, id_or_name: str, patience_s: float = PATIENCE_S) -> AsyncSandbox | None:
        """The sandbox with this id or name; None if there is none."""
        client = self.client()
        try:
            return await self.call(
                f"looking for sandbox {id_or_name}",
                lambda: client.get(id_or_name, request_timeout=REQUEST_TIMEOUT_S),
                patience_s,
            )
        except DaytonaNotFoundError:
            return None

    async def delete(self, sandbox: AsyncSandbox, timeout_s: float) -> None:
        """Deletes a sandbox and returns when it is gone. Waits if the sandbox is still being created.

        Raises:
            SandboxError: The sandbox still exists after `timeout_s`, or Daytona has been out of reach for some time.
            FinqaError: The key is refused.
        """
        deadline = time.monotonic() + timeout_s
        doing = f"ending sandbox {sandbox.id}"

        async def end() -> None:
            remaining = deadline - time.monotonic()
            await sandbox.delete(timeout=max(1.0, min(remaining, DELETE_TRY_S)), wait=True)

        def again(error: DaytonaError) -> bool:
            return not isinstance(self.explain(error, doing), AuthenticationError)

        try:
            await self._repeat(end, deadline, again)
        except DaytonaNotFoundError:
            return
        except DaytonaError as error:
            told = self.explain(error, doing)
            if isinstance(told, AuthenticationError):
                raise told from error
            stuck = " It hangs in `destroying`, which only Daytona's support can end." * await self._hangs(sandbox)
            raise SandboxError(f"Sandbox {sandbox.id} could not be ended. {told.message}{stuck}") from error

    async def _hangs(self, sandbox: AsyncSandbox) -> bool:
        """Whether Daytona has accepted a deletion and not carried it out."""
        with contextlib.suppress(FinqaError, DaytonaError, TimeoutError):
            found = await self.get(sandbox.id, patience_s=0.0)
            return found is not None and str(getattr(found.state, "value", found.state)) == "destroying"
        return False

    async def _repeat(
        self, request: Callable[[], Awaitable[T]], deadline: float, again: Callable[[DaytonaError], bool]
    ) -> T:
        """Makes a request, and repeats it after errors for which `again` is true; no try begins after the deadline.

        Raises:
            DaytonaError: The error of the last try.
        """
        tries = 0
        while True:
            try:
                answer = await request()
                self._heard()
                return answer
            except DaytonaError as error:
                self._heard(error)
                tries += 1
                pause = self.pause_s(tries, error)
                if isinstance(error, DaytonaNotFoundError) or not again(error):
                    raise
                if time.monotonic() + pause > min(deadline, self._out_of_reach_at):
                    raise
            await asyncio.sleep(pause)

    def _heard(self, error: DaytonaError | None = None) -> None:
        """Notes whether Daytona can be reached. After a while without any reply, no request is repeated.

        If each of hundreds of sandboxes waited for its own `patience_s`, a run would need minutes to end.
        """
        if error is None or status_of(error):
            self._out_of_reach_at = float("inf")
        elif isinstance(error, DaytonaConnectionError):
            self._out_of_reach_at = min(self._out_of_reach_at, time.monotonic() + PATIENCE_S)

    def pause_s(self, tries: int, error: DaytonaError) -> float:
        """Seconds before the next try: those that the service names, else an exponential backoff with jitter."""
        asked = retry_after_s(error.headers)
        spread = self._random.random()
        return BACKOFF.pause_s(tries, spread) if asked is None else asked + 0.2 * spread

    def explain(self, error: DaytonaError, doing: str) -> FinqaError:
        """`explained`, with the key masked in case the service repeated it."""
        told = explained(error, doing)
        if self._key and self._key in told.message:
            return type(told)(told.message.replace(self._key, "**********"), remedy=told.remedy)
        return told

    async def close(self) -> None:
        """Closes the client's connections. Idempotent."""
        self._closed = True
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()  # type: ignore[no-untyped-call]
