"""What the SDK's exceptions mean: whether a retry may help, whether nothing was done, and the user's message."""

from __future__ import annotations

import re

from cwsandbox import (
    CWSandboxAuthenticationError,
    CWSandboxError,
    SandboxFailedError,
    SandboxResourceExhaustedError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)
from cwsandbox.exceptions import CWSandboxValidationError

from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError, SandboxError, ServiceUnavailableError

DOCTOR_REMEDY = "finqa doctor --sandbox cwsandbox"
KEY_REMEDY = f"export CWSANDBOX_API_KEY=... with a key of your CoreWeave organisation, then {DOCTOR_REMEDY}"
WANDB_REMEDY = f"export WANDB_API_KEY=... or run wandb login, then {DOCTOR_REMEDY}"
QUOTA_REMEDY = (
    "ask for fewer sandboxes (--sandboxes), put more sessions on each (--sessions-per-sandbox), "
    "or end strays (finqa sandbox reap --sandbox cwsandbox)"
)
ACCESS_REMEDY = (
    "ask CoreWeave's support for serverless sandboxes, or --set sandbox.options.placement=cks for a cluster of your own"
)
IMAGE_REMEDY = "--set sandbox.options.container_image=NAME of an image that the service may pull, such as python:3.11"
SIZE_REMEDY = "--set sandbox.options.cpu=1 --set sandbox.options.memory_mib=1024, which is less for each sandbox"

_REFUSALS = frozenset(
    {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNIMPLEMENTED", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED"}
)
_IMAGE = re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull|manifest unknown", re.I)
_SIZE = re.compile(r"CEILING_EXCEEDED|PLACEMENT_CONSTRAINT|NO_SUITABLE_RUNNER")

_BROKEN_CALL = "Internal error from Core"
"""What gRPC's asyncio client reports if a call ends while the client still writes to it: the service's reply is lost
(`set_internal_error` in grpc/_cython/_cygrpc/aio/call.pyx.pxi). A repeated request gets the reply again."""


def is_passing(error: CWSandboxError) -> bool:
    """Whether the same request may soon succeed: overload, a fault of the service, no connection, no answer."""
    if "QUOTA" in (error.reason or ""):
        return False
    known = isinstance(error, SandboxUnavailableError | SandboxResourceExhaustedError | SandboxTimeoutError)
    return known or _BROKEN_CALL in str(error)


def is_refusal(error: CWSandboxError) -> bool:
    """Whether the service refused the request, so that nothing was carried out."""
    return (
        _code(error) in _REFUSALS or isinstance(error, CWSandboxAuthenticationError) or "QUOTA" in (error.reason or "")
    )


def pause_asked_s(error: CWSandboxError) -> float | None:
    """Seconds that the service asks us to wait; None if it names none."""
    return error.retry_delay.total_seconds() if error.retry_delay else None


def explained(error: CWSandboxError, doing: str) -> FinqaError:
    """The error to raise when no retry is left; `doing` is what failed, such as `listing the sandboxes`."""
    reason = error.reason or ""
    message = f"CoreWeave: {doing} failed: {_told(str(error))}"
    if isinstance(error, CWSandboxAuthenticationError):
        remedy = WANDB_REMEDY if "W&B" in str(error) else KEY_REMEDY
        return AuthenticationError(f"CoreWeave refused the key: {_told(str(error))}", remedy=remedy)
    if "QUOTA" in reason:
        return ServiceUnavailableError(message, remedy=QUOTA_REMEDY)
    if reason.startswith("CWSANDBOX_SERVERLESS_"):
        return ServiceUnavailableError(message, remedy=ACCESS_REMEDY)
    if isinstance(error, SandboxFailedError) and _IMAGE.search(error.status_reason or ""):
        return ConfigError(message, remedy=IMAGE_REMEDY)
    if _SIZE.search(reason):
        return ConfigError(message, remedy=SIZE_REMEDY)
    if isinstance(error, CWSandboxValidationError) or _code(error) in ("INVALID_ARGUMENT", "UNIMPLEMENTED"):
        return ConfigError(message, remedy=DOCTOR_REMEDY)
    return SandboxError(message, remedy=DOCTOR_REMEDY)


def remedy_of(error: BaseException) -> str | None:
    """Return the remedy for an exception of the SDK; None for any other."""
    return explained(error, "a request").remedy if isinstance(error, CWSandboxError) else None


def _code(error: CWSandboxError) -> str:
    """Name of the gRPC status that the SDK translated; empty if there was none."""
    code = getattr(error.__cause__, "code", None)
    return str(getattr(code(), "name", "")) if callable(code) else ""


def _told(message: str) -> str:
    """The first 400 characters: the SDK repeats the whole command of an execution in its messages."""
    text = " ".join(message.split())
    return text if len(text) <= 400 else text[:397] + "..."
