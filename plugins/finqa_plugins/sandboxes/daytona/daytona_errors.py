"""What the SDK's exceptions mean: what to wait for, what to look up, and the message for the user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from daytona import (
    DaytonaAuthenticationError,
    DaytonaConflictError,
    DaytonaConnectionError,
    DaytonaError,
    DaytonaForbiddenError,
    DaytonaRateLimitError,
    DaytonaTimeoutError,
)

from finqa_cli import backoff
from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError, SandboxError, ServiceUnavailableError

KEYS_PAGE = "https://app.daytona.io/dashboard/keys"
LIMITS_PAGE = "https://app.daytona.io/dashboard/limits"
KEY_REMEDY = f"export DAYTONA_API_KEY=... with a key from {KEYS_PAGE}, then finqa doctor --sandbox daytona"
OTHER_QUOTA_REMEDIES = (
    "put more sessions on each sandbox (--sessions-per-sandbox 32), end strays (finqa sandbox reap --sandbox daytona), "
    f"or raise the tier at {LIMITS_PAGE}"
)
QUOTA_REMEDY = f"ask for fewer sandboxes (--sandboxes), {OTHER_QUOTA_REMEDIES}"
DOCTOR_REMEDY = "finqa doctor --sandbox daytona"

_QUOTA = re.compile(r"\b(limit|quota) exceeded|exceeds? .*\bquota\b|quota .*\bexhausted", re.I)
_SUSPENDED = re.compile(r"\bsuspended\b|insufficient (funds|credits?)|\bdepleted\b", re.I)
_PER_SANDBOX = re.compile(r"per[- ]sandbox", re.I)
_NO_RUNNER = re.compile(r"no available runners", re.I)
_PASSING = re.compile(r"no available runners|state change in progress", re.I)
_KEY = re.compile(r"dtn_\w+")
_MARKUP = re.compile(r"<[^>]*>")
_SDK_PREFIX = re.compile(r"^(Failed to [\w ]+: )+")
_TRANSPORT = re.compile(r" ssl:\w+ \[(.*)\]$")
_SCOPE = "-sandbox-create"


def status_of(error: DaytonaError) -> int:
    """HTTP status of the reply; 0 if there was none."""
    return error.status_code or 0


def is_full(error: DaytonaError) -> bool:
    """Whether nothing was carried out, and all other requests would get the same reply now.

    Either there were too many requests, or no runner has the image yet: that takes minutes after a build.
    """
    return isinstance(error, DaytonaRateLimitError) or bool(_NO_RUNNER.search(error.message))


def is_conflict(error: DaytonaError) -> bool:
    """Whether the name is taken."""
    return isinstance(error, DaytonaConflictError) and not _PASSING.search(error.message)


def is_passing(error: DaytonaError) -> bool:
    """Whether the same request may soon succeed: overload, a fault of the service, no connection, a busy sandbox."""
    if isinstance(error, DaytonaConnectionError | DaytonaTimeoutError | DaytonaRateLimitError):
        return True
    return status_of(error) >= 500 or bool(_PASSING.search(error.message))


def is_ambiguous(error: DaytonaError) -> bool:
    """Whether a request that creates something may have been carried out in spite of this error."""
    if isinstance(error, DaytonaConnectionError | DaytonaTimeoutError):
        return True
    return not 400 <= status_of(error) < 500


def explained(error: DaytonaError, doing: str) -> FinqaError:
    """The error to raise when no retry is left.

    Args:
        error: The SDK's error. Only the service's message is kept, without keys and markup.
        doing: What failed, such as `deleting image X`.
    """
    message = f"Daytona: {doing} failed: {_told(error.message)}"
    if isinstance(error, DaytonaAuthenticationError):
        return AuthenticationError(f"Daytona rejected the API key: {_told(error.message)}", remedy=KEY_REMEDY)
    if is_passing(error):
        return SandboxError(message, remedy=DOCTOR_REMEDY)
    if _PER_SANDBOX.search(error.message):
        return ConfigError(
            message,
            remedy="--set sandbox.options.cpu=1 --set sandbox.options.memory_gib=1 --set sandbox.options.disk_gib=3, "
            "which is less for each sandbox, and for its image",
        )
    if _QUOTA.search(error.message):
        return ServiceUnavailableError(message, remedy=QUOTA_REMEDY)
    if _SUSPENDED.search(error.message):
        return ServiceUnavailableError(message, remedy="https://app.daytona.io/dashboard/billing")
    if isinstance(error, DaytonaForbiddenError):
        return AuthenticationError(
            f"{message} (the key lacks a permission)",
            remedy=f"create a key that may write and delete sandboxes and snapshots at {KEYS_PAGE}",
        )
    if 400 <= status_of(error) < 500:
        return ConfigError(message, remedy=DOCTOR_REMEDY)
    return SandboxError(message, remedy=DOCTOR_REMEDY)


def remedy_of(error: BaseException) -> str | None:
    """Return the remedy for an exception of the SDK; None for any other."""
    return explained(error, "a request").remedy if isinstance(error, DaytonaError) else None


def retry_after_s(headers: Mapping[str, object], now: datetime | None = None) -> float | None:
    """Seconds that the service asks us to wait, from `Retry-After` or a limit's own variant of it; None if not given.

    Header names are compared without case, because the SDK does not change them. The value is seconds or an HTTP date
    (RFC 9110, 10.2.3); `X-RateLimit-Reset-*` (seconds) counts if no request remains.
    """
    lower = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    for name in (f"retry-after{_SCOPE}", "retry-after", "retry-after-sandbox-lifecycle", "retry-after-authenticated"):
        if name in lower and (seconds := _seconds(lower[name], now)) is not None:
            return seconds
    for scope in (_SCOPE, "-sandbox-lifecycle", "-authenticated", ""):
        if lower.get(f"x-ratelimit-remaining{scope}") == "0":
            return _seconds(lower.get(f"x-ratelimit-reset{scope}", ""), now)
    return None


def create_limit(headers: Mapping[str, object]) -> int | None:
    """The account's limit of starts per window; None if the reply does not name it."""
    for name, value in headers.items():
        if str(name).lower() == f"x-ratelimit-limit{_SCOPE}" and str(value).strip().isdecimal():
            return int(str(value))
    return None


def _seconds(text: str, now: datetime | None) -> float | None:
    seconds = backoff.retry_after_s(text, now)
    return seconds if seconds is None or seconds < 86_400.0 else None


def _told(message: str) -> str:
    """At most 400 characters of a reply: proxies send whole HTML pages, and a reply may repeat the request."""
    text = " ".join(_KEY.sub("**********", _MARKUP.sub(" ", message)).split())
    text = _TRANSPORT.sub(r" (\1)", _SDK_PREFIX.sub("", text))
    return text if len(text) <= 400 else text[:397] + "..."
