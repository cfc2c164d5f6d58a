"""Unit words after a number, and what each makes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction


class Kind(Enum):
    """What a unit is to the number before it."""

    PLAIN = "plain"
    PERCENT = "percent"
    """A percent sign divides by 100, always: 4.5% is 0.045."""
    SCALE = "scale"
    """A scale multiplies, always: 77 million is 77,000,000."""
    POINTS = "points"
    """Points name what is counted: percentage points are hundredths, basis points ten-thousandths."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit, and what one of it is worth."""

    kind: Kind
    factor: Fraction


NO_UNIT = Unit(Kind.PLAIN, Fraction(1))

_WORDS: dict[str, Unit] = {}
for _unit, _words in (
    (NO_UNIT, "x|times|usd|us dollars|dollars|dollar|per share|a share|shares|share|years|year|months|days"),
    (Unit(Kind.PERCENT, Fraction(1, 100)), "%|percent|per cent|pct"),
    (Unit(Kind.POINTS, Fraction(1, 100)), "percentage points|percentage point|percent points|percent point"),
    (Unit(Kind.POINTS, Fraction(1, 100)), "pct points|% points|%-points|ppts|ppt|pps|pp|p.p"),
    (Unit(Kind.POINTS, Fraction(1, 10_000)), "basis points|basis point|bps|bp"),
    (Unit(Kind.SCALE, Fraction(10**3)), "thousands|thousand|k"),
    (Unit(Kind.SCALE, Fraction(10**6)), "millions|million|mil|mn|mm|m"),
    (Unit(Kind.SCALE, Fraction(10**9)), "billions|billion|bn|b"),
    (Unit(Kind.SCALE, Fraction(10**12)), "trillions|trillion|tn|t"),
):
    _WORDS.update(dict.fromkeys(_words.split("|"), _unit))

_ANY = "|".join(map(re.escape, sorted(_WORDS, key=len, reverse=True)))
_NEXT = re.compile(rf" ?(?:\((?:in )?({_ANY})(?: of dollars)?\)|(?:in )?({_ANY})(?: of dollars)?(?![a-z0-9])) ?")
_MOST_WORDS = 4


def leading_unit(text: str) -> tuple[Unit, str] | None:
    """The unit that a text begins with, `(in millions)` for one, and the rest; None when two units contradict.

    Args:
        text: Lower case, blanks collapsed.
    """
    unit, rest = NO_UNIT, text
    for _ in range(_MOST_WORDS):
        match = _NEXT.match(rest)
        if match is None:
            break
        found = _WORDS[match[1] or match[2]]
        if found is not NO_UNIT and unit is not NO_UNIT:
            return None
        unit = unit if found is NO_UNIT else found
        rest = rest[match.end() :]
    return unit, rest
