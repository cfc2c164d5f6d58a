"""Logs: structlog to stderr. Secrets are masked in every line, and in the tracebacks of threads.

`FINQA_LOG_LEVEL` (debug, info, warning, error; default warning) and `FINQA_LOG_FORMAT` (console or json) configure it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from finqa_cli.errors import ConfigError, legible, printable
from finqa_cli.masking import Masker, masked

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")
ON, OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
"""Values of a variable that is on or off, in upper or lower case."""


def configure(environment: Mapping[str, str] | None = None) -> None:
    """Set up structlog for this process.

    Raises:
        ConfigError: FINQA_LOG_LEVEL, FINQA_LOG_FORMAT or FINQA_DEBUG has a value that is not allowed.
    """
    variables = os.environ if environment is None else environment
    level = _one_of("FINQA_LOG_LEVEL", variables, LEVELS, default="warning")
    _one_of("FINQA_DEBUG", variables, (*ON, *OFF), default="0")  # read where errors are printed
    form = _one_of("FINQA_LOG_FORMAT", variables, FORMATS, default="console")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_MaskedFormatter())
    if threading.excepthook is threading.__excepthook__:  # another program that calls finqa keeps its own
        threading.excepthook = _report_thread
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
    """Structlog processor that makes texts printable and masks secrets: by name, form, and values of variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._mask = Masker(variables)

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the event with secrets masked, and texts printable and not too long."""
        texts = {name: str(value) if isinstance(value, BaseException) else value for name, value in event.items()}
        return {
            name: masked(value, name, self._traceback if name == "exception" else self._text)
            for name, value in texts.items()
        }

    def _text(self, text: str) -> str:
        return legible(self._mask(text))

    def _traceback(self, text: str) -> str:
        return printable(self._mask(text))


class _MaskedFormatter(logging.Formatter):
    """Formatter for log records of libraries, with tracebacks, in Python's handler of last resort."""

    def format(self, record: logging.LogRecord) -> str:
        return Masker()(printable(super().format(record)))


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """Print the exception of a thread as Python does, but without secrets."""
    if failure.exc_type is SystemExit or failure.exc_value is None:
        return
    name = failure.thread.name if failure.thread else "unknown"
    lines = traceback.format_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
    print(Masker()(printable(f"Exception in thread {name}:\n{''.join(lines)}")), end="", file=sys.stderr, flush=True)


def _one_of(name: str, variables: Mapping[str, str], allowed: tuple[str, ...], *, default: str) -> str:
    value = variables.get(name, "").strip().lower() or default
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}; allowed values are {', '.join(allowed)}.", remedy=f"unset {name}")
    return value


class _StderrLogger:
    """Writes to the current `sys.stderr`, which a progress bar may replace to stay below the line."""

    def __init__(self, *_: object) -> None: ...

    def msg(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    debug = info = warning = warn = error = critical = exception = failure = fatal = log = msg
