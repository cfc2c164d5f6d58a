"""What a server means by an answer that is not a completion, and the error that names the fix. Pure.

Servers word the same refusal differently, so machine-readable facts come first: status, code, field, numbers. Words
decide only what these leave open, by the ten patterns of `WORDS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from finqa_cli import backoff
from finqa_cli.documents import parse_json
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    EngineError,
    FinqaError,
    ServiceUnavailableError,
    UnreachableEngineError,
)
from finqa_plugins.engines._http.config import OMITTABLE, ServerConfig, key_remedy

PASSING = (408, 409, 425, 429)

_CONTEXT_CODES = ("context_length_exceeded", "context_window_exceeded", "exceed_context_size_error")
_FIELD_CODES = ("unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden")
_LIMIT_CODES = ("rate_limit_exceeded", "rate_limit_error")
_MODEL_CODES = ("model_not_found", "not_found_error", "DeploymentNotFound")

WORDS = {
    "length": r"\b(token|prompt|input|context|sequence)",
    "excess": r"exceed|\btoo (long|large|many)|\blonger\b|greater than|reduce|length should be|must (be|have) (<|less)"
    r"|maximum context",
    "model": r"model.{0,200}not (found|exist|available)|(not a valid|unknown|invalid|no such) model",
    "tools": r"(tools?|functions?)\b.{0,30}(requires|support)|support.{0,12} (tools?|functions?)\b",
    "credit": r"insufficient.{0,10}(quota|balance|credit|fund)|\bcredit balance",
    "key": r"api[ _]key",
    "flagged": r"moderation|flagged",
    "unreadable": r"parsing tool call|parse input at",
    "system": r"system (role|message|prompt|instruction)s?\b.{0,40}(not|n't|un)|unsupported.{0,20}system",
    "roles": r"\balternat",
}
"""What the words of a refusal can say that status, code, field and numbers do not."""

_SAYS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in WORDS.items()}
_REPLY = re.compile(r"max_\w*tokens|completion tokens", re.IGNORECASE)
_CONVERSATION = re.compile(r"context|prompt|input|messages", re.IGNORECASE)
_RATE = re.compile(r"per (minute|hour|day)|\b[TR]P[MD]\b", re.IGNORECASE)
_LIMIT = re.compile(r"context (?:length|size|window)[^0-9]{0,20}(\d+)", re.IGNORECASE)
_PROMPT = re.compile(
    r"(\d+) (?:in the messages|of text input|(?:input|prompt) tokens|tokens (?:from|in) the (?:input|messages|prompt))"
    r"|messages resulted in (\d+)",
    re.IGNORECASE,
)
_EXTRA = re.compile(r"extra_forbidden.{0,60}?['\"]body['\"], ['\"](\w+)['\"]")
_SUM = re.compile(r"(\d+) \+ \d+ > (\d+)")
_NUMBER = re.compile(r"(?<![\w.])\d{2,9}(?![\w.]*\w)")
_WAIT = re.compile(r"(?:try again|retry)\D{0,20}?(\d+(?:\.\d+)?) ?(ms|s|m)", re.IGNORECASE)
_MARKUP = re.compile(r"<[^<>]*>")


class Meaning(Enum):
    """Why a server refused: one member for each different reaction."""

    UNREADABLE = auto()
    KEY = auto()
    QUOTA = auto()
    MODEL = auto()
    TOOLS = auto()
    FIELD = auto()
    ADDRESS = auto()
    CONTEXT = auto()
    LIMIT = auto()
    PASSING = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error reply.

    Attributes:
        status: HTTP status.
        text: The server's words on one line, at most 400 characters.
        code: The server's name for the error; may be empty.
        field: The field of the request that it is about; may be empty.
        retry_after_s: Seconds that it asks us to wait; None if it does not report it.
        room: Tokens left for a completion, if the server reports the lengths of prompt and context; may be negative.
        written: What the model wrote, where the server could not read its tool call and hands it over (Groq).
    """

    status: int
    text: str
    code: str = ""
    field: str = ""
    retry_after_s: float | None = None
    room: int | None = None
    written: str = ""

    def says(self, what: str) -> bool:
        """Whether the text has the words of a pattern of `WORDS`."""
        return bool(_SAYS[what].search(self.text))

    def _is_too_long(self) -> bool:
        """Whether the words say that the conversation is too long, and not the reply that is asked for."""
        if not (self.says("length") and self.says("excess")):
            return False
        if self.status in PASSING or self.status >= 500:
            return "context" in self.text.lower()
        return not _REPLY.search(self.text) or bool(_CONVERSATION.search(self.text))

    @property
    def meaning(self) -> Meaning:
        """The text is examined before the status, because servers use different statuses for the same refusal."""
        if self.code == "tool_use_failed" or self.says("unreadable"):  # first: such a text repeats what the model wrote
            return Meaning.UNREADABLE
        if self.code in _CONTEXT_CODES:
            return Meaning.CONTEXT
        if self.status == 402 or self.code == "insufficient_quota" or self.says("credit"):
            return Meaning.QUOTA
        if self.status == 403 and self.says("flagged"):  # OpenRouter: it rejects one prompt, not the key
            return Meaning.OTHER
        if self.status in (401, 403) or (self.status == 400 and self.says("key")):
            return Meaning.KEY
        if self.status == 429 or self.code in _LIMIT_CODES or (self.status == 413 and _RATE.search(self.text)):
            return Meaning.LIMIT
        if self.field in OMITTABLE or (self.field and self.code in _FIELD_CODES):
            return Meaning.FIELD
        if self.status == 413 or self._is_too_long():
            return Meaning.CONTEXT
        if self.status in PASSING or self.status >= 500:
            return Meaning.PASSING
        if self.says("tools"):
            return Meaning.TOOLS
        if self.code in _MODEL_CODES or self.says("model"):
            return Meaning.MODEL
        return Meaning.ADDRESS if self.status in (404, 405) or self.status < 400 else Meaning.OTHER


