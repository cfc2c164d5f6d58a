"""What Daytona's refusals mean: the words are those of its API and of its users' issues."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from daytona.common.errors import DaytonaConnectionError, DaytonaError, DaytonaTimeoutError, create_daytona_error
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import AuthenticationError, ConfigError, FinqaError, SandboxError, ServiceUnavailableError
from finqa_plugins.sandboxes.daytona.config import DaytonaSandboxConfig
from finqa_plugins.sandboxes.daytona.daytona_cloud import Cloud
from finqa_plugins.sandboxes.daytona.daytona_errors import (
    create_limit,
    explained,
    is_ambiguous,
    is_conflict,
    is_full,
    is_passing,
    retry_after_s,
)

UPGRADE = "To increase concurrency limits, upgrade your organization's Tier by visiting https://app.daytona.io/..."
TABLE = [
    (401, "Invalid credentials", AuthenticationError, "DAYTONA_API_KEY"),
    (403, "Forbidden resource", AuthenticationError, "permission|snapshots"),
    (403, f"Total CPU limit exceeded. Maximum allowed: 10.\n{UPGRADE}", ServiceUnavailableError, "--sandboxes"),
    (403, f"Total memory limit exceeded. Maximum allowed: 10GiB.\n{UPGRADE}", ServiceUnavailableError, "reap"),
    (403, "Total disk limit exceeded. Maximum allowed: 30GiB.", ServiceUnavailableError, "--sessions-per-sandbox"),
    (400, "Total disk limit exceeded.", ServiceUnavailableError, "--sandboxes"),
    (403, "Organization is suspended: Payment method required", ServiceUnavailableError, "billing"),
    (400, "CPU request 8 exceeds maximum allowed per sandbox (4).", ConfigError, "sandbox.options.cpu"),
    (400, "labels must be an object", ConfigError, "doctor"),
    (400, "No available runners", SandboxError, "doctor"),
    (429, "ThrottlerException: Too Many Requests", SandboxError, "doctor"),
    (500, "Internal server error", SandboxError, "doctor"),
    (502, "<html><body><h1>502 Bad Gateway</h1></body></html>", SandboxError, "doctor"),
    (504, "The gateway timed out", SandboxError, "doctor"),
]


@pytest.mark.parametrize(("status", "message", "kind", "remedy"), TABLE)
def test_refusals(status: int, message: str, kind: type[FinqaError], remedy: str) -> None:
    told = explained(create_daytona_error(message, status_code=status), "starting a sandbox")
    assert type(told) is kind
    assert any(part in told.remedy for part in remedy.split("|")), told.remedy
    assert "<" not in told.message


def test_an_exhausted_quota_is_fatal_and_a_busy_service_is_not() -> None:
    quota = create_daytona_error("Total CPU limit exceeded. Maximum allowed: 10.", status_code=403)
    assert not is_passing(quota)
    assert not isinstance(explained(quota, "starting"), SandboxError)
    for status, message in ((429, "slow down"), (503, "later"), (400, "Sandbox state change in progress")):
        assert is_passing(create_daytona_error(message, status_code=status))


def test_what_may_have_been_carried_out() -> None:
    for lost in (DaytonaConnectionError("cut"), DaytonaTimeoutError("slow"), DaytonaError("entered error state")):
        assert is_ambiguous(lost)
    assert is_ambiguous(create_daytona_error("bad gateway", status_code=502))
    for status in (400, 401, 403, 404, 409, 429):
        assert not is_ambiguous(create_daytona_error("no", status_code=status))


def test_kinds_of_refusal() -> None:
    assert is_conflict(create_daytona_error("Sandbox with name finqa-a already exists", status_code=409))
    assert not is_conflict(create_daytona_error("Sandbox state change in progress", status_code=409))
    assert is_full(create_daytona_error("slow down", status_code=429))
    assert is_full(create_daytona_error("No available runners", status_code=400))
    assert not is_full(create_daytona_error("Sandbox state change in progress", status_code=400))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "7"}, 7.0),
        ({"RETRY-AFTER-SANDBOX-CREATE": "12", "Retry-After": "3"}, 12.0),
        ({"Retry-After-authenticated": "2.5"}, 2.5),
        ({"Retry-After-sandbox-lifecycle": "9"}, 9.0),
        ({"Retry-After": "Fri, 01 Jan 2027 00:00:30 GMT"}, 30.0),
        ({"Retry-After": "Thu, 31 Dec 2026 23:00:00 GMT"}, 0.0),
        ({"X-RateLimit-Remaining-sandbox-create": "0", "x-ratelimit-reset-SANDBOX-create": "41"}, 41.0),
        ({"X-RateLimit-Remaining-sandbox-create": "5", "X-RateLimit-Reset-sandbox-create": "41"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Fri, 01 Jan 99999999999999999999 00:00:30 GMT"}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "nan"}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(headers, datetime(2027, 1, 1, tzinfo=UTC)) == expected


@given(st.dictionaries(st.sampled_from(["Retry-After", "retry-after-sandbox-create", "X"]), st.text(max_size=20)))
def test_any_header_is_read_without_a_crash(headers: dict[str, str]) -> None:
    wait = retry_after_s(headers)
    assert wait is None or wait >= 0.0


def test_the_account_names_its_limit() -> None:
    assert create_limit({"x-ratelimit-limit-Sandbox-Create": "400"}) == 400
    assert create_limit({"X-RateLimit-Limit-authenticated": "10000"}) is None
    assert create_limit({"X-RateLimit-Limit-sandbox-create": "many"}) is None


def test_a_key_in_a_reply_is_blotted_out() -> None:
    told = explained(create_daytona_error("bad key dtn_0123abcdef for you", status_code=401), "starting")
    assert "dtn_0123abcdef" not in told.message


def test_the_own_key_is_blotted_out_whatever_it_looks_like() -> None:
    cloud = Cloud(DaytonaSandboxConfig())
    cloud._key = "opaque-0123456789"
    told = cloud.explain(create_daytona_error("who is opaque-0123456789?", status_code=400), "starting")
    assert "opaque" not in told.message and isinstance(told, ConfigError) and told.remedy


def test_pauses_grow_and_are_never_shorter_than_what_the_service_asks() -> None:
    cloud = Cloud(DaytonaSandboxConfig())
    lost = DaytonaConnectionError("connection reset")
    pauses = [cloud.pause_s(tries, lost) for tries in range(1, 12)]
    assert all(0.5 * 0.25 * 2.0**number <= pause for number, pause in enumerate(pauses[:5]))
    assert all(4.0 <= pause <= 12.0 for pause in pauses[5:])
    busy = create_daytona_error("slow down", status_code=429, headers={"Retry-After": "7"})
    assert 7.0 <= cloud.pause_s(1, busy) <= 8.0
