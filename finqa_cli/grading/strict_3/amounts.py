"""Numbers with sign, currency, scale and unit, in the notations of annual reports, spreadsheets and programs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading.numbers import LONGEST_NUMBER, NO_UNIT, Kind, Number, Unit, decimal_number

LARGEST_DENOMINATOR = 20
"""A fraction with a larger one is a calculation that was not done."""

_SCALES = {
    10**3: "thousand thousands k tsd",
    10**5: "lakh lakhs lac",
    10**6: "million millions mil mn mm m mio",
    10**7: "crore crores cr",
    10**9: "billion billions bn b mrd",
    10**12: "trillion trillions tn t",
}
_PERCENT = Unit(Kind.PERCENT, Fraction(1, 100))
_UNITS: dict[str, Unit] = {
    **{word: Unit(Kind.SCALE, Fraction(factor)) for factor, words in _SCALES.items() for word in words.split()},
    **dict.fromkeys(("%", "percent", "per cent", "pct"), _PERCENT),
    **dict.fromkeys(
        (
            "percentage point",
            "percentage points",
            "percent points",
            "% points",
            "pct points",
            "pp",
            "pps",
            "ppt",
            "ppts",
        ),
        Unit(Kind.POINTS, Fraction(1, 100)),
    ),
    **dict.fromkeys(("basis point", "basis points", "bp", "bps"), Unit(Kind.POINTS, Fraction(1, 10_000))),
}
MULTIPLES = frozenset({"x", "times", "to 1", ":1"})
"""What is written after a ratio."""
_COUNTED = ("x", "times", "per share", "a share", "share", "shares", "years", "year", "months", "days", "to 1", ":1")
_SIGNS = {"$": "usd", "€": "eur", "£": "gbp", "¥": "jpy", "₹": "inr", "us$": "usd", "c$": "cad", "a$": "aud"}
_DOLLARS = {"canadian": "cad", "australian": "aud", "hong kong": "hkd", "singapore": "sgd"}
_CODES = "usd eur gbp jpy inr cad aud chf cny rmb hkd sgd krw brl mxn sek nok dkk"
_CURRENCIES: dict[str, str] = {
    **_SIGNS,
    **{code: code for code in re.findall(r"[a-z]+", _CODES)},
    **dict.fromkeys(("dollar", "dollars", "us dollar", "us dollars", "u.s. dollars", "dollars us"), "usd"),
    **dict.fromkeys(("euro", "euros"), "eur"),
    **dict.fromkeys(("pounds", "pounds sterling"), "gbp"),
    **dict.fromkeys(("yen",), "jpy"),
    **dict.fromkeys(("swiss franc", "swiss francs", "francs"), "chf"),
    **{f"{land} dollar{end}": code for land, code in _DOLLARS.items() for end in ("", "s")},
    **dict.fromkeys(("rupees", "rs", "rs."), "inr"),
}


def _any(words: object) -> str:
    """Returns a pattern of any of the words; a word of letters is not followed by a letter or digit."""
    ordered = sorted(map(str, words), key=len, reverse=True)  # type: ignore[call-overload]
    return "|".join(re.escape(word) + (r"(?![a-z0-9])" if word[-1].isalnum() else "") for word in ordered)


CURRENCY = rf"(?:{_any(_CURRENCIES)})"
"""Pattern of a currency in lower case."""
_DIGITS = (
    r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9,])"  # 1,234.5
    r"|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?:\.[0-9]+)?(?![0-9,])"  # 1,23,456
    r"|[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+(?![0-9,.])"  # 1.234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9,.])"  # 1.234.567
    r"|[0-9]{1,3}(?:[ '][0-9]{3})+(?:[.,][0-9]+)?(?![0-9,])"  # 1 234 and 1'234
    r"|[0-9]+,[0-9]{1,2}(?![0-9,.])"  # 5,2 with a unit
    r"|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[-+]?[0-9]{1,2}(?![0-9]))?(?!,?[0-9])"
)
_FRACTION = r"(?:[0-9]{1,6} )?[0-9]{1,6} ?/ ?[0-9]{1,6}(?![0-9/,.])"
_UNIT = rf"(?:{_any((*_UNITS, *_COUNTED))})"
_AMOUNT = re.compile(
    rf"(?:(?P<sign>[-+]) ?)?(?:(?P<before>{CURRENCY}) ?)?(?:(?P<inner>[-+]) ?)?(?P<number>{_FRACTION}|{_DIGITS})"
    rf"(?P<units>(?: ?-?(?:in |of )?\(?(?:in )?(?:{_UNIT}|{CURRENCY})\)?){{0,3}})"
)
_NAMED_CURRENCY = re.compile(rf"(?<![a-z0-9])({CURRENCY})")
_ONE_UNIT = re.compile(rf"(?P<currency>{CURRENCY})|(?P<unit>{_UNIT})")
_BRACKETS = re.compile(r"([$€£¥₹]?) ?\( ?([$€£¥₹]? ?[0-9][0-9.,' ]*(?:%| ?[a-z]{1,9})?) ?\)")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_MARKED = re.compile(r"[0-9]+,[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number as it was written.

    Attributes:
        number: The number with its unit.
        currency: Code of its currency in lower case; empty if none is written.
        counted: What it counts, such as `shares` or `x`; empty if that is not written.
    """

    number: Number
    currency: str = ""
    counted: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """An amount in a text, with its place."""

    amount: Amount
    start: int
    end: int


