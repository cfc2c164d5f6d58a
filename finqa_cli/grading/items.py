r"""Answers and truths as lists of values, each with the year or name before it, without LaTeX and Markdown.

If there is a `\boxed{...}`, its content is the value. Values of an answer are paired with those of the truth by their
years or names, or by their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from finqa_cli.grading.numbers import Number, leading_unit, parse_number
from finqa_cli.grading.verdict import MAX_ANSWER_BYTES

MOST_ITEMS = 100
_LARGEST_WHOLE = 10**15

_BRACES = re.compile(r"\\boxed\s{0,8}\{|\\.|[{}]", re.DOTALL)
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,)(?=[0-9]{3})")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|operatorname)\s{0,8}\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dt]?frac\s{0,8}\{([^{}]*)\}\s{0,8}\{([^{}]*)\}")
_ARROW = re.compile(r"\\rightarrow|\\to(?![a-z])|→|[-−]>")  # noqa: RUF001  the minus sign is what some answers carry
_LAYOUT = re.compile(r"\\(?:(?:left|right|displaystyle|qquad|quad)(?![a-z])|[()\[\];:!, $])|\*\*|[$€£`]")
_BLANKS = re.compile(r"[^\S\n]+")
_MINUS_SIGNS = str.maketrans(dict.fromkeys("−–‐‑﹣", "-"))  # noqa: RUF001  the hyphens and dashes that stand for a minus

_YEAR = r"(?:19|20)[0-9]{2}"
_YEARS = rf"(?<![0-9])({_YEAR})(?: ?(?:to|-|/) ?(?:fy ?)?({_YEAR}))?(?![0-9])"
_YEAR_KEY = re.compile(rf"(?:fy|fiscal year|fiscal|year)? ?{_YEARS}")
_YEARS_IN_PROSE = re.compile(_YEARS)
_NAME_KEY = re.compile(r"[a-z][a-z &'./_-]{0,59}[0-9]{0,2}")
_KEY_END = re.compile(r" ?[:=] ?")
# A comma before exactly three digits belongs to a number: `1,234` is one value, `1, 234` and `1,2` are two.
_BETWEEN = re.compile(r"(?:,(?![0-9]{3}(?![0-9]))|[;\n])\s*(?:and\b)?|\band\b(?=[ ]?[-+(.0-9])")
_LEAD_IN = re.compile(r"\A(?:the )?(?:final )?answer(?: is ?:?| ?[:=]) ?")
_BEFORE = " \t\n\"'*"
_AFTER = _BEFORE + ".,;"
# Directly beside a boxed value these belong to its number: `-\boxed{5}` is -5, and `~\boxed{5}` is not a number.
_SIGNS = ("-",)
_SYMBOLS = tuple("-+(~≈<>≤≥±/^%|&#)\\")
_NO_TEXTS = frozenset({"nan", "inf", "infinity", "-nan", "-inf", "-infinity", "none", "null"})


@dataclass(frozen=True, slots=True)
class Item:
    """A value with its key: `2023`, `2022 to 2023`, a name, or ""."""

    key: str
    value: Number | str

    @property
    def is_of_years(self) -> bool:
        """Whether the key is one year or two."""
        return bool(_YEARS_IN_PROSE.fullmatch(self.key))


class Keyed(Protocol):
    """A value of an answer that may have a year or name."""

    @property
    def key(self) -> str:
        """One year, two years, a name, or ""."""
        ...

    @property
    def is_of_years(self) -> bool:
        """Whether the key is one year or two."""
        ...


KeyedT = TypeVar("KeyedT", bound=Keyed)
WantedT = TypeVar("WantedT", bound=Keyed)


@dataclass(frozen=True, slots=True)
class BoxedPart:
    r"""The contents of one `\boxed{...}`, and the text between it and its neighbours."""

    before: str
    content: str
    after: str


def boxed_parts(text: str) -> tuple[BoxedPart, ...]:
    r"""Finds every outermost `\boxed{...}` with balanced braces, in a single pass; an unclosed one is ignored."""
    if "\\boxed" not in text:
        return ()
    spans: list[tuple[int, int, int]] = []
    opened: list[tuple[int, int] | None] = []
    box_depth = 0
    for match in _BRACES.finditer(text):
        token = match.group()
        if token.endswith("{") and token != "\\{":
            is_box = token != "{" and not box_depth
            opened.append(match.span() if is_box else None)
            box_depth = len(opened) if is_box else box_depth
        elif token == "}" and opened and (start := opened.pop()):
            spans.append((*start, match.start()))
            box_depth = 0
    edges = [0, *(end + 1 for _, _, end in spans)]
    starts = [*(start for start, _, _ in spans), len(text)]
    return tuple(
        BoxedPart(text[edges[place] : start], text[content:end], text[end + 1 : starts[place + 1]])
        for place, (start, content, end) in enumerate(spans)
    )


def plain(text: str) -> str:
    r"""Returns plain text in lower case: `\frac{1}{2}` is ` 1/2 `, `\text{Yes}` is ` yes `, `\%` is `%`.

    Anything that is removed leaves a blank, so that two numbers are never joined. Currency signs are removed, because
    the currency is not graded. Digits of other scripts are kept and do not count as digits.
    """
    text = _THOUSANDS.sub(",", text)
    for _ in range(3):  # honest answers are not nested deeper than a \text in a \textbf in a \frac
        text = _FRACTION.sub(r" \1/\2 ", _TEXT.sub(r" \1 ", text))
    text = _ARROW.sub(" to ", text).replace("\\%", "%").replace("\\&", "&")
    text = _LAYOUT.sub(" ", text).translate(_MINUS_SIGNS)
    return _BLANKS.sub(" ", text).strip().lower()


def bare_text(text: str) -> str:
    r"""Returns a text for comparison: plain, lower case, without quotes, stops or a `\boxed` around it.

    Empty for NaN and similar texts, and for a text with neither letters nor digits.
    """
    found = boxed_parts(text)
    if len(found) == 1 and not _trimmed(plain(found[0].before)) and not _trimmed(plain(found[0].after)):
        text = found[0].content
    bare = _trimmed(" ".join(plain(text).split()))
    bare = bare.removesuffix("!") if bare[-2:-1].isalpha() else bare
    has_content = any(character.isalnum() for character in bare)
    return bare if has_content and bare not in _NO_TEXTS else ""


def answer_items(text: str) -> list[Item] | str:
    r"""Returns the values of an answer, or the reason why it has none.

    If there are `\boxed` parts, only these count, and no number other than a year is allowed beside them.
    """
    found = boxed_parts(text)
    if len(found) > MOST_ITEMS:
        return f"There are more than {MOST_ITEMS} values."
    if not found:
        items = _items(_LEAD_IN.sub("", plain(text)), is_truth=False)
    elif _numbers_beside(found):
        return "There are other numbers beside the boxed ones."
    else:
        items = [item for part in found for item in _boxed_items(part, is_truth=False)]
    return items if len(items) <= MOST_ITEMS else f"There are more than {MOST_ITEMS} values."


def truth_items(text: str) -> list[Item]:
    """Returns the values of a truth. A text is one value, even with commas, unless it lists numbers, yes and no."""
    parts = [(boxed.content, _boxed_items(boxed, is_truth=True)) for boxed in boxed_parts(text)]
    items = []
    for written, part in parts or [(text, _items(plain(text), is_truth=True))]:
        is_list = all(isinstance(item.value, Number) or item.value in ("yes", "no") for item in part)
        items += part if is_list else [Item("", bare_text(written))]
    return items


def pair_up(submitted: Sequence[KeyedT], expected: Sequence[WantedT]) -> list[tuple[KeyedT, WantedT]] | str:
    """Pairs each value of the answer, in order, with the expected one; or returns why this is not possible.

    An expected value without a year may have one in the answer. It may not have a name: `No: yes` would be two answers.
    """
    if len(submitted) != len(expected):
        return f"{len(expected)} {'value is' if len(expected) == 1 else 'values are'} expected, got {len(submitted)}."
    keys = [item.key for item in submitted if item.key]
    if len(set(keys)) < len(keys):
        return "A year or name comes twice."
    if 0 < len(keys) < len(submitted):
        return "Some values come with a year or name and some without."
    by_key = {item.key: item for item in expected if item.key}
    if keys and len(by_key) == len(expected):
        if by_key.keys() != set(keys):
            return "The years or names are not those that are expected."
        return [(item, by_key[item.key]) for item in submitted]
    if any(item.key and not item.is_of_years for item in submitted):
        return "A name or another word stands before a value, and none is expected."
    return list(zip(submitted, expected, strict=True))


def _numbers_beside(found: Sequence[BoxedPart]) -> bool:
    outside = " ".join([found[0].before, *(boxed.after for boxed in found)])
    return any(character.isnumeric() for character in _YEARS_IN_PROSE.sub(" ", plain(outside)))


def _boxed_items(boxed: BoxedPart, *, is_truth: bool) -> list[Item]:
    """Returns the values of a boxed part. A single one takes its unit from the text after it, and sign and year from
    the text before it.
    """
    before, content, after = plain(boxed.before), plain(boxed.content), plain(boxed.after)
    items = _items(content, is_truth=is_truth)
    if len(items) != 1:
        return items
    items = _items(_with_neighbours(before, content, after, is_truth), is_truth=is_truth)
    years = {_years(match) for match in _YEARS_IN_PROSE.finditer(before)}
    if len(years) == 1 and len(items) == 1 and not items[0].key:
        return [Item(years.pop(), items[0].value)]
    return items


def _with_neighbours(before: str, content: str, after: str, is_truth: bool) -> str:
    """Returns a boxed value with the text beside it that belongs to it: unit, and symbols such as a sign."""
    symbols = _SIGNS if is_truth else _SYMBOLS
    unit = leading_unit(after)
    rest = unit[1] if unit else ""
    sign = before[-1] if before.endswith(symbols) else ""
    end = rest[0] if rest.startswith(symbols) and not is_truth else ""
    return f"{sign}{content} {after.removesuffix(rest)}{end}"


def _items(text: str, *, is_truth: bool) -> list[Item]:
    parts = _BETWEEN.split(_trimmed(text), maxsplit=MOST_ITEMS)
    return [_item(_trimmed(part), is_truth) for part in parts]


def _item(text: str, is_truth: bool) -> Item:
    key, value = "", text
    if end := _KEY_END.search(text):
        key = _key(text[: end.start()].strip(_BEFORE))
        value = text[end.end() :] if key else text
    number = parse_number(value, any_noun=is_truth)
    return Item(key, bare_text(value) if number is None else number)


def _trimmed(text: str) -> str:
    return text.lstrip(_BEFORE).rstrip(_AFTER)


def _key(text: str) -> str:
    if match := _YEAR_KEY.fullmatch(text):
        return _years(match)
    return text if _NAME_KEY.fullmatch(text) else ""


def _years(match: re.Match[str]) -> str:
    return f"{match[1]} to {match[2]}" if match[2] else match[1]


def read_numbers(text: str) -> str:
    """Returns the numbers of an answer or truth with their keys and units applied: `12.5%` is `0.125`.

    All grading profiles read these forms; a profile may read further forms.

    Returns:
        "" if there is no number, or the values are ambiguous.
    """
    found = answer_items(text) if len(text) <= MAX_ANSWER_BYTES else ""
    if isinstance(found, str):
        return ""
    numbers = [(item.key, item.value) for item in found if isinstance(item.value, Number)]
    return ", ".join(f"{key}: {_decimal(value)}" if key else _decimal(value) for key, value in numbers)


def _decimal(number: Number) -> str:
    value = number.value
    if value.denominator == 1 and abs(value) < _LARGEST_WHOLE:
        return f"{value.numerator:,}"
    try:
        return f"{float(value):,.12g}"
    except OverflowError:
        return str(number.mantissa.numerator)[:20] + "…"
