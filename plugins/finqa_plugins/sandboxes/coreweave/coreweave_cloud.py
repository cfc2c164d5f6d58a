"""CoreWeave's SDK as one provider uses it: address and key, requests, retries and errors."""

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
    """Arguments of every call of the SDK.

    Attributes:
        base_url: `https://host`, or `http://` on this machine.
        auth: Headers that contain the key; never shown.
    """

    base_url: str
    auth: AuthHeaders = field(repr=False)

    def blotted(self, text: str) -> str:
        """Returns a text in which the key is masked, in case the service repeated it."""
        for value in self.auth.headers.values():
            secret = value.removeprefix("Bearer ")
            text = text.replace(secret, "**********") if len(secret) >= 8 else text
        return text


async def access(config: CoreWeaveSandboxConfig) -> Access:
    """The address and key that the options name.

    Raises:
        AuthenticationError: There is no key.
        ConfigError: The address is invalid, or the key would be sent unencrypted.
    """
    if config.auth == "wandb":
        return Access(base_url(), await asyncio.to_thread(_wandb_headers, config))  # importing wandb is slow
    return Access(base_url(), AuthHeaders({"Authorization": f"Bearer {api_key(config)}"}, "api_key"))


def check_key(config: CoreWeaveSandboxConfig) -> None:
    """Look for the key that the options name, without a request.

    Raises:
        AuthenticationError: There is no key.
    """
    if config.auth != "wandb":
        api_key(config)
    elif not has_wandb_key(os.environ):
        raise AuthenticationError(f"No W&B key: {WANDB_KEY_VARIABLE} is not set.", remedy=WANDB_REMEDY)


def api_key(config: CoreWeaveSandboxConfig) -> str:
    """CoreWeave's key, from the options, else from the environment.

    Raises:
        AuthenticationError: There is none.
    """
    key = config.api_key.get_secret_value() if config.api_key else os.environ.get(KEY_VARIABLE, "")
    if not key.strip():
        raise AuthenticationError(f"No CoreWeave API key: {KEY_VARIABLE} is not set.", remedy=KEY_REMEDY)
    return key.strip()


def base_url() -> str:
    """Address of the service; only the environment of the process can change it.

    Raises:
        ConfigError: The address is invalid, or neither encrypted nor of this machine.
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
    """Makes objects of the SDK and awaits their requests. The SDK works in its own thread."""

    def __init__(self, config: CoreWeaveSandboxConfig) -> None:
        self._config = config
        self._access: Access | None = None
        self._threads = ThreadPoolExecutor(STATUSES_AT_ONCE, thread_name_prefix="cwsandbox status")
        self._random = random.Random(0)  # for the jitter of retries only; no recorded result depends on it
        with contextlib.suppress(RuntimeError):  # raised if other code has already used the SDK
            disable_signal_handlers()  # the command line has its own handlers, which end every sandbox

    async def access(self) -> Access:
        """Address and key, determined once.

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
        """The current status of a sandbox. Runs in a thread, because this is the only blocking call of the SDK that we
        use.

        Raises:
            CWSandboxError: The service does not answer, or does not know the sandbox.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, sandbox.get_status)

    async def end(self, sandbox: Sandbox, name: str) -> None:
        """Ends a sandbox and returns when it is gone.

        Raises:
            SandboxError: The sandbox still exists after `delete_timeout_s`.
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
        """Makes an idempotent request, and retries it while failures are temporary.

        Args:
            doing: What the request does, for errors, such as `ending sandbox X`.
            request: Makes the request once.
            patience_s: Seconds after which no further try begins.

        Raises:
            FinqaError: The request failed for good; the SDK's exception is the cause.
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
        """Releases the threads. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _pause_s(self, tries: int, error: CWSandboxError) -> float:
        """Seconds before the next try: those that the service requests, else exponential backoff, both with jitter."""
        asked = pause_asked_s(error)
        spread = self._random.random()
        return BACKOFF.pause_s(tries, spread) if asked is None else asked + 0.2 * spread

    def _told(self, error: CWSandboxError, doing: str) -> FinqaError:
        told = explained(error, doing)
        if self._access is None:
            return told
        return type(told)(self._access.blotted(told.message), remedy=told.remedy)


async def _stopped(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxNotFoundError, SandboxTerminalStateUnavailableError):  # it is gone
        await sandbox.stop(graceful_shutdown_seconds=0, missing_ok=True)
