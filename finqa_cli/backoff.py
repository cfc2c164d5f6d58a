"""Pauses between repeated requests: exponential backoff, and the Retry-After header of a service.

The libraries `tenacity` and `stamina` are not used, because they take their jitter from the global random generator,
while every random choice of finqa comes from a seed. Also, each retry loop has its own rule for when to stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double with each failure in a row.

    Attributes:
        first_s: Seconds after the first failure.
        longest_s: Upper limit, in seconds.
    """

    first_s: float
    longest_s: float

    def pause_s(self, failures: int, spread: float = 1.0) -> float:
        """Return the seconds to wait after some failures in a row.

        Args:
            failures: Number of failures in a row, at least 1.
            spread: Number in [0, 1]: 0 is half of the pause, 1 the whole pause. Different numbers spread clients that
                failed together over the second half of the pause.
        """
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 100)) * (0.5 + spread / 2)


def retry_after_s(text: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date (RFC 9110, 10.2.3).

    The result is 0.0 for a date in the past, and None for a missing header or any other text.
    """
    text = (text or "").strip()
    if text.replace(".", "", 1).isdecimal() and text.isascii() and len(text) <= 20:
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):  # a year or a UTC offset with too many digits overflows
        return None