def currencies(text: str) -> frozenset[str]:
    """Returns the codes of the currencies that a text in lower case names."""
    return frozenset(_CURRENCIES[match[1]] for match in _NAMED_CURRENCY.finditer(text))


def find_amounts(text: str) -> list[Found]:
    """Returns the amounts of a text in their order. Digits that are part of a word or of no amount are not among them.

    Args:
        text: Lower case, in plain characters, after `without_brackets`.
    """
    found = []
    for match in _AMOUNT.finditer(text):
        start, end = match.span()
        if start and (text[start - 1].isalnum() or text[start - 1] in ".,/^_"):
            continue
        # A minus directly after a digit or a word is a hyphen or a range, not a sign.
        if (match["sign"] and text[:start].rstrip()[-1:].isalnum()) or text[end : end + 1].isalnum():
            continue
        if (amount := _amount(match)) is not None:
            found.append(Found(amount, start, end))
    return found


def without_brackets(text: str) -> str:
    """Returns a text with minus signs in place of the brackets around amounts, as in `(1,234)`, `$(5)` and `(5)%`."""

    def negative(match: re.Match[str]) -> str:
        second = text[: match.start()].rstrip()[-1:]  # brackets after a number contain another notation of it
        return match[0] if second.isdigit() or second == "%" or _YEAR.fullmatch(match[2]) else f"-{match[1]}{match[2]}"

    return _BRACKETS.sub(negative, text)


def _amount(match: re.Match[str]) -> Amount | None:
    written, unit, counted = match["number"], NO_UNIT, ""
    currencies = {_CURRENCIES[match["before"]]} if match["before"] else set()
    for part in _ONE_UNIT.finditer(match["units"]):
        if part["currency"]:
            currencies.add(_CURRENCIES[part["currency"]])
        elif part["unit"] in _UNITS:
            if unit is not NO_UNIT:
                return None
            unit = _UNITS[part["unit"]]
        else:
            counted = part["unit"]
    signs = (match["sign"] or "") + (match["inner"] or "")
    if len(currencies) > 1 or len(signs) > 1 or len(written) > LONGEST_NUMBER:
        return None
    if _MARKED.fullmatch(written) and unit is NO_UNIT and not currencies:
        return None
    sign = Fraction(-1 if signs == "-" else 1)
    number = _fraction(written, sign, unit) if "/" in written else _decimal(written, sign, unit)
    return None if number is None else Amount(number, "".join(currencies), counted)


def _fraction(written: str, sign: Fraction, unit: Unit) -> Number | None:
    whole, _, rest = re.sub(r" ?/ ?", "/", written).rpartition(" ")
    above, below = (int(part) for part in rest.split("/"))
    if not 0 < below <= LARGEST_DENOMINATOR or (whole and above >= below):
        return None
    return Number(sign * (int(whole or 0) + Fraction(above, below)), unit, False, 0, Fraction(0))


def _decimal(written: str, sign: Fraction, unit: Unit) -> Number:
    digits, _, exponent = written.partition("e")
    digits = re.sub(r"[ ']", "", digits)
    if re.fullmatch(r"[0-9]+(?:\.[0-9]{3})+,[0-9]+|[0-9]+(?:\.[0-9]{3}){2,}", digits) or _MARKED.fullmatch(digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif re.search(r",[0-9]{3}(?![0-9])", digits) and "." not in digits.partition(",")[0]:
        digits = digits.replace(",", "")
    else:
        digits = digits.replace(",", ".")
    return decimal_number(digits, int(exponent or 0), not exponent, sign, unit)