def read_refusal(
    status: int, headers: Mapping[str, str], text: str, document: Mapping[str, Any] | None, now: datetime | None = None
) -> Refusal:
    """The refusal in an error reply; without JSON only its text is known.

    OpenAI's form is `{"error": {"message", "type", "param", "code"}}`; older vLLM sends the inner object alone,
    FastAPI `{"detail": ...}`, Ollama may send `{"error": "text"}`. An error under status 200 (llama.cpp, OpenRouter)
    gets the status that it names, or 502.
    """
    outer = document or _first_of_list(text)
    inner = outer.get("error", outer)
    facts: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {"message": inner}
    words = facts.get("message") or facts.get("detail") or text
    words = one_line(words if isinstance(words, str) else str(words))
    code = next((str(facts[name]) for name in ("code", "type") if isinstance(facts.get(name), str)), "")
    if facts.get("type") in _CONTEXT_CODES:  # llama.cpp: `code` repeats the status
        code = str(facts["type"])
    field = one_line(str(facts.get("param") or ""))
    written = facts.get("failed_generation")
    if not field:
        field = next((name for name in OMITTABLE if re.search(rf"['\"`]{name}['\"`]", words)), "")
    if extra := _EXTRA.search(words):  # Mistral, and others that check with pydantic
        code, field = "extra_forbidden", extra[1]
    if status == 200:
        named = facts.get("code")
        status = named if isinstance(named, int) and 400 <= named < 600 else 502
    return Refusal(
        status=status,
        text=words,
        code=code,
        field=field,
        retry_after_s=next((s for s in (retry_after_s(headers, now), _wait_in(text or words)) if s is not None), None),
        room=_room(facts, words),
        written=written if isinstance(written, str) else "",
    )


