"""Converts other notations of a date, quarter, place, range or amount of money to the notation of the truth."""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.units import CURRENCIES

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_NUMBER = {name[:3]: place for place, name in enumerate(_MONTHS, start=1)}
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"([0-3]?[0-9])(?:st|nd|rd|th)?"
_YEAR = r"((?:19|20)[0-9]{2})"
_DATE = re.compile(
    rf"(?<![\w./-])(?:{_MONTH}[ ]{_DAY},?[ ]{_YEAR}|{_DAY}[ -](?:of )?{_MONTH},?[ -]{_YEAR}"
    rf"|{_YEAR}[-/]([01][0-9])[-/]([0-3][0-9])|([01]?[0-9])/([0-3]?[0-9])/{_YEAR}"
    rf"|([0-3]?[0-9])\.([01]?[0-9])\.{_YEAR}|{_YEAR}[ ,-]{{1,2}}{_MONTH}[ -]{_DAY})(?![\w/]|-[0-9])",
    re.IGNORECASE,
)
_BOUND = re.compile(rf"\b(?:by|until|before|after|since|from|through) (?:{'|'.join(_MONTHS)}) [0-9]")
_ROUGHLY = re.compile(r"\b(?:approximately|approx|roughly|circa|around)\b")
_QUARTER = re.compile(
    r"(?<![\w-])(?:q([1-4])|([1-4])q|(first|second|third|fourth|1st|2nd|3rd|4th) (?:fiscal )?quarter)(?![\w-])",
    re.IGNORECASE,
)
_ORDINALS = ("first", "second", "third", "fourth")
_STATE_NAMES = (
    "AL Alabama|AK Alaska|AZ Arizona|AR Arkansas|CA California|CO Colorado|CT Connecticut|DE Delaware|FL Florida|"
    "GA Georgia|HI Hawaii|ID Idaho|IL Illinois|IN Indiana|IA Iowa|KS Kansas|KY Kentucky|LA Louisiana|ME Maine|"
    "MD Maryland|MA Massachusetts|MI Michigan|MN Minnesota|MS Mississippi|MO Missouri|MT Montana|NE Nebraska|NV Nevada|"
    "NH New Hampshire|NJ New Jersey|NM New Mexico|NY New York|NC North Carolina|ND North Dakota|OH Ohio|OK Oklahoma|"
    "OR Oregon|PA Pennsylvania|RI Rhode Island|SC South Carolina|SD South Dakota|TN Tennessee|TX Texas|UT Utah|"
    "VT Vermont|VA Virginia|WA Washington|WV West Virginia|WI Wisconsin|WY Wyoming"
)
_STATES = {state[:2]: state[3:] for state in _STATE_NAMES.split("|")}
_STATE = re.compile(rf"(?<=[a-z]), ({'|'.join(_STATES)})(?![\w'])")
_COUNTRY = re.compile(r",? \(?(?:USA|U\.S\.A?\.?|US|United States(?: of America)?)\)?\.?\Z")
_AMOUNT = r"[$€£¥]?[ ]?[0-9][0-9,]*(?:\.[0-9]+)?%?"
_RANGE = re.compile(rf"(?:from |between )?({_AMOUNT})[ ]?(?:-|–|to|and)[ ]?({_AMOUNT})\.?", re.IGNORECASE)  # noqa: RUF001
_RANGE_SAID = re.compile(rf"(?<=\b(?:is|as))(?: from)? {_AMOUNT} (?:to|-) {_AMOUNT}\.?\Z")
_TITLES = word_set(
    "senior executive vice president chair chairman chairwoman chairperson and chief financial officer operating "
    "accounting technology legal marketing of the board director managing partner treasurer secretary general counsel "
    "controller cfo ceo coo cto interim founder co-founder lead independent"
)
_TITLED = re.compile(r"(?<=\w)(?:, ([A-Za-z, -]{2,90})| \(([A-Za-z, -]{2,90})\))\.?\Z")
_MONEY = re.compile(
    r"(us|ca|c|a|hk)?([$€£¥])[ ]?(-?[0-9][0-9,]*(?:\.[0-9]+)?(?: [a-z]{1,3}illion)?)"
    r"|([a-z]{3}) (-?[0-9][0-9,]*(?:\.[0-9]+)?(?: [a-z]{1,3}illion)?)"
)


