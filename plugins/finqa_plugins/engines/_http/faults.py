"""From a server's refusal to the error that says what mends it. Pure."""

from __future__ import annotations

import json

from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    EngineError,
    FinqaError,
    ServiceUnavailableError,
    UnreachableEngineError,
)
from finqa_plugins.engines._http.api_access import key_remedy
from finqa_plugins.engines._http.config import OMITTABLE, ServerConfig
from finqa_plugins.engines._http.refusals import Meaning, Refusal

DOCTOR = "finqa doctor with the same settings"
NAME_MODEL = "--set engine.options.model=NAME with a name that the server knows"
SLOWER = "--set engine.options.requests_per_minute=60, fewer engine.options.max_concurrent, or a higher limit"
SERVE_TOOLS = (
    "start the server with tool calls: vllm serve ... --enable-auto-tool-choice --tool-call-parser hermes, "
    "llama-server --jinja; or choose a model that has them"
)


class PromptTooLongError(Exception):
    """The conversation is longer than the model's context: the episode's own limit, no fault.

    Attributes:
        room: Tokens left for a completion, where the server says so: the prompt itself fits when it is positive.
    """

    def __init__(self, room: int | None) -> None:
        super().__init__("the conversation is longer than the model's context")
        self.room = room


class UnreadableCallError(Exception):
    """The server could not read the tool call that the model wrote: the model's mistake, no fault.

    Attributes:
        reason: The server's words.
        written: What the model wrote, where the server hands it over.
    """

    def __init__(self, reason: str, written: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.written = written


class NoAnswerError(EngineError):
    """No usable answer came, repetitions included, and no rate limit was the reason: gone, hung or broken."""


class UnknownModelError(ConfigError):
    """The server does not have the model, or not any more: a restarted one has forgotten its adapters."""


class ControlError(EngineError):
    """The server refused a call that is no completion.

    Attributes:
        refusal: Its words.
    """

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message)
        self.refusal = refusal


def refused(
    refusal: Refusal, config: ServerConfig, *, model: str = "", known: tuple[str, ...] = (), path: str = ""
) -> FinqaError:
    """The error of a refusal that is not worth a repetition.

    Errors of one episode are `EngineError`s; those that every episode would meet end the run.
    """
    said = f"{config.base_url}: {refusal.text or 'no reason given'} (HTTP {refusal.status})"
    match refusal.meaning:
        case Meaning.KEY:
            return AuthenticationError(f"The server refused the API key. {said}", remedy=key_remedy(config))
        case Meaning.QUOTA:
            return ServiceUnavailableError(
                f"The account at the server is used up. {said}", remedy="check plan and billing of the account"
            )
        case Meaning.MODEL:
            names = f" It serves: {', '.join(known[:20])}." if known else ""
            return UnknownModelError(f"The server has no model {model!r}.{names} {said}", remedy=NAME_MODEL)
        case Meaning.TOOLS:
            return ConfigError(f"The server takes no tool calls for {model!r}. {said}", remedy=SERVE_TOOLS)
        case Meaning.FIELD:
            return ConfigError(f"The model {model!r} refuses {refusal.field}. {said}", remedy=_field_remedy(refusal))
        case Meaning.ADDRESS:
            return ConfigError(
                f"There is no {path.strip('/').replace('/', ' ')} API at {said}",
                remedy="--set engine.options.base_url=..., which ends in /v1 for most servers",
            )
        case _:
            return EngineError(f"The server refused the request. {said}", remedy=DOCTOR)


def exhausted(reason: str, limited: bool, tries: int, config: ServerConfig) -> EngineError:
    """The error after the last repetition."""
    times = f"{tries} {'try' if tries == 1 else 'tries'}"
    if limited:
        return EngineError(f"The rate limit of {config.base_url} held for {times}: {reason}", remedy=SLOWER)
    return NoAnswerError(f"No answer from {config.base_url} after {times}: {reason}", remedy=DOCTOR)


def away(error: NoAnswerError) -> UnreachableEngineError:
    """The error of a server that does not answer when it is to load a version: the run's, not an episode's."""
    return UnreachableEngineError(error.message, remedy=error.remedy)


def unreachable(reason: str, config: ServerConfig) -> ServiceUnavailableError:
    """The error before the first request."""
    return ServiceUnavailableError(
        f"There is no server at {config.base_url}: {reason}.",
        remedy="start it, or give its address with --set engine.options.base_url=http://HOST:PORT/v1",
    )


def _field_remedy(refusal: Refusal) -> str:
    if refusal.field in ("max_tokens", "max_completion_tokens"):
        other = "max_completion_tokens" if refusal.field == "max_tokens" else "max_tokens"
        return f"--set engine.options.max_tokens_field={other}"
    if refusal.field in OMITTABLE:
        return f"--set 'engine.options.omit={json.dumps([refusal.field])}'"
    return "take it out of engine.options.extra_body"
