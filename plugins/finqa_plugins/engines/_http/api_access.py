"""The API key: where it comes from and where it may go."""

from __future__ import annotations

import os

from pydantic import SecretStr

from finqa_cli.errors import AuthenticationError
from finqa_plugins.engines._http.config import LOOPBACK, OPENAI_HOST, ServerConfig

KEY_VARIABLE = "OPENAI_API_KEY"


def find_key(config: ServerConfig) -> SecretStr | None:
    """The key of the options, else of the variable that they name, else OPENAI_API_KEY; None for servers without.

    OPENAI_API_KEY is OpenAI's: unless it is named it goes to OpenAI and to this machine only, so that another
    server's address does not take it along.

    Raises:
        AuthenticationError: A named variable is not set, or what was found can be no key.
    """
    if config.api_key is not None:
        return _sound(config.api_key.get_secret_value(), "The option api_key")
    name = config.api_key_env or KEY_VARIABLE
    if config.api_key_env is None and config.host not in (OPENAI_HOST, *LOOPBACK):
        return None
    if value := os.environ.get(name, "").strip():
        return _sound(value, f"The variable {name}")
    if config.api_key_env is not None or config.host == OPENAI_HOST:
        raise AuthenticationError(
            f"No API key for {config.base_url}: the variable {name} is not set.", remedy=f"export {name}=..."
        )
    return None


def key_remedy(config: ServerConfig) -> str:
    """How to give another key."""
    if config.api_key is not None:
        return "give another key with engine.options.api_key"
    if config.api_key_env is None and config.host not in (OPENAI_HOST, *LOOPBACK):
        return f"export SERVER_KEY=... and --set engine.options.api_key_env=SERVER_KEY (not {KEY_VARIABLE} by itself)"
    return f"export {config.api_key_env or KEY_VARIABLE}=..."


def _sound(value: str, place: str) -> SecretStr:
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise AuthenticationError(
            f"{place} holds no API key: a key is printable ASCII without spaces.", remedy="copy the key again"
        )
    return SecretStr(value)
