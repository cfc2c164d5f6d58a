"""Checks of `finqa doctor` for engines on servers: whether one answers, accepts the key and knows the model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from finqa_cli.errors import AuthenticationError, ServiceUnavailableError
from finqa_cli.types import Check
from finqa_plugins.engines._http.config import LOOPBACK, ChatServerConfig, find_key
from finqa_plugins.engines._http.http_client import Client
from finqa_plugins.engines._http.refusals import NAME_MODEL

C = TypeVar("C", bound=ChatServerConfig)

DEADLINE_S = 5.0
"""Seconds for a request."""


def server_checks(
    engine: str,
    settings: Mapping[str, Any],
    config_class: type[C],
    *,
    addresses: Callable[[C], Iterable[str]] = lambda config: (config.base_url,),
) -> list[Check]:
    """Results of all checks.

    Args:
        engine: Name of the engine.
        settings: Those of the hook `doctor_checks`, with secrets masked.
        config_class: Class of the engine's options.
        addresses: Function from the options to the addresses of its servers.
    """
    given = settings["engine"]["options"]
    options = {name: value for name, value in given.items() if name != "api_key"}
    try:
        config = config_class.model_validate({**options, "request_timeout_s": DEADLINE_S})
    except ValidationError:
        return []  # the check of the settings reports wrong options
    if "api_key" in given:
        detail = "the key in the settings is not checked; set a variable instead to check it"
        remedy = "--set engine.options.api_key_env=NAME"
        return [Check(name=f"{engine} key", status="warn", detail=detail, remedy=remedy)]
    model = config.model or str(settings["model"]["name"])
    found: list[Check] = []
    for address in addresses(config):
        own = config.model_copy(update={"base_url": address})
        try:
            key = find_key(own)
            found += _plain_key(engine, own, key is not None)
            found += asyncio.run(_ask(engine, Client(own, key, seed=0), own, model))
        except AuthenticationError as error:
            found.append(Check(name=f"{engine} key", status="fail", detail=error.message, remedy=error.remedy))
    return found


def _plain_key(engine: str, config: ChatServerConfig, has_key: bool) -> list[Check]:
    if not has_key or config.base_url.startswith("https") or config.host in LOOPBACK:
        return []
    detail = f"the key is sent to {config.host} unencrypted"
    return [Check(name=f"{engine} key", status="warn", detail=detail, remedy="use an https address")]


async def _ask(engine: str, client: Client, config: ChatServerConfig, model: str) -> list[Check]:
    began = time.monotonic()
    try:
        cards = await client.listing()
    except ServiceUnavailableError as error:
        return [Check(name=f"{engine} server", status="fail", detail=error.message, remedy=error.remedy)]
    finally:
        await client.close()
    took_ms = 1000 * (time.monotonic() - began)
    reached = Check(name=f"{engine} server", status="ok", detail=f"{config.base_url} answered in {took_ms:.0f} ms")
    return [reached, _model_check(engine, model, None if cards is None else tuple(card.name for card in cards))]


def _model_check(engine: str, model: str, known: tuple[str, ...] | None) -> Check:
    """Whether the server lists the model; Ollama lists `NAME:latest` for NAME."""
    if not known:
        detail = f"the server lists no models, so whether it serves {model!r} shows with the first request"
        return Check(name=f"{engine} model", status="warn", detail=detail, remedy=NAME_MODEL)
    if model in known or f"{model}:latest" in known:
        return Check(name=f"{engine} model", status="ok", detail=f"{model} is served")
    names = ", ".join(known[:20])
    return Check(name=f"{engine} model", status="warn", detail=f"{model!r} is not among {names}", remedy=NAME_MODEL)