def _first_of_list(text: str) -> Mapping[str, Any]:
    """The first object of a reply that is a list, as Gemini answers; empty for other replies."""
    if not text.lstrip().startswith("["):
        return {}
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    return found[0] if found and isinstance(found[0], dict) else {}


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds to wait by `retry-after-ms` (OpenAI) or `Retry-After`: seconds or an HTTP date (RFC 9110, 10.2.3)."""
    milliseconds = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", milliseconds):
        return float(milliseconds) / 1000.0
    return backoff.retry_after_s(headers.get("retry-after"), now)


def _wait_in(text: str) -> float | None:
    """Seconds to wait as an error's text says: `try again in 7.66s`, `"retryDelay": "26s"`."""
    if (found := _WAIT.search(text)) is None:
        return None
    return float(found[1][:9]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[found[2].lower()]


def one_line(text: str) -> str:
    """The start of a reply as one printable line of at most 400 characters: proxies answer with whole HTML pages."""
    words = _MARKUP.sub(" ", text[:4000])
    line = " ".join("".join(one if one.isprintable() else " " for one in words).split())
    return line if len(line) <= 400 else line[:397] + "..."


def _room(facts: Mapping[str, Any], words: str) -> int | None:
    limit, prompt = facts.get("n_ctx"), facts.get("n_prompt_tokens")  # llama.cpp
    if isinstance(limit, int) and isinstance(prompt, int):
        return limit - prompt
    if added := _SUM.search(words):  # Anthropic: prompt + limit > context
        return int(added[2][:12]) - int(added[1][:12])
    found_limit, found_prompt = _LIMIT.search(words), _PROMPT.search(words)
    if found_limit is None or found_prompt is None:
        return None
    return int(found_limit[1][:12]) - int((found_prompt[1] or found_prompt[2])[:12])


def room_of(words: str, limit: int, prompt: int) -> int | None:
    """Tokens left for a completion by the numbers in a refusal, whatever its words; None if they do not tell.

    The numbers are those of context and prompt, beside the limit that was requested and sums of them.

    Args:
        words: The refusal.
        limit: The requested limit.
        prompt: Estimated tokens of the prompt; the number next to it is taken as the real one.
    """
    numbers = {int(number) for number in _NUMBER.findall(words.replace(",", ""))} - {limit}
    numbers -= {first + limit for first in numbers}
    if len(numbers) != 2:
        return None
    real = min(numbers, key=lambda number: abs(number - prompt))
    (context,) = numbers - {real}
    return context - real if abs(real - prompt) < max(real, prompt) / 2 else None


def reply_limit_of(words: str, limit: int) -> int | None:
    """Most tokens of a reply by a refusal of the requested limit: the one smaller number beside it; None without one.

    Args:
        words: The refusal.
        limit: The requested limit.
    """
    if not _REPLY.search(words):
        return None
    numbers = {int(number) for number in _NUMBER.findall(words.replace(",", ""))}
    smaller = [number for number in numbers - {limit} if number < limit]
    return smaller[0] if limit in numbers and len(numbers) == 2 and len(smaller) == 1 else None


DOCTOR = "finqa doctor, with the same settings"
NAME_MODEL = "--set engine.options.model=NAME with a name that the server knows"
SLOWER = "--set engine.options.requests_per_minute=60, fewer engine.options.max_concurrent, or a higher limit"
SERVE_TOOLS = (
    "start the server with tool calls: vllm serve ... --enable-auto-tool-choice --tool-call-parser hermes, "
    "llama-server --jinja; or choose a model that supports them"
)


class PromptTooLongError(Exception):
    """The conversation is longer than the model's context: the episode's own limit, no fault.

    Attributes:
        room: Tokens left for a completion, if the server reports it: the prompt itself fits when it is positive.
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


_UNKNOWN = Refusal(status=0, text="")


class RefusedRequestError(EngineError):
    """The server refused one request, for a reason that it alone knows.

    Attributes:
        refusal: What the server answered.
    """

    def __init__(self, message: str, refusal: Refusal = _UNKNOWN, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.refusal = refusal


class RefusedFieldError(ConfigError):
    """The server refuses a field that every request has.

    Attributes:
        refusal: What the server answered.
    """

    def __init__(self, message: str, refusal: Refusal = _UNKNOWN, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.refusal = refusal


class NoAnswerError(EngineError):
    """No usable answer after all retries, for a reason other than a rate limit: the server is gone, hung or broken."""


class RateLimitError(EngineError):
    """The server's rate limit was exceeded in all tries."""


class UnknownModelError(ConfigError):
    """The server does not have the model, or no longer has it: a restarted server has lost its adapters."""


class ControlError(EngineError):
    """The server refused a call that is not a completion.

    Attributes:
        refusal: What the server answered.
    """

    def __init__(self, message: str, refusal: Refusal) -> None:
        super().__init__(message)
        self.refusal = refusal


def refused(
    refusal: Refusal, config: ServerConfig, *, model: str = "", known: tuple[str, ...] = (), path: str = ""
) -> FinqaError:
    """The error for a refusal that a retry would not change.

    Errors of one episode are `EngineError`s; those that every episode would meet end the run.
    """
    said = f"{config.base_url}: {refusal.text or 'no reason given'} (HTTP {refusal.status})"
    match refusal.meaning:
        case Meaning.KEY:
            return AuthenticationError(f"The server rejected the API key. {said}", remedy=key_remedy(config))
        case Meaning.QUOTA:
            return ServiceUnavailableError(
                f"The account at the server has no credit left. {said}", remedy="check plan and billing of the account"
            )
        case Meaning.MODEL:
            names = f" It serves: {', '.join(known[:20])}." if known else ""
            return UnknownModelError(f"The server has no model {model!r}.{names} {said}", remedy=NAME_MODEL)
        case Meaning.TOOLS:
            return ConfigError(f"The server does not support tool calls for {model!r}. {said}", remedy=SERVE_TOOLS)
        case Meaning.FIELD:
            return RefusedFieldError(
                f"The model {model!r} rejects {refusal.field}. {said}", refusal, remedy=_field_remedy(refusal)
            )
        case Meaning.ADDRESS:
            return ConfigError(
                f"There is no {path.strip('/').replace('/', ' ')} API at {said}",
                remedy="--set engine.options.base_url=..., which ends in /v1 for most servers",
            )
        case _:
            return RefusedRequestError(f"The server rejected the request. {said}", refusal, remedy=DOCTOR)


def exhausted(reason: str, limited: bool, tries: int, config: ServerConfig) -> EngineError:
    """The error after the last retry."""
    times = f"{tries} {'try' if tries == 1 else 'tries'}"
    if limited:
        return RateLimitError(f"The rate limit of {config.base_url} was exceeded in {times}: {reason}", remedy=SLOWER)
    return NoAnswerError(f"No answer from {config.base_url} after {times}: {reason}", remedy=DOCTOR)


def away(error: NoAnswerError) -> UnreachableEngineError:
    """The error for a server that does not answer when it should load a version: it ends the run, not one episode."""
    return UnreachableEngineError(error.message, remedy=error.remedy)


def unreachable(reason: str, config: ServerConfig) -> ServiceUnavailableError:
    """The error for a server that does not answer at start-up."""
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
