"""Options of the `anthropic` engine."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from finqa_plugins.engines._http.config import ChatServerConfig

VERSION = "2023-06-01"
"""Version of the API, sent with every request."""


class AnthropicConfig(ChatServerConfig):
    """Options of the `anthropic` engine."""

    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"

    base_url: str = Field(
        default="https://api.anthropic.com/v1", description="Address of the API, such as https://api.anthropic.com/v1"
    )
    api_key_env: str | None = Field(
        default=None,
        min_length=1,
        description="Variable with the API key (default: ANTHROPIC_API_KEY, which is sent to Anthropic and to this "
        "machine only)",
    )
    thinking_tokens: int | None = Field(
        default=None,
        ge=1024,
        description="Tokens for reasoning before each reply, beside --max-gen-tokens; temperature is then the model's "
        "own (default: no reasoning)",
    )
    cache: bool = Field(
        default=True, description="Cache the conversation on the server between the turns of an episode"
    )
    omit: tuple[Literal["temperature"], ...] = Field(
        default=(), description="Fields that are not sent because the model rejects them"
    )

    @field_validator("omit", mode="before")
    @classmethod
    def _separated_by_commas(cls, given: Any) -> Any:
        return [item.strip() for item in given.split(",") if item.strip()] if isinstance(given, str) else given

    def key_headers(self, key: str) -> dict[str, str]:
        """The headers of a request with this key."""
        return {"x-api-key": key}

    @property
    def extra_headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"anthropic-version": VERSION}
