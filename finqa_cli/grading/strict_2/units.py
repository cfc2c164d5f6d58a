"""Units that may follow a number in an answer, with their factors and measures.

A unit has a factor (77 million is 77,000,000) and may have a *measure*: money, shares, days. An answer whose measure
the question does not ask for is refused, so that `9,513 shares` is not an amount of dollars.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading.numbers import NO_UNIT, Kind, Unit

PERCENT = Unit(Kind.PERCENT, Fraction(1, 100))
CENTS = Unit(Kind.SCALE, Fraction(1, 100))

SCALES: dict[str, int] = {
    "hundred": 10**2,
    **dict.fromkeys(("thousands", "thousand", "k"), 10**3),
    **dict.fromkeys(("lakhs", "lakh"), 10**5),
    **dict.fromkeys(("millions", "million", "mil", "mio", "mln", "mn", "mm", "m"), 10**6),
    **dict.fromkeys(("crores", "crore", "cr"), 10**7),
    **dict.fromkeys(("billions", "billion", "bil", "bln", "bn", "b"), 10**9),
    **dict.fromkeys(("trillions", "trillion", "trn", "tn", "t"), 10**12),
}
_POINTS = (
    (100, "percentage points|percentage point|percentage-points|percentage-point|percent points|percent point"),
    (100, "pct points|% points|%-points|ppts|ppt|pts|pps|pp|p.p.|p.p|pct. points"),
    (10_000, "basis points|basis point|basis-points|bps|bp|b.p.|b.p"),
)
CURRENCIES: dict[str, str] = {}
"""Sign or word of a currency -> code."""
for _code, _words in (
    ("usd", "$|us$|usd|us dollars|us dollar|u.s. dollars|u.s. dollar|dollars|dollar|bucks"),
    ("eur", "€|eur|euros|euro"),
    ("gbp", "£|gbp|pounds|pound sterling|pounds sterling"),
    ("jpy", "¥|jpy|yen|japanese yen"),
    ("cny", "cny|rmb|yuan|renminbi"),
    ("inr", "₹|inr|rs|rs.|rupees|rupee|indian rupees"),
    ("krw", "₩|krw|won|korean won"),
    ("chf", "chf|swiss francs|francs"),
    ("cad", "cad|c$|ca$|canadian dollars"),
    ("aud", "aud|a$|australian dollars"),
    ("hkd", "hkd|hk$|hong kong dollars"),
    ("sek", "sek|kronor"),
):
    CURRENCIES.update(dict.fromkeys(_words.split("|"), _code))

_MEASURES = (
    ("shares", "shares|share"),
    *(
        (stem, f"{stem}|{stem}s")
        for stem in [
            "hour",
            "minute",
            "second",
            "page",
            "kg",
            "ton",
            "tonne",
            "mile",
            "barrel",
            "ounce",
            "acre",
            "point",
            "unit",
            "employee",
            "customer",
        ]
    ),
    ("year", "years|year|yrs|yr"),
    ("month", "months|month"),
    ("week", "weeks|week"),
    ("day", "days|day|d"),
    ("quarter", "quarters|quarter"),
    (
        "per share",
        "per share|a share|/share|/ share|per diluted share|per basic share|per ads|per common share|"
        "per diluted common share|per basic common share|per share of common stock",
    ),
    ("times", "x|×|times"),  # noqa: RUF001
)

TIMES = frozenset(("year", "month", "week", "day", "quarter"))
MEASURES = frozenset(measure for measure, _ in _MEASURES if measure)


@dataclass(frozen=True, slots=True)
class Measured:
    """Meaning of a word after a number: its unit, and the measure or currency that it names, if any."""

    unit: Unit = NO_UNIT
    measure: str = ""
    currency: str = ""


UNITS: dict[str, Measured] = {
    **{word: Measured(Unit(Kind.SCALE, Fraction(factor))) for word, factor in SCALES.items()},
    **{word: Measured(Unit(Kind.POINTS, Fraction(1, parts))) for parts, words in _POINTS for word in words.split("|")},
    **dict.fromkeys(("%", "percent", "per cent", "per-cent", "pct", "pct."), Measured(PERCENT)),
    **dict.fromkeys(("‰", "per mille"), Measured(Unit(Kind.PERCENT, Fraction(1, 1000)))),
    **dict.fromkeys(("cents", "cent", "¢"), Measured(CENTS, "money")),
    **{word: Measured(NO_UNIT, "money", code) for word, code in CURRENCIES.items()},
    **{word: Measured(NO_UNIT, measure) for measure, words in _MEASURES for word in words.split("|")},
}


def _any_of(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


CURRENCY_BEFORE = re.compile(rf"(?:{_any_of(CURRENCIES)})(?![a-z])|(?:us|ca|hk|c|a)?[$€£¥₹₩]")
_ANY = _any_of(UNITS)
# `7 x 10` and `6 x 2` are products, so a unit is never followed by a number that it would multiply.
_NEXT = re.compile(
    rf"[ ]?(?:\([ ]?(?:all )?(?:figures )?(?:in )?(?:[$€£¥₹][ ]?)?({_ANY})[ ]?\)"
    rf"|(?:in |of )?({_ANY})(?![a-z0-9]|-end|[ ]?x?[ ]?[0-9]{{1,9}}\b(?<!x)))"
)
_OVER_YEAR = re.compile(r"[ -](?:over|on|to)[ -]")
_NUMBER_FOLLOWS = re.compile(r"[ ]?[0-9]")
_MOST_UNITS = 4


@dataclass(frozen=True, slots=True)
class Units:
    """All units after a number, combined.

    Attributes:
        unit: The scale, percent sign or points among them, or no unit.
        measure: `money`, `shares`, `per share`, `times`, a stem such as `day`, or "".
        currency: Code of the currency, or "".
        named: Whether there is a unit, even if only `dollars`; the number is then read literally.
        end: Where the units end in the text.
        contradict: Whether two of them contradict, as in `77 million billion`.
    """

    unit: Unit
    measure: str
    currency: str
    named: bool
    end: int
    contradict: bool = False


def units_after(text: str, start: int) -> Units:
    """Reads the units at a place of a text in lower case."""
    unit, measure, currency, named, end = NO_UNIT, "", "", False, start
    for _ in range(_MOST_UNITS):
        match = _NEXT.match(text, end)
        if match is None:
            break
        word = match[1] or match[2]
        if _OVER_YEAR.match(text, match.end()) and word == "year":
            break
        if word in ("x", "×") and _NUMBER_FOLLOWS.match(text, match.end()):  # noqa: RUF001
            break
        found = UNITS[word]
        if unit is PERCENT and found.measure:
            break  # `5% year over year`, `5% shares`
        both_scale = found.unit is not NO_UNIT and unit is not NO_UNIT
        if both_scale or (found.currency and currency and found.currency != currency):
            return Units(unit, measure, currency, True, match.end(), contradict=True)
        unit = unit if found.unit is NO_UNIT else found.unit
        measure, currency, named, end = found.measure or measure, found.currency or currency, True, match.end()
    return Units(unit, measure, currency, named, end)
