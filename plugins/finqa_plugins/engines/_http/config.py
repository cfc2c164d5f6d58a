"""Options that every engine on an HTTP server has, and the API key: where it comes from and where it may go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from finqa_cli.errors import AuthenticationError
from finqa_cli.types.model_providers import provider_at
from finqa_plugins.engines._http.model_prices import listed_price, read_prices
from finqa_plugins.engines._http.usage import Price

OPENAI_HOST = "api.openai.com"
KEY_VARIABLE = "OPENAI_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

OMITTABLE = ("temperature", "top_p", "seed", "parallel_tool_calls")
"""Fields of a chat request that some models refuse."""


class ServerConfig(BaseModel):
    """Address, API key, limits and retries of a server; each engine adds its own options."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    key_variable: ClassVar[str] = KEY_VARIABLE
    """Variable with the key for servers on this machine."""

    base_url: str = Field(
        default=f"https://{OPENAI_HOST}/v1", description="Address of the API, such as http://127.0.0.1:8000/v1"
    )
    api_key: SecretStr | None = Field(default=None, description="API key; prefer a variable, set with api_key_env")
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Variable with the API key (default: OPENAI_API_KEY, which is sent to OpenAI and to this "
        "machine only)",
    )
    max_concurrent: int = Field(default=64, ge=1, description="Maximum number of simultaneous requests")
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Maximum requests per minute, evenly distributed"
    )
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Maximum tokens per minute (prompts and completions), evenly distributed"
    )
    connect_timeout_s: float = Field(default=10.0, gt=0, description="Timeout of a connection, in seconds")
    request_timeout_s: float = Field(
        default=300.0, gt=0, description="Timeout of one request with its complete response, in seconds"
    )
    max_retries: int = Field(default=5, ge=0, description="Retries of a request after temporary failures")
    backoff_s: float = Field(
        default=1.0, gt=0, description="Seconds before the first retry; doubled for each further one"
    )
    max_wait_s: float = Field(default=60.0, gt=0, description="Longest wait before a retry, in seconds")
    give_up_s: float = Field(default=600.0, gt=0, description="Seconds after which a failing request is not retried")

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers of a request with this key."""
        return {"Authorization": f"Bearer {key}"}

    @property
    def extra_headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {}

    @property
    def host(self) -> str:
        """Host name of the address, to which the key is sent."""
        return urlsplit(self.base_url).hostname or ""

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("must be printable ASCII without spaces")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address such as http://127.0.0.1:8000/v1")
        _ = parts.port  # raises ValueError for one that is not a number
        if parts.username or parts.password:
            raise ValueError("must not contain a key or password; use api_key_env")
        if parts.scheme == "http" and parts.hostname == OPENAI_HOST:
            raise ValueError("must start with https: otherwise the key would be sent unencrypted")
        if parts.query or parts.fragment:
            raise ValueError("must end with the path, such as /v1")
        url = url.rstrip("/")
        for ending in ("/chat/completions", "/completions"):
            if url.endswith(ending):
                raise ValueError(f"must be the address without {ending}")
        return url


class ChatServerConfig(ServerConfig):
    """Options of every engine that chats with a server."""

    model: str | None = Field(
        default=None, min_length=1, description="Name of the model on the server (default: --model)"
    )
    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="Model -> {input, output, cached_input}: US dollars for a million tokens, or a TOML or JSON file "
        "of them (default: list prices of known hosted models)",
    )
    replies: Path | None = Field(
        default=None,
        description="Folder of recorded replies, for evaluations only: a request that it has is not sent (default: "
        "none; --cache sets one)",
    )

    @field_validator("prices", mode="before")
    @classmethod
    def _of_a_file(cls, given: Any) -> Any:
        return read_prices(given)

    def price_of(self, model: str) -> Price | None:
        """Price of a model: as given, else the list price; None if neither is known."""
        return self.prices.get(model) or listed_price(self.base_url, model)


def find_key(config: ServerConfig) -> SecretStr | None:
    """The API key of the options, else of the variable that they name, else that of the provider; None without one.

    A key belongs to its provider: unless `api_key_env` names the variable, it is sent to the provider's own address and
    to this machine only.

    Raises:
        AuthenticationError: A variable that is needed is not set, or the value found cannot be a key.
    """
    if config.api_key is not None:
        return _sound(config.api_key.get_secret_value(), "The option api_key")
    provider = provider_at(config.base_url)
    name = config.api_key_env or key_variable(config)
    if name is None:
        return None
    if value := os.environ.get(name, "").strip():
        return _sound(value, f"The variable {name}")
    if config.api_key_env is not None or provider is not None:
        raise AuthenticationError(
            f"No API key for {config.base_url}: the variable {name} is not set.", remedy=f"export {name}=..."
        )
    return None


def key_variable(config: ServerConfig) -> str | None:
    """The variable with the key for an address, unless `api_key_env` names another; None for unknown servers."""
    if (provider := provider_at(config.base_url)) is not None:
        return provider.key_variable
    return config.key_variable if config.host in LOOPBACK else None


def key_remedy(config: ServerConfig) -> str:
    """The remedy for a wrong key: how to set another one."""
    if config.api_key is not None:
        return "export FINQA_ENGINE__OPTIONS__API_KEY=... with another key"
    if (name := config.api_key_env or key_variable(config)) is None:
        return f"export SERVER_KEY=... and --set engine.options.api_key_env=SERVER_KEY (not {KEY_VARIABLE} by itself)"
    return f"export {name}=..."


def _sound(value: str, place: str) -> SecretStr:
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise AuthenticationError(
            f"{place} does not contain an API key: a key is printable ASCII without spaces.",
            remedy="copy the key again",
        )
    return SecretStr(value)