def same_notation(text: str, truth: str) -> tuple[str, str]:
    """Returns answer and truth in one notation, if the truth is a date, a quarter, a range, a place or a person."""
    if ", " in truth and not any(one.isdigit() for one in truth) and _parts_of(text) == _parts_of(truth):
        return truth, truth
    if (date := _DATE.fullmatch(truth.strip())) and _is_date(date):
        text = _DATE.sub(_plain_date, text)
        several = len({found[0] for found in _DATE.finditer(text)}) > 1
        return ("" if several or _ROUGHLY.search(text.lower()) or _BOUND.search(text.lower()) else text), _plain_date(
            date
        )
    if quarter := _QUARTER.fullmatch(truth.strip()):
        return _QUARTER.sub(_plain_quarter, text), _plain_quarter(quarter)
    if span := _RANGE.fullmatch(truth.strip()):
        said = _RANGE_SAID.search(text)
        given = _RANGE.fullmatch((said[0] if said else text).strip())
        return (_plain_range(given) if given else text), _plain_range(span)
    place = any(truth.rstrip().endswith(f", {state}") for state in _STATES.values()) or bool(_STATE.search(truth))
    if place:
        text = _COUNTRY.sub("", text)
        return (_STATE.sub(_plain_state, text), _STATE.sub(_plain_state, truth))
    titled = _TITLED.search(text)
    words = re.findall(r"[a-z-]+", (titled[1] or titled[2]).lower()) if titled else []
    if titled and words and all(word in _TITLES for word in words):
        return text[: titled.start()], truth
    return text, truth


def in_full(text: str, other: str) -> str:
    """Returns a text whose abbreviations are written as in another text, in lower case: in full, or abbreviated."""
    for short, name in _ABBREVIATIONS.items():
        if name in other:
            text = re.sub(rf"(?<![\w&/]){re.escape(short)}(?![\w&/])", name, text, flags=re.IGNORECASE)
        elif short in other:
            text = text.replace(name, short)
    return text


_ABBREVIATIONS = {
    "r&d": "research and development",
    "sg&a": "selling, general and administrative",
    "d&a": "depreciation and amortization",
    "pp&e": "property, plant and equipment",
    "cogs": "cost of goods sold",
    "capex": "capital expenditures",
    "eps": "earnings per share",
    "fcf": "free cash flow",
    "ocf": "operating cash flow",
    "roe": "return on equity",
    "roa": "return on assets",
}


def _parts_of(text: str) -> list[str]:
    """Returns the names of a list, in their order."""
    return [part.strip(" .\n").lower() for part in _AND.split(text)]


_AND = re.compile(r",? and |, |; |\n| & ")


def _parts(date: re.Match[str]) -> tuple[int, int, int]:
    by_name, by_day, iso, slashed, dotted, reverse = (date.groups()[at : at + 3] for at in range(0, 18, 3))
    if by_name[0]:
        return int(by_name[2]), _NUMBER[by_name[0][:3].lower()], int(by_name[1])
    if by_day[0]:
        return int(by_day[2]), _NUMBER[by_day[1][:3].lower()], int(by_day[0])
    if iso[0]:
        return int(iso[0]), int(iso[1]), int(iso[2])
    if slashed[0]:
        return int(slashed[2]), int(slashed[0]), int(slashed[1])
    if dotted[0]:
        return int(dotted[2]), int(dotted[1]), int(dotted[0])
    return int(reverse[0]), _NUMBER[reverse[1][:3].lower()], int(reverse[2])


def _is_date(date: re.Match[str]) -> bool:
    _, month, day = _parts(date)
    return 1 <= month <= 12 and 1 <= day <= 31


def _plain_date(date: re.Match[str]) -> str:
    if not _is_date(date):
        return date[0]
    year, month, day = _parts(date)
    return f"{_MONTHS[month - 1]} {day}, {year}"


def _plain_quarter(quarter: re.Match[str]) -> str:
    if digit := quarter[1] or quarter[2]:
        return f"{_ORDINALS[int(digit) - 1]} quarter"
    word = quarter[3].lower()
    return f"{_ORDINALS[int(word[0]) - 1] if word[0].isdigit() else word} quarter"


def _plain_range(span: re.Match[str]) -> str:
    low, high = (part.strip("$€£¥ ") for part in span.groups())
    return f"{low} to {high}"


def _plain_state(state: re.Match[str]) -> str:
    return f", {_STATES[state[1]]}"


def amount_of_money(truth: str) -> tuple[str, str] | None:
    """Returns currency code and number of a truth in another currency than the US dollar; None for other truths."""
    match = _MONEY.fullmatch(truth.strip().lower())
    if match is None:
        return None
    sign, number = f"{match[1] or ''}{match[2] or ''}" or match[4], match[3] or match[5]
    code = CURRENCIES.get(sign)
    return (code, number) if code and sign not in ("$", "us$", "usd") else None
