"""Options of the `openai` engine."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from finqa_cli.errors import ConfigError
from finqa_plugins.engines._http.config import OMITTABLE, OPENAI_HOST, ChatServerConfig, ServerConfig

OURS = frozenset(
    (*OMITTABLE, "model", "messages", "tools", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options")
)
"""Fields of a request that other settings determine."""


CHAT_ONLY = frozenset(
    ("max_tokens_field", "omit", "thoughts_field", "extra_body", "system_message", "roles", "replies")
)
"""Options without meaning for token ids, or that would change the distribution; `omit` may then name `seed` only."""


class OpenAIEngineConfig(ChatServerConfig):
    """Options of the `openai` engine."""

    base_urls: tuple[str, ...] = Field(
        default=(), description="URLs with one server per replica (generation.engine_replicas), instead of base_url"
    )

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = Field(
        default=None, description="Name of the field for the token limit (default: max_tokens; OpenAI uses another)"
    )
    omit: tuple[Literal["temperature", "top_p", "seed", "parallel_tool_calls"], ...] = Field(
        default=(),
        description="Fields that are not sent because the model rejects them; also seed, because vLLM samples "
        "seeded requests one by one",
    )
    thoughts_field: Literal["reasoning_content", "reasoning"] | None = Field(
        default=None,
        description="Field of a message for the model's earlier reasoning, which some models need between calls "
        "(default: reasoning is not sent back)",
    )
    extra_body: dict[str, Any] = Field(default_factory=dict, description="Additional fields of every request")
    system_message: Literal["send", "fold"] = Field(
        default="send",
        description="`fold` puts the system message before the first user message, for models without a system role",
    )
    roles: Literal["as_sent", "alternate"] = Field(
        default="as_sent", description="`alternate` joins neighbouring messages of one role, for strict chat templates"
    )

    adapter_paths: dict[str, str] = Field(
        default_factory=dict,
        description="Local folder -> path of the same folder on the server, if file systems differ; for adapters",
    )
    load_timeout_s: float = Field(
        default=120.0, gt=0, description="Timeout for loading an adapter on the server, in seconds"
    )
    probe_tolerance: float | None = Field(
        default=None,
        gt=0,
        description="Largest difference (nats) of any token between the server's log-probabilities and the learner's "
        "after a sync, 1e-4 where both compute in float32 (default: measured on the first version)",
    )

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all servers."""
        return self.base_urls or (self.base_url,)

    def of_replica(self, replica: int, replicas: int) -> OpenAIEngineConfig:
        """The options of one replica, with its own address.

        Raises:
            ConfigError: There is not one address for each replica.
        """
        addresses = self.addresses
        if len(addresses) != replicas:
            raise ConfigError(
                f"engine.options names {len(addresses)} server(s), but there are {replicas} replicas.",
                remedy=f"--engine-replicas {len(addresses)}, or base_urls with one address for each",
            )
        return self.model_copy(update={"base_url": addresses[replica], "base_urls": ()})

    @property
    def limit_field(self) -> str:
        """Name of the request field for the token limit: OpenAI's newer models refuse `max_tokens`."""
        return self.max_tokens_field or ("max_completion_tokens" if self.host == OPENAI_HOST else "max_tokens")

    @field_validator("omit", "base_urls", mode="before")
    @classmethod
    def _separated_by_commas(cls, given: Any) -> Any:
        return [item.strip() for item in given.split(",") if item.strip()] if isinstance(given, str) else given

    @field_validator("base_urls")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(ServerConfig(base_url=url).base_url for url in urls)

    @model_validator(mode="after")
    def _one_kind_of_address(self) -> OpenAIEngineConfig:
        if self.base_urls and "base_url" in self.model_fields_set:
            raise ValueError("set base_url or base_urls, not both")
        return self

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours_alone(cls, body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OURS & body.keys()):
            raise ValueError(f"must not hold {', '.join(taken)}: other settings determine them")
        try:
            json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:  # dates and NaN, which settings files can write
            raise ValueError(f"must be JSON: {error}") from error
        return body
