"""Converts tokens to elements of a statement: values with sign, currency and unit, years, names, words and symbols.

A `-` or `+` is a sign if no value precedes it; between two values it is an operation. Brackets directly around a value
make it negative, as in accounting, if no value precedes them. `Page 12` and `Step 1` are words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

from finqa_cli.grading.items import MOST_ITEMS
from finqa_cli.grading.numbers import Kind, Number, decimal_number
from finqa_cli.grading.strict_2 import number_words
from finqa_cli.grading.strict_2.lexer import Mark, Token
from finqa_cli.grading.strict_2.refused_words import OPERATIONS, PLACES, PLACES_OF_ANY_NUMBER
from finqa_cli.grading.strict_2.units import CURRENCIES, CURRENCY_BEFORE, Units, units_after


class Sort(Enum):
    """Kinds of elements."""

    VALUE = "value"
    YEAR = "year"
    NAME = "name"
    """A name that the truth has as a key."""
    WORD = "word"
    SYMBOL = "symbol"
    OPERATION = "operation"
    BREAK = "break"
    MALFORMED = "malformed"


@dataclass(frozen=True, slots=True)
class Value:
    """A number as the answer writes it.

    Attributes:
        number: The number with its sign.
        written: Digits or words and unit, to distinguish a second notation from a repetition.
        at_word: Whether it has a unit, or a currency with cents, so that it never takes the unit of the truth.
        signed: Whether it has a sign or brackets.
        measure: The measure that its unit names, `money`, or "".
        currency: Code of the currency, or "".
    """

    number: Number
    written: str
    at_word: bool = False
    signed: bool = False
    measure: str = ""
    currency: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A part of a statement, with its place in the text. Values and bare years have a `value`. Compared by identity."""

    sort: Sort
    text: str
    start: int
    end: int
    value: Value | None = None


_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_YEAR_NEXT = re.compile(r"[ ]?(?:fy ?)?((?:19|20)[0-9]{2})(?![0-9%]|[.,][0-9]|[ ]?[=/*+×÷])")  # noqa: RUF001
_SIGNS = ("-", "+")
_ABOUT = ("~", "=")
_CENTS = re.compile(r"[0-9]+\.[0-9]{2}")
_RATIO = re.compile(r"[ ]?(?::|to|-to-)[ ]?1(?:\.0+)?(?![0-9:%]|[.,][0-9]|[ ]?(?:million|billion|thousand|percent|%))")
_PART = re.compile(
    r"[ ](?:out of|of)(?: (?:the|all|a total of))?[ ]([0-9]{1,3}(?:,[0-9]{3}){1,2}|[0-9]{1,9})(?![0-9%]|[.,][0-9])"
    r"(?![ ]?(?:million|billion|thousand|percent))"
)
_NOT_COUNTED = re.compile(
    r"[ -]?(?:dozens?|score|pairs?|couples?|odd|halves|thirds|(?:ten|hundred|thousand|[a-z]*illion)ths?)\b"
)
_OVER = re.compile(r"[ ]?/[ ]?([0-9]{1,20})(?![0-9.,/]*[0-9]|[ ]?/)")
_DECIMALS_NOTE = re.compile(
    r"(?:rounded )?(?:to|at) (?:[0-9]|one|two|three|four|five|six) "
    r"(?:decimals?(?: places?| points?)?|d\.?p\.?|significant (?:figures|digits)|s\.?f\.?|digits)|\([0-9]{1,3} rows?\)|"
    r"(?:to )?[0-9] (?:decimal places?|d\.?p\.?|decimals)(?=\))|"
    r"rounded to the nearest (?:hundredth|tenth|thousandth|integer|whole number|cent|dollar|million|thousand|percent)"
)
_SYMBOLS = frozenset(".,:;()[]{}\"'%$€£¥₹/|=~→—-+*×÷&!•_#<>✅✓✔ \x1f")  # noqa: RUF001
"""Symbols that do not change a value. Any other symbol may: a root, a negation, an empty square."""
_OTHER_SCALE = re.compile(r"[ ]?/[ ]?(?:thousand|million|billion|trillion|percent|%|[mbk](?![a-z]))")
"""`5 million/billion` leaves the scale open."""
_NOT_ASKED = re.compile(r"[ ](?:ppm|ppb|per (?:thousand|hundred|million|billion|10+))\b")
_CONVERSION = re.compile(r"[ ]?(?:100|36[056]|12)%?(?![0-9]|[.,][0-9])")
_GLUED_OPERATORS = "²³%‰"
_POWER = re.compile(r"\^(?![({]?[0-9])")


