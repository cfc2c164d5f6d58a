"""The SDK as one provider uses it: address and key, its requests, how they are repeated, and its errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

from cwsandbox import (
    AuthHeaders,
    CWSandboxError,
    NetworkOptions,
    PlacementMode,
    Sandbox,
    SandboxNotFoundError,
    SandboxStatus,
    SandboxTerminalStateUnavailableError,
    WandbAuth,
    disable_signal_handlers,
)

from finqa_cli.backoff import Backoff
from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError, SandboxError
from finqa_plugins.sandboxes.coreweave.config import (
    KEY_VARIABLE,
    WANDB_KEY_VARIABLE,
    CoreWeaveSandboxConfig,
    has_wandb_key,
)
from finqa_plugins.sandboxes.coreweave.coreweave_errors import (
    KEY_REMEDY,
    WANDB_REMEDY,
    explained,
    is_passing,
    pause_asked_s,
)

PATIENCE_S = 20.0
BACKOFF = Backoff(first_s=0.3, longest_s=10.0)
STATUS_TIMEOUT_S = 5.0
STATUSES_AT_ONCE = 32

URL_VARIABLE = "CWSANDBOX_BASE_URL"
CLOUD_URL = "https://api.cwsandbox.com"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """What every call of the SDK is given.

    Attributes:
        base_url: `https://host`, or `http://` on this machine.
        auth: Headers that contain the key; never shown.
    """

    base_url: str
    auth: AuthHeaders = field(repr=False)

    def blotted(self, text: str) -> str:
        """A text without the key, should the service have repeated it."""
        for value in self.auth.headers.values():
            secret = value.removeprefix("Bearer ")
            text = text.replace(secret, "**********") if len(secret) >= 8 else text
        return text


async def access(config: CoreWeaveSandboxConfig) -> Access:
    """The way in that the options name.

    Raises:
        AuthenticationError: There is no key.
        ConfigError: The address is none, or would send the key in the clear.
    """
    if config.auth == "wandb":
        return Access(base_url(), await asyncio.to_thread(_wandb_headers, config))  # importing wandb takes a while
    return Access(base_url(), AuthHeaders({"Authorization": f"Bearer {api_key(config)}"}, "api_key"))


def check_key(config: CoreWeaveSandboxConfig) -> None:
    """Look for the key that the options name, without a request.

    Raises:
        AuthenticationError: There is none.
    """
    if config.auth != "wandb":
        api_key(config)
    elif not has_wandb_key(os.environ):
        raise AuthenticationError(f"No W&B key: {WANDB_KEY_VARIABLE} is not set.", remedy=WANDB_REMEDY)


def api_key(config: CoreWeaveSandboxConfig) -> str:
    """CoreWeave's key, of the options, else of the environment.

    Raises:
        AuthenticationError: There is none.
    """
    key = config.api_key.get_secret_value() if config.api_key else os.environ.get(KEY_VARIABLE, "")
    if not key.strip():
        raise AuthenticationError(f"No CoreWeave API key: {KEY_VARIABLE} is not set.", remedy=KEY_REMEDY)
    return key.strip()


def base_url() -> str:
    """Where requests go: to another address than CoreWeave's cloud only by the process's own environment.

    Raises:
        ConfigError: It is not an address, or not encrypted and not of this machine.
    """
    url = (os.environ.get(URL_VARIABLE) or CLOUD_URL).rstrip("/")
    parts = urlsplit(url)
    plain = parts.scheme == "http" and parts.hostname in _LOOPBACK
    if not (plain or parts.scheme == "https") or not parts.hostname or parts.path:
        raise ConfigError(
            f"{URL_VARIABLE} must be https://HOST (http:// on this machine only), got {url[:80]!r}.",
            remedy=f"unset {URL_VARIABLE}",
        )
    return url


def _wandb_headers(config: CoreWeaveSandboxConfig) -> AuthHeaders:
    check_key(config)
    try:
        auth = WandbAuth(entity=config.entity or None, project=config.project or None)
        return auth.resolve_auth(base_url=base_url())
    except CWSandboxError as error:
        raise explained(error, "finding the W&B key") from error


class Cloud:
    """Makes the SDK's objects and waits for what they promise. The SDK works in its own thread."""

    def __init__(self, config: CoreWeaveSandboxConfig) -> None:
        self._config = config
        self._access: Access | None = None
        self._threads = ThreadPoolExecutor(STATUSES_AT_ONCE, thread_name_prefix="cwsandbox status")
        self._random = random.Random(0)  # spreads retries; decides nothing that a run records
        with contextlib.suppress(RuntimeError):  # other code that used the SDK before has installed them
            disable_signal_handlers()  # the command line has its own, and they end every sandbox

    async def access(self) -> Access:
        """The way in, found once.

        Raises:
            AuthenticationError: There is no key.
            ConfigError: The address of the service is wrong.
        """
        if self._access is None:
            self._access = await access(self._config)
        return self._access

    async def prepare(self, tags: Sequence[str]) -> Sandbox:
        """Prepare a sandbox that the service does not know yet. Repeated calls of its `start` create one sandbox."""
        way, config = await self.access(), self._config
        return Sandbox(
            container_image=config.container_image,
            tags=[*tags],
            base_url=way.base_url,
            auth=way.auth,
            request_timeout_seconds=config.request_timeout_s,
            poll_rpc_timeout_seconds=STATUS_TIMEOUT_S,
            max_lifetime_seconds=config.max_lifetime_s,
            resources={"cpu": f"{config.cpu:g}", "memory": f"{config.memory_mib}Mi"},
            network=None if config.network else NetworkOptions(deny_egress=True, deny_ingress=True),
            placement_mode=None if config.placement == "auto" else PlacementMode(config.placement),
        )

    async def find(self, tags: Sequence[str], patience_s: float = PATIENCE_S) -> Sequence[Sandbox]:
        """Sandboxes that have not ended and carry all these tags."""
        way, timeout_s = await self.access(), self._config.request_timeout_s
        return await self.call(
            "listing the sandboxes",
            lambda: Sandbox.list(tags=[*tags], base_url=way.base_url, auth=way.auth, timeout_seconds=timeout_s),
            patience_s,
        )

    async def status(self, sandbox: Sandbox) -> SandboxStatus:
        """What the service reports about a sandbox now. Asked for in a thread: of all that we use, the SDK only blocks
        here.

        Raises:
            CWSandboxError: It does not answer, or knows no such sandbox.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, sandbox.get_status)

    async def end(self, sandbox: Sandbox, name: str) -> None:
        """Ends a sandbox and returns when it is gone.

        Raises:
            SandboxError: It is still there after `delete_timeout_s`.
            AuthenticationError: The key is refused.
        """
        timeout_s = self._config.delete_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.call(f"ending sandbox {name}", lambda: _stopped(sandbox), timeout_s)
        except AuthenticationError:
            raise
        except (TimeoutError, FinqaError) as error:
            reason = error.message if isinstance(error, FinqaError) else f"It is still there after {timeout_s:g} s."
            raise SandboxError(f"Sandbox {name} could not be removed. {reason}") from error

    async def call(self, doing: str, request: Callable[[], Awaitable[T]], patience_s: float = PATIENCE_S) -> T:
        """Makes a request that may be made twice, again and again while the fault is a passing one.

        Args:
            doing: What it does, for the error: `ending sandbox X`.
            request: Makes the request once.
            patience_s: No further try begins after so long.

        Raises:
            FinqaError: It failed for good; the SDK's exception is its cause.
        """
        deadline = time.monotonic() + patience_s
        tries = 0
        while True:
            try:
                return await request()
            except CWSandboxError as error:
                tries += 1
                pause = self._pause_s(tries, error)
                if not is_passing(error) or time.monotonic() + pause > deadline:
                    raise self._told(error, doing) from error
            await asyncio.sleep(pause)

    def close(self) -> None:
        """Lets its threads go. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _pause_s(self, tries: int, error: CWSandboxError) -> float:
        """Seconds before the next try: as long as the service asks, else doubling with jitter."""
        asked = pause_asked_s(error)
        spread = self._random.random()
        return BACKOFF.pause_s(tries, spread) if asked is None else asked + 0.2 * spread

    def _told(self, error: CWSandboxError, doing: str) -> FinqaError:
        told = explained(error, doing)
        if self._access is None:
            return told
        return type(told)(self._access.blotted(told.message), remedy=told.remedy)


async def _stopped(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxNotFoundError, SandboxTerminalStateUnavailableError):  # gone, only not how
        await sandbox.stop(graceful_shutdown_seconds=0, missing_ok=True)
