"""Which of the two engines a run gets: chat, or tokens where it trains or plays an adapter."""

from __future__ import annotations

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import ConfigError
from finqa_plugins.engines._http.api_access import find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.served_adapters import vocabulary
from finqa_plugins.engines._http.served_engine import ServedTokenEngine
from finqa_plugins.engines._http.token_server import TokenServer
from finqa_plugins.engines.openai.config import CHAT_ONLY, OpenAIEngineConfig
from finqa_plugins.engines.openai.openai_engine import OpenAIEngine


def make_engine(config: OpenAIEngineConfig | None, context: EngineContext) -> OpenAIEngine | ServedTokenEngine:
    """The engine, not started.

    Raises:
        ConfigError: The options do not fit the number of replicas, or are for chat while the run needs tokens.
        AuthenticationError: The run needs tokens and the key is missing.
    """
    config = (config or OpenAIEngineConfig()).of_replica(context.replica, context.replicas)
    return _token_engine(config, context) if context.needs_tokens else OpenAIEngine(config, context)


def _token_engine(config: OpenAIEngineConfig, context: EngineContext) -> ServedTokenEngine:
    chat_only = sorted(CHAT_ONLY & config.model_fields_set - ({"omit"} if set(config.omit) <= {"seed"} else set()))
    if chat_only:
        raise ConfigError(
            f"engine.options.{chat_only[0]} is for chat; a run that trains or plays an adapter asks for token ids.",
            remedy=f"leave engine.options.{chat_only[0]} out",
        )
    if context.lora_rank < 1:
        raise ConfigError(
            "Engine 'openai' takes new weights as adapters, but --lora-rank 0 trains the whole model.",
            remedy="--lora-rank 16, or --engine vllm or transformers",
        )
    server = TokenServer(
        Client(config, find_key(config), seed=context.seed),
        model=config.model,
        folder=context.model,
        max_context=context.max_context,
        vocabulary=vocabulary(context.model),
        paths=config.adapter_paths,
        load_timeout_s=config.load_timeout_s,
        seeded="seed" not in config.omit,
    )
    price = config.prices.get(config.model or context.model)
    return ServedTokenEngine(server, context=context, tolerance=config.probe_tolerance or "measured", price=price)