def elements(text: str, tokens: Sequence[Token], *, counts: bool = False) -> list[Element]:
    """Reads the tokens of a text in lower case, up to its 101st value. Linear time; never raises.

    Args:
        text: The text.
        tokens: Tokens of the text.
        counts: Whether the question asks how many, so that `7 out of 9` is 7 and not a fraction.
    """
    return _Reader(text, tokens, counts).read()


_SORTS = {Mark.WORD: Sort.WORD, Mark.LINE: Sort.BREAK, Mark.YEAR: Sort.YEAR, Mark.SYMBOL: Sort.SYMBOL}
_BEGINS_VALUE = frozenset("-+~($€£¥₹₩")
"""Symbols that may precede the digits of a value."""


class _Reader:
    def __init__(self, text: str, tokens: Sequence[Token], counts: bool) -> None:
        self._text = text
        self._counts = counts
        self._tokens = tokens
        self._place = 0
        self._values = 0
        self._found: list[Element] = []
        self._notes = {match.start(): match.end() for match in _DECIMALS_NOTE.finditer(text)}

    def read(self) -> list[Element]:
        while self._place < len(self._tokens) and self._values <= MOST_ITEMS:
            token = self._tokens[self._place]
            if token.start in self._notes:
                self._add(Sort.WORD, token.start, self._notes[token.start])
            elif not (self._value() or self._place_name(token)):
                self._other(token)
        return self._found

    def _add(self, sort: Sort, start: int, end: int, value: Value | None = None, text: str = "") -> None:
        self._found.append(Element(sort, text or self._text[start:end], start, end, value))
        self._values += value is not None
        while self._place < len(self._tokens) and self._tokens[self._place].start < end:
            self._place += 1

    def _other(self, token: Token) -> None:
        sort = _SORTS.get(token.mark, Sort.MALFORMED)
        if self._separates_year(token) or self._spans_years(token):
            sort = Sort.SYMBOL
        elif self._operates(sort, token.text):
            sort = Sort.OPERATION
        elif sort is Sort.SYMBOL and token.text not in _SYMBOLS:
            sort = Sort.MALFORMED
        self._add(sort, token.start, token.end, text=token.text)

    def _operates(self, sort: Sort, text: str) -> bool:
        """Returns whether a sign or word of an operation follows a value; `^` may follow any closing bracket."""
        if sort is Sort.SYMBOL and text == "^" and self._found and self._found[-1].text == ")":
            return True
        if text in ("*", "×") and self._found and self._found[-1].text == ")" and self._converts():  # noqa: RUF001
            return True  # of a formula in words, `(receivables / revenue) * 365`
        is_sign = sort is Sort.SYMBOL and text in "+-*×÷/^"  # noqa: RUF001
        is_word = sort is Sort.WORD and text in OPERATIONS and (text != "less" or self._number_follows())
        return (is_sign or is_word) and self._after_value()

    def _converts(self) -> bool:
        """Returns whether 100 or the number of days or months of a year follows."""
        return _CONVERSION.match(self._text, self._tokens[self._place].end) is not None

    def _number_follows(self) -> bool:
        """Returns whether `less` is an operation, as in `100 less 20`, and not in `20 less than budgeted`."""
        following = self._tokens[self._place + 1 : self._place + 3]
        return not following or following[0].text != "than"

    def _separates_year(self, token: Token) -> bool:
        """Returns whether a dash with blanks on both sides separates a year from a value: `2022 - 1%`."""
        last = self._found[-1] if self._found else None
        if token.text != "-" or last is None or last.sort is not Sort.YEAR:
            return False
        spaced = self._text[token.start - 1 : token.end + 1] == " - "
        return spaced and not _YEAR.match(self._text, token.end + 1)

    def _spans_years(self, token: Token) -> bool:
        """Returns whether a sign joins two years in their order, `2015-2017` or `2018/2019`, without a result."""
        last = self._found[-1] if self._found else None
        if token.text not in ("-", "/") or last is None or last.sort is not Sort.YEAR:
            return False
        following = _YEAR_NEXT.match(self._text, token.end)
        return following is not None and following[1] > last.text

    def _after_value(self) -> bool:
        """Returns whether a value, possibly in brackets, directly precedes."""
        last = self._found[-1] if self._found else None
        if last is not None and last.sort is Sort.SYMBOL and last.text == ")":
            return any(one.sort is Sort.VALUE for one in self._found[-12:])
        return last is not None and last.sort in (Sort.VALUE, Sort.YEAR)

    def _place_name(self, token: Token) -> bool:
        """Adds `page 12`, `step 1:` or `note #7` as a word, if it begins here; returns whether it does."""
        is_page = token.text in ("p", "pp") and self._text[token.end : token.end + 1] == "."
        if token.mark is not Mark.WORD or not (token.text in PLACES or is_page):
            return False
        place = self._place + 1
        while place < len(self._tokens) and self._tokens[place].text in (".", "#"):
            place += 1
        if place < len(self._tokens) and self._tokens[place].mark is Mark.NUMERAL:
            number = self._tokens[place]
            is_small = number.text.isdigit() and len(number.text) < 4
            if is_small or token.text in PLACES_OF_ANY_NUMBER:
                self._add(Sort.WORD, token.start, number.end)
                return True
        return False

    def _value(self) -> bool:
        """Adds the value that begins here, with sign, currency, brackets and units; returns whether one begins here."""
        place, start = self._place, self._tokens[self._place].start
        if not self._may_begin(self._tokens[place]):
            return False
        sign, currency, brackets, position, signs = 1, "", False, start, 0
        if self._tokens[place].text == "~":
            if self._after_value():
                return False  # `300 / 49.04 ~ 6.12`
            position = self._skip_blank(position + 1)
        while position < len(self._text):
            character = self._text[position]
            if match := CURRENCY_BEFORE.match(self._text, position):
                if currency or not self._starts_here(position):
                    return False
                currency = CURRENCIES.get(match[0].strip(), match[0].strip())
                position = self._skip_blank(match.end())
            elif character in _SIGNS:
                if self._after_value() or (signs and not brackets) or brackets:
                    return self._refuse(position) if (signs or brackets) and not self._after_value() else False
                signs, sign = signs + 1, -1 if character == "-" else 1
                if self._is_dash(position):
                    return False if _YEAR.match(self._text, position + 2) else self._refuse(position)
                position = self._skip_blank(position + 1)
            elif character == "(" and not brackets and not self._after_value() and self._closes(position):
                if signs:
                    return self._refuse(position)
                brackets, sign = True, -1
                position = self._skip_blank(position + 1)
            else:
                break
        found = self._digits(position) or self._spelled(position)
        if found is None:
            negates = signs > 0 and self._text[position : position + 1] == "("
            return self._refuse(position) if signs > 1 or negates else False
        written, end, words = found
        return self._finish(start, written, end, sign, signs > 0 or brackets, currency, brackets, words)

    def _may_begin(self, token: Token) -> bool:
        """Returns whether a value may begin with a token; most tokens of prose are excluded quickly."""
        if token.mark is Mark.SYMBOL:
            return token.text in _BEGINS_VALUE or CURRENCY_BEFORE.match(self._text, token.start) is not None
        if token.mark is not Mark.WORD:
            return True
        return number_words.starts_number(token.text) or CURRENCY_BEFORE.match(self._text, token.start) is not None

    def _refuse(self, position: int) -> bool:
        """Adds a malformed element for contradicting signs, or a dash that may be a minus, before a number."""
        rest = self._text[position : position + 4].lstrip("-+ (~")
        if rest[:1].isdigit() or rest[:1] in (".", "$"):
            self._add(Sort.MALFORMED, self._tokens[self._place].start, position + 1)
            return True
        return False

    def _skip_blank(self, position: int) -> int:
        return position + 1 if self._text[position : position + 1] in (" ", "\x1f") else position

    def _starts_here(self, position: int) -> bool:
        return position == 0 or not self._text[position - 1].isalnum()

    def _is_dash(self, position: int) -> bool:
        """Returns whether a hyphen follows a word and precedes a blank: it may be a dash or a minus."""
        last = self._found[-1] if self._found else None
        spaced = self._text[position + 1 : position + 2] in (" ", "\x1f")
        return spaced and last is not None and last.sort is Sort.WORD

    def _closes(self, position: int) -> bool:
        """Returns whether the bracket contains one amount and nothing else."""
        inner = self._skip_blank(position + 1)
        if currency := CURRENCY_BEFORE.match(self._text, inner):
            inner = self._skip_blank(currency.end())
        token = self._token_at(inner)
        if token is None or token.mark is not Mark.NUMERAL or _YEAR.fullmatch(self._text[token.start : token.end]):
            return False
        return self._text[self._skip_blank(units_after(self._text, token.end).end) :].startswith(")")

    def _token_at(self, position: int) -> Token | None:
        place = self._place
        while place < len(self._tokens) and self._tokens[place].start < position:
            place += 1
        token = self._tokens[place] if place < len(self._tokens) else None
        return token if token is not None and token.start == position else None

    def _digits(self, position: int) -> tuple[str, int, bool] | None:
        token = self._token_at(position)
        if token is None or token.mark is not Mark.NUMERAL:
            return None
        end = token.end
        over = _OVER.match(self._text, end) if token.text.isdigit() else None
        if over and not (_YEAR.fullmatch(token.text) and _YEAR.fullmatch(over[1]) and token.text < over[1]):
            return f"{token.text}/{over[1]}", over.end(), False
        if (
            token.text.isdigit()
            and (part := _PART.match(self._text, end))
            and int(token.text) <= int(part[1].replace(",", ""))
        ):
            if self._counts:
                return token.text, part.end(), False
            if not _YEAR.fullmatch(part[1]):
                return f"{token.text}/{part[1].replace(',', '')}", part.end(), False
        ratio = None if _YEAR.fullmatch(token.text) else _RATIO.match(self._text, end)
        if ratio and "e" not in token.text and Fraction(token.text) > 1:
            end = ratio.end()
        return token.text, end, False

    def _spelled(self, position: int) -> tuple[str, int, bool] | None:
        token = self._token_at(position)
        if token is None or token.mark is not Mark.WORD or not number_words.starts_number(token.text):
            return None
        first = self._tokens.index(token, self._place)
        run = [token]
        for following in self._tokens[first + 1 : first + 24]:
            if following.mark is not Mark.WORD or following.start != run[-1].end + 1:
                break
            run.append(following)
        read = number_words.read([one.text for one in run])
        if read is None:  # `one two`: no number, and no other reading either
            others = (place for place, one in enumerate(run) if not number_words.starts_number(one.text))
            return "", run[next(others, len(run)) - 1].end, True
        return read[0], run[read[1] - 1].end, True

    def _finish(
        self, start: int, written: str, end: int, sign: int, signed: bool, currency: str, brackets: bool, words: bool
    ) -> bool:
        units = units_after(self._text, end)
        if _YEAR.fullmatch(self._text[start:end]) and self._text[end : units.end].strip().startswith("("):
            units = units_after("", 0)  # `in 2023 (in millions)`
            units = replace(units, end=end)
        if brackets:
            close = self._text.find(")", units.end)
            end = close + 1
            outer = units_after(self._text, end)
            units = outer if not units.named else replace(units, end=max(end, units.end)) if not outer.named else units
            end = max(end, units.end)
        else:
            end = units.end
        if self._text[end : end + 1] == "$" and not self._text[end + 1 : end + 2].isalnum():
            end += 1
        number = None if units.contradict or not written else _number(written, sign, units)
        if number is None or self._is_glued(start, end) or (currency and units.currency not in ("", currency)):
            self._add(Sort.MALFORMED, start, max(end, start + 1))
            return True
        is_year = bool(_YEAR.fullmatch(self._text[start:end])) and not words
        value = Value(
            number=number,
            written=f"{written} {'words' if words else ''} {units.unit.kind.value} {units.unit.factor}",
            at_word=units.named or (bool(currency) and bool(_CENTS.fullmatch(written))),
            signed=signed,
            measure=units.measure or ("money" if currency else ""),
            currency=currency or units.currency,
        )
        self._add(Sort.YEAR if is_year else Sort.VALUE, start, end, value, written)
        return True

    def _is_glued(self, start: int, end: int) -> bool:
        """Returns whether letters, digits or symbols beside a value change it: `5i`, `a5`, `5^5`, `5-ish`."""
        before, after = self._text[start - 1 : start], self._text[end : end + 2]
        if after[:1] == "!" and self._text[end - 1 : end].isdigit():
            return True  # a factorial
        if before.isalnum() or before == "_" or after[:1].isalnum() or _POWER.match(self._text, end):
            return True
        if after[:1] and after[:1] in _GLUED_OPERATORS:
            return True
        if after[:1] in ("-", ".", "'", "_", "+") and after[1:].isalpha():
            return True
        last = self._found[-1] if self._found else None
        if before == "(" and self._text[start - 2 : start - 1].isalpha() and len(self._found) > 1:
            return self._found[-2].sort is Sort.WORD  # a function, as in `abs(-5)`
        if (self._text[start : start + 1] == "(" and before.isalpha()) or _NOT_COUNTED.match(self._text, end):
            return True
        if (
            _OTHER_SCALE.match(self._text, end)
            or _NOT_ASKED.match(self._text, end)
            or (before == "#" and self._text[start - 2 : start - 1] != "#")
        ):
            return True
        if self._text[start : start + 1] in _SIGNS and before.isalpha():
            return True  # `top-5`
        if self._text[start : start + 1] == "(" == before:
            return True  # `((5))`
        return (
            before == "."
            or (after[:1] == "+" and not after[1:].isdigit())
            or (before == "/" and not (last and last.sort is Sort.OPERATION))
        )


