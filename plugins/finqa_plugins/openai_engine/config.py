"""Options of the `openai` engine."""

from __future__ import annotations

import json
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

OPENAI_HOST = "api.openai.com"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

OMITTABLE = ("temperature", "top_p", "seed", "parallel_tool_calls")

OURS = frozenset(
    (*OMITTABLE, "model", "messages", "tools", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options")
)
"""Fields of a request that other settings decide."""


class Price(BaseModel):
    """What one model costs, in US dollars for a million tokens; cached input costs as much as other input if unset."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached_input: float | None = Field(default=None, ge=0)


class OpenAIEngineConfig(BaseModel):
    """What `finqa plugins show openai` lists."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    base_url: str = Field(
        default=f"https://{OPENAI_HOST}/v1", description="Address of the API, such as http://127.0.0.1:8000/v1"
    )
    api_key: SecretStr | None = Field(default=None, description="API key; rather name a variable with api_key_env")
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Variable that holds the API key (default: OPENAI_API_KEY, which is sent to OpenAI and to this "
        "machine only)",
    )
    model: str | None = Field(
        default=None, min_length=1, description="Name by which the server knows the model (default: --model)"
    )
    max_concurrent: int = Field(default=64, ge=1, description="Requests on their way at once")
    requests_per_minute: int | None = Field(default=None, ge=1, description="Most requests in a minute, evenly spread")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Most tokens in a minute, prompts and completions, evenly spread"
    )
    connect_timeout_s: float = Field(default=10.0, gt=0, description="Seconds for a connection to be made")
    request_timeout_s: float = Field(default=300.0, gt=0, description="Seconds for one request and its whole reply")
    max_retries: int = Field(default=5, ge=0, description="Repetitions of a request after passing failures")
    backoff_s: float = Field(default=1.0, gt=0, description="Seconds before the first repetition; doubles each time")
    max_wait_s: float = Field(default=60.0, gt=0, description="Longest wait before a repetition")
    give_up_s: float = Field(
        default=600.0, gt=0, description="Seconds after which a failing request is not repeated any more"
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = Field(
        default=None, description="How the server calls the token limit (default: max_tokens; OpenAI's own differs)"
    )
    omit: tuple[Literal["temperature", "top_p", "seed", "parallel_tool_calls"], ...] = Field(
        default=(), description="Fields that the model refuses and that are not to be sent"
    )
    thoughts_field: Literal["reasoning_content", "reasoning"] | None = Field(
        default=None,
        description="Field of a message that takes a model's earlier thoughts back, which some models want between "
        "calls (default: thoughts are not sent back)",
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Further fields of every request")
    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="Model -> {input, output, cached_input}: US dollars for a million tokens",
    )

    @property
    def host(self) -> str:
        """Where the key goes."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def limit_field(self) -> str:
        """How the token limit of a reply is called: OpenAI's newer models refuse `max_tokens`."""
        return self.max_tokens_field or ("max_completion_tokens" if self.host == OPENAI_HOST else "max_tokens")

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("must be printable ASCII without spaces")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an address such as http://127.0.0.1:8000/v1")
        _ = parts.port  # raises ValueError for one that is no number
        if parts.username or parts.password:
            raise ValueError("must not hold a key or password; use api_key_env")
        if parts.scheme == "http" and parts.hostname == OPENAI_HOST:
            raise ValueError("must begin with https: the key would be sent unencrypted")
        if parts.query or parts.fragment:
            raise ValueError("must end with the path, such as /v1")
        url = url.rstrip("/")
        if url.endswith("/chat/completions"):
            raise ValueError("must be the address without /chat/completions")
        return url

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours_alone(cls, body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OURS & body.keys()):
            raise ValueError(f"must not hold {', '.join(taken)}: other settings decide that")
        try:
            json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:  # dates and NaN, which settings files can write
            raise ValueError(f"must be JSON: {error}") from error
        return body
