"""What `PROVIDER/MODEL` as a target implies: engine, address, and the options of the provider's dialect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finqa_cli.errors import ConfigError
from finqa_cli.types.model_providers import ModelProvider, split_target

BASE_URL = "engine.options.base_url"


def provider_settings(target: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that a target with a provider implies; None for other targets.

    A path that exists is a path, and with another engine the target is a name of the hub or of that engine's server.

    Args:
        target: The target as it was typed.
        given: Dotted path -> value of the settings that the user gives with the target; they are not implied.

    Raises:
        ConfigError: The provider has an address for each account, and it is not set.
    """
    found = split_target(target)
    if found is None or Path(target).exists():
        return None
    provider, model = found
    if given.get("engine.name") not in (None, provider.engine):
        return None
    implied: dict[str, Any] = {"model.name": target, "engine.name": provider.engine, "engine.options.model": model}
    if BASE_URL not in given:
        implied[BASE_URL] = _address(provider)
    if not provider.needs_key and os.environ.get(provider.key_variable, "").strip():
        implied["engine.options.api_key_env"] = provider.key_variable
    implied |= {f"engine.options.{name}": value for name, value in provider.options.items()}
    return {path: value for path, value in implied.items() if path not in given}


def address_settings(given: Mapping[str, Any], target: str, base_url: str | None) -> dict[str, Any]:
    """Return the settings of `--base-url`: the address, and the engine unless the target or the user names one."""
    if base_url is None:
        return {}
    named = "engine.name" in given or split_target(target) is not None
    return {BASE_URL: base_url, **({} if named else {"engine.name": "openai"})}


def _address(provider: ModelProvider) -> str:
    given = os.environ.get(provider.url_variable, "").strip() if provider.url_variable else ""
    if given:
        url = given.rstrip("/")
        return url if url.endswith(provider.url_suffix) else url + provider.url_suffix
    if not provider.base_url:
        raise ConfigError(
            f"{provider.title} has an address for each account, and {provider.url_variable} is not set.",
            remedy=f"export {provider.url_variable}=https://NAME.openai.azure.com",
        )
    return provider.base_url
