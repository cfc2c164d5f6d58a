"""Whether one number is computed from others, so that those are its working."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def is_computed(result: Fraction, place: Fraction, others: Sequence[Fraction]) -> bool:
    """Whether a result is the sum or mean of others, or difference, product, quotient or rate of change of two.

    Args:
        result: The number.
        place: What one in its last digit is worth: the others may have been rounded.
        others: The other numbers, in the order in which they stand.
    """
    if len(others) < 2:
        return False
    first, second = others[0], others[1]
    total = sum(others, start=Fraction(0))
    possible = [total, total / len(others)]
    if len(others) == 2:
        possible += [first - second, second - first, first * second]
        possible += [first / second, (first - second) / second] if second else []
        possible += [second / first, (second - first) / first] if first else []
    return any(abs(result - one) <= max(place, abs(one) / 1000) / 2 for one in possible)
