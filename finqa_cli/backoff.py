"""Pauses between repeated requests: growing ones of our own, and those that a service asks for.

`tenacity` and `stamina` take their jitter from the global random generator, while every random choice of finqa comes
from a seed. Each loop here also has its own rule for when to stop. So the formula is ours, and the loops use it.
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
        """Return the seconds to wait after so many failures in a row, counted from 1.

        Args:
            failures: At least 1.
            spread: A seeded random number in [0, 1] spreads clients that failed together over the second half of the
                pause; 1 is the whole pause.
        """
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 100)) * (0.5 + spread / 2)


def retry_after_s(text: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date (RFC 9110, 10.2.3).

    0.0 stands for a date in the past; None for a missing header and for any other text.
    """
    text = (text or "").strip()
    if text.replace(".", "", 1).isdecimal() and text.isascii() and len(text) <= 20:
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):  # a year or an offset of twenty digits overflows
        return None
