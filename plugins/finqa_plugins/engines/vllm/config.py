"""Options of the `vllm` engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from finqa_plugins.engines._http.config import ServerConfig

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank (vllm/config/lora.py, MaxLoRARanks)."""

OURS = frozenset(
    (
        *("--host", "--port", "--uds", "--api-key", "--ssl-keyfile", "--ssl-certfile", "--root-path", "--config"),
        *("--model", "--model-tag", "--served-model-name", "--tokenizer", "--dtype", "--max-model-len"),
        *("--tensor-parallel-size", "-tp", "--gpu-memory-utilization", "--kv-cache-memory-bytes", "--max-num-seqs"),
        *("--enable-lora", "--max-lora-rank", "--max-loras", "--max-cpu-loras", "--lora-modules"),
        *("--logprobs-mode", "--max-logprobs", "--enable-prefix-caching", "--enforce-eager", "--enable-sleep-mode"),
        *("--seed", "--generation-config", "--data-parallel-size", "-dp", "--api-server-count", "--disable-log-stats"),
        *("--enable-prompt-tokens-details", "--headless", "--hf-overrides.head-dtype"),
    )
)
"""Arguments that other options and settings determine, or with which the engine could not control the server.

`--hf-overrides` with JSON is one: it would be replaced by ours. `--hf-overrides.NAME=VALUE` are added to it.
"""

OUR_VARIABLES = frozenset(("CUDA_VISIBLE_DEVICES", "VLLM_API_KEY", "VLLM_SERVER_DEV_MODE"))
"""Variables that other options determine, or that give others access to the server."""

_STARTED = frozenset(
    (
        *("python", "dtype", "head_dtype", "max_num_seqs", "max_loras", "enforce_eager", "extra_args"),
        *("prefix_caching", "kv_cache_gb", "start_timeout_s", "health_timeout_s", "restarts", "env"),
    )
)
"""Options of a server that the engine starts."""


class VllmEngineConfig(BaseModel):
    """Options of the `vllm` engine."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: str | None = Field(None, description="Running server, such as http://127.0.0.1:8000/v1; unset: start one")
    urls: tuple[str, ...] = Field((), description="Running servers, one per engine replica")
    api_key_env: str | None = Field(None, min_length=1, description="Variable with the key of running servers")
    python: Path | None = Field(
        None, description="Interpreter with vllm; unset: that of `finqa setup vllm`, else finqa's own"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Data type of the model; auto: bfloat16 on a GPU, else float32, as for the learner"
    )
    head_dtype: Literal["float32", "model"] = Field(
        "float32",
        description="Data type of the logits, as the learner's head_dtype; model: that of the rest of the model",
    )
    max_num_seqs: int | None = Field(
        None, ge=1, description="Maximum number of sequences per batch; unset: 256 on a GPU, as the memory plan assumes"
    )
    max_loras: int | None = Field(
        None, ge=1, description="Maximum number of loaded adapters; unset: one more than the policy versions in use"
    )
    enforce_eager: bool | None = Field(
        None, description="No compilation and no CUDA graphs; unset: compiled on a GPU, else eager"
    )
    prefix_caching: bool = Field(True, description="Prefix caching: a turn computes only its new tokens")
    kv_cache_gb: float | None = Field(
        None,
        gt=0,
        description="Memory of the KV cache per device, in GB; unset: the memory that gpu_memory_utilization leaves, 1 "
        "without a GPU",
    )
    start_timeout_s: float = Field(
        900.0, gt=0, description="Timeout until a started server responds, in seconds; loading takes minutes"
    )
    request_timeout_s: float = Field(
        600.0, gt=0, description="Timeout of one completion, including its time in the server's queue, in seconds"
    )
    sync_timeout_s: float = Field(
        120.0, gt=0, description="Timeout for loading an adapter or weights, sleeping and waking, in seconds"
    )
    health_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds without a response, or without tokens for waiting requests, after which a server is "
        "considered hung",
    )
    restarts: int = Field(3, ge=0, description="Maximum number of restarts of a dead or hung server in a run")
    probe_tolerance: float | None = Field(
        None,
        gt=0,
        description="Largest difference (nats) of any token to the learner's log-probabilities after a sync; unset: "
        "1e-4 where both compute in float32, else measured: on average twice that of the first version, 0.04 to 0.2",
    )
    seeded: bool | None = Field(
        None,
        description="Send a seed with each request. Unset: yes, except to a single server at a URL. Without it, "
        "servers that were started with the same --seed sample the same completions",
    )
    max_concurrent: int = Field(
        1024, ge=1, description="Maximum number of simultaneous requests; vLLM queues the others"
    )
    extra_args: tuple[str, ...] = Field((), description="Additional arguments of `vllm serve`")
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Additional environment variables of the server; it does not inherit keys, tokens or proxies",
    )

    @field_validator("url", "urls")
    @classmethod
    def _are_addresses(cls, given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        if given is None or isinstance(given, str):
            return given and _address(given)
        return tuple(_address(one) for one in given)

    @field_validator("extra_args")
    @classmethod
    def _leave_ours_alone(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        for argument in arguments:
            name = argument.partition("=")[0].replace("_", "-")
            positive = name.replace("--no-", "--", 1)
            if taken := next((ours for ours in sorted(OURS) if ours in (name, positive) or _short_for(name, ours)), ""):
                raise ValueError(f"must not hold {argument}: other settings decide {taken}")
        return arguments

    @field_validator("env")
    @classmethod
    def _leaves_our_variables_alone(cls, env: dict[str, str]) -> dict[str, str]:
        if taken := sorted(OUR_VARIABLES & env.keys()):
            raise ValueError(f"must not hold {', '.join(taken)}: other options determine them")
        return env

    @model_validator(mode="after")
    def _fit_together(self) -> VllmEngineConfig:
        if self.url and self.urls:
            raise ValueError("set url or urls, not both")
        if self.url or self.urls:
            if wrong := sorted(_STARTED & self.model_fields_set):
                raise ValueError(
                    f"{', '.join(wrong)} apply to servers that the engine starts; this server is already running"
                )
        elif self.api_key_env is not None:
            raise ValueError("api_key_env applies to running servers: set url too")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """The running servers; empty when the engine starts its own."""
        return (self.url,) if self.url else self.urls

    @property
    def device_use(self) -> Literal["none", "several"]:
        """CUDA devices of a replica, for the placement plan."""
        return "none" if self.addresses else "several"

    @property
    def instead_of_bfloat16(self) -> str:
        """Option for devices without bfloat16, if the options would compute in it there; else empty."""
        return "dtype=float16" if self.dtype in ("auto", "bfloat16") else ""

    def connection(self, base_url: str) -> ServerConfig:
        """Options of the connection to a server.

        There is one retry only: vLLM has no rate limits, and the supervisor restarts a dead server.
        """
        return ServerConfig(
            base_url=base_url,
            api_key_env=self.api_key_env,
            max_concurrent=self.max_concurrent,
            request_timeout_s=self.request_timeout_s,
            max_retries=1,
            backoff_s=0.5,
            give_up_s=self.request_timeout_s,
        )


def _address(url: str) -> str:
    checked = ServerConfig(base_url=url).base_url
    return checked if checked.endswith("/v1") else f"{checked}/v1"


def _short_for(name: str, ours: str) -> bool:
    """Whether `name` may abbreviate `ours`: argparse accepts every unambiguous prefix of a long argument."""
    return name.startswith("--") and len(name) > 4 and ours.startswith(name)
