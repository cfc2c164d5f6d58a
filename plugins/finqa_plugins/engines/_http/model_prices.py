"""List prices of hosted models, for the cost of a run. The option `prices` replaces them, also from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.documents import parse_json, parse_toml
from finqa_cli.types.model_providers import provider_at
from finqa_plugins.engines._http.usage import Price

PRICES_OF = "2025-11"
"""Month of the table, which was not compared with the providers' pages since. Set `prices` where the sum matters."""

_PER_MILLION: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "openai": {
        "gpt-5": (1.25, 10.0, 0.125),
        "gpt-5.1": (1.25, 10.0, 0.125),
        "gpt-5-mini": (0.25, 2.0, 0.025),
        "gpt-5-nano": (0.05, 0.4, 0.005),
        "gpt-4.1": (2.0, 8.0, 0.5),
        "gpt-4.1-mini": (0.4, 1.6, 0.1),
        "gpt-4.1-nano": (0.1, 0.4, 0.025),
        "gpt-4o": (2.5, 10.0, 1.25),
        "gpt-4o-mini": (0.15, 0.6, 0.075),
        "o3": (2.0, 8.0, 0.5),
        "o4-mini": (1.1, 4.4, 0.275),
    },
    "anthropic": {
        "claude-opus-4-5": (5.0, 25.0, 0.5),
        "claude-opus-4-1": (15.0, 75.0, 1.5),
        "claude-sonnet-4-5": (3.0, 15.0, 0.3),
        "claude-sonnet-4": (3.0, 15.0, 0.3),
        "claude-haiku-4-5": (1.0, 5.0, 0.1),
        "claude-3-5-haiku": (0.8, 4.0, 0.08),
    },
    "google": {
        "gemini-2.5-pro": (1.25, 10.0, 0.125),
        "gemini-2.5-flash": (0.3, 2.5, 0.03),
        "gemini-2.5-flash-lite": (0.1, 0.4, 0.01),
    },
    "deepseek": {"deepseek-chat": (0.28, 0.42, 0.028), "deepseek-reasoner": (0.28, 0.42, 0.028)},
}
"""Provider -> model -> US dollars for a million tokens of prompt, completion and cached prompt, for short prompts."""

_DATED = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest|\d{3})$")
_CACHE_WRITE = {"anthropic": 1.25}
"""Factor on the price of a prompt for tokens that are written into the cache (for five minutes)."""


def listed_price(base_url: str, model: str) -> Price | None:
    """The list price of a model at a hosted provider, also under a dated name; None if it is not listed."""
    provider = provider_at(base_url)
    models = _PER_MILLION.get(provider.name, {}) if provider else {}
    found = models.get(model) or models.get(_DATED.sub("", model))
    if found is None or provider is None:
        return None
    factor = _CACHE_WRITE.get(provider.name, 1.0)
    return Price(input=found[0], output=found[1], cached_input=found[2], cache_write=found[0] * factor)


def read_prices(given: Any) -> Any:
    """The option `prices`: a mapping, the same as JSON text, or the path of a TOML or JSON file that contains it.

    Raises:
        ValueError: The file cannot be read, or contains something else.
    """
    if not isinstance(given, str):
        return given
    text = given.strip()
    try:
        if text.startswith("{"):
            return parse_json(text)
        file = Path(text).expanduser()
        content = file.read_text(encoding="utf-8")
        return parse_json(content) if file.suffix == ".json" else parse_toml(content)
    except (OSError, ValueError) as error:
        example = '{"my-model": {"input": 2.5, "output": 10}}'
        raise ValueError(f"must be a file of prices or a mapping such as {example}: {error}") from error