def _number(written: str, sign: int, units: Units) -> Number | None:
    if "/" in written:
        top, _, bottom = written.partition("/")
        if not int(bottom):
            return None
        return Number(sign * Fraction(int(top), int(bottom)), units.unit, False, 0, Fraction(0))
    digits, _, exponent = written.partition("e")
    power = int(exponent or 0)
    return decimal_number(digits, power, not exponent, Fraction(sign), units.unit) if abs(power) < 100 else None


def is_same(one: Value, other: Value) -> bool:
    """Returns whether two values are one amount: equal, or one is the other one rounded to its own digits."""
    return abs(one.number.value - other.number.value) <= max(precision(one), precision(other)) / 2


def precision(value: Value) -> Fraction:
    """Returns the value of 1 in the last written digit, with the unit; 1 for whole numbers, 0 for fractions."""
    number = value.number
    return (Fraction(1) if number.is_whole else number.place) * number.unit.factor


def is_points(value: Value) -> bool:
    """Returns whether a value is in percentage points or basis points."""
    return value.number.unit.kind is Kind.POINTS


def is_computed(result: Fraction, place: Fraction, others: Sequence[Fraction]) -> bool:
    """Returns whether a number is sum or mean of others, or difference, product, quotient or rate of change of two.

    Args:
        result: The number.
        place: Value of 1 in its last digit, which allows for rounding.
        others: The other numbers, in the order of the text.
    """
    if len(others) < 2:
        return False
    first, second = others[0], others[1]
    total = sum(others, start=Fraction(0))
    possible = [total, total / len(others)] if len(set(others)) > 1 else [total]
    if len(others) == 2:
        possible += [first - second, second - first, first * second]
        possible += [first / second, (first - second) / second] if second else []
        possible += [second / first, (second - first) / first] if first else []
    return any(abs(result - one) <= max(place, abs(one) / 1000) / 2 for one in possible)
