"""Logs: structlog to stderr, with one redaction step that every line passes.

`FINQA_LOG_LEVEL` (debug, info, warning, error; default warning) and `FINQA_LOG_FORMAT` (console or json) set them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from finqa_cli.errors import ConfigError
from finqa_cli.masking import MASK, is_secret

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")
SHORTEST_SECRET = 8


def configure(environment: Mapping[str, str] | None = None) -> None:
    """Set up structlog for this process.

    Raises:
        ConfigError: FINQA_LOG_LEVEL or FINQA_LOG_FORMAT has a value that does not exist.
    """
    variables = os.environ if environment is None else environment
    level = _one_of("FINQA_LOG_LEVEL", variables, LEVELS, default="warning")
    form = _one_of("FINQA_LOG_FORMAT", variables, FORMATS, default="console")
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            Redactor(variables),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=False,
    )


class Redactor:
    """Masks values under secret names, and the values of secret environment variables wherever they occur."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._secrets = tuple(
            value for name, value in variables.items() if is_secret(name) and len(value) >= SHORTEST_SECRET
        )

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A structlog processor."""
        return {name: self._clean(name, value) for name, value in event.items()}

    def _clean(self, name: str, value: Any) -> Any:
        if value and is_secret(name):
            return MASK
        if isinstance(value, Mapping):
            return {key: self._clean(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._clean("", item) for item in value]
        if isinstance(value, (str, BaseException)):
            text = str(value)
            for secret in self._secrets:
                text = text.replace(secret, MASK)
            return text
        return value


def _one_of(name: str, variables: Mapping[str, str], allowed: tuple[str, ...], *, default: str) -> str:
    value = variables.get(name, "").strip().lower() or default
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; it takes {', '.join(allowed)}.", remedy=f"unset {name}")
    return value


class _StderrLogger:
    """Writes to the `sys.stderr` of the moment, so that progress bars stay below the line."""

    def __init__(self, *_: object) -> None: ...

    def msg(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    debug = info = warning = warn = error = critical = exception = failure = fatal = log = msg
