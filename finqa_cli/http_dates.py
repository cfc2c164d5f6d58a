"""Dates in HTTP headers."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def seconds_until(text: str, now: datetime | None = None) -> float | None:
    """Return the seconds from now to an HTTP date (RFC 9110, 5.6.7), 0.0 for the past; None for any other text."""
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):  # a year or an offset of twenty digits overflows
        return None
