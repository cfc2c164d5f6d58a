"""Where the service is, and by which key it lets us in."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cwsandbox import AuthHeaders, CWSandboxError, WandbAuth

from finqa_cli.errors import AuthenticationError, ConfigError
from finqa_plugins.sandboxes.coreweave.config import CoreWeaveSandboxConfig
from finqa_plugins.sandboxes.coreweave.coreweave_account import KEY_VARIABLE, WANDB_KEY_VARIABLE, has_wandb_key
from finqa_plugins.sandboxes.coreweave.coreweave_errors import KEY_REMEDY, WANDB_REMEDY, explained

URL_VARIABLE = "CWSANDBOX_BASE_URL"
CLOUD_URL = "https://api.cwsandbox.com"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Access:
    """What every call of the SDK is given.

    Attributes:
        base_url: `https://host`, or `http://` on this machine.
        auth: Headers that hold the key; never shown.
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
        ConfigError: It is no address, or not encrypted and not of this machine.
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
    if not has_wandb_key(os.environ):
        raise AuthenticationError(f"No W&B key: {WANDB_KEY_VARIABLE} is not set.", remedy=WANDB_REMEDY)
    try:
        auth = WandbAuth(entity=config.entity or None, project=config.project or None)
        return auth.resolve_auth(base_url=base_url())
    except CWSandboxError as error:
        raise explained(error, "finding the W&B key") from error
