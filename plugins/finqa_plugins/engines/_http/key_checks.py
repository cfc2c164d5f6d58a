"""Whether there is a key for an engine that asks a server: the same check for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from finqa_cli.errors import AuthenticationError
from finqa_cli.types import Check
from finqa_plugins.engines._http.config import ServerConfig, find_key

C = TypeVar("C", bound=ServerConfig)


def key_checks(
    engine: str,
    settings: Mapping[str, Any],
    config_class: type[C],
    *,
    addresses: Callable[[C], Iterable[str]] = lambda config: (config.base_url,),
    another: str = "",
) -> list[Check]:
    """Return what is wrong with options or keys; empty if nothing is.

    Args:
        engine: Name of the engine.
        settings: Settings of the run; their options count if they name this engine.
        config_class: Class of the options.
        addresses: Function from the options to the addresses that need a key.
        another: What the fix of a missing key adds.
    """
    options = settings["engine"]["options"] if settings["engine"]["name"] == engine else {}
    if options.get("api_key"):
        return []
    try:
        config = config_class.model_validate(options)
    except ValidationError as error:
        detail = f"wrong options: {error.errors()[0]['msg']}"
        remedy = f"correct engine.options where they are set; `finqa plugins show {engine}` lists them"
        return [Check(name=engine, status="fail", detail=detail, remedy=remedy)]
    try:
        for address in addresses(config):
            find_key(config.model_copy(update={"base_url": address}))
    except AuthenticationError as error:
        detail = f"needs {config.api_key_env or config.key_variable}"
        return [Check(name=engine, status="fail", detail=detail, remedy=f"{error.remedy}{another}")]
    return []
