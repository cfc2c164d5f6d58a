"""An answer or a truth as a list of values, each with the year or name before it, if one is there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.grading.latex import Box, boxes, plain
from finqa_cli.grading.numbers import Number, parse_number
from finqa_cli.grading.units import leading_unit

MOST_ITEMS = 100

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
# Right beside a box these belong to its number: `-\boxed{5}` is -5, and `~\boxed{5}` is no number.
_SIGNS = ("-",)
_SYMBOLS = tuple("-+(~≈<>≤≥±/^%|&#)\\")
_NO_TEXTS = frozenset({"nan", "inf", "infinity", "-nan", "-inf", "-infinity", "none", "null"})


@dataclass(frozen=True, slots=True)
class Item:
    """A value and what it is of: `2023`, `2022 to 2023`, a name, or nothing."""

    key: str
    value: Number | str

    @property
    def is_of_years(self) -> bool:
        """The key is a year, or two."""
        return bool(_YEARS_IN_PROSE.fullmatch(self.key))


def bare_text(text: str) -> str:
    """A text for comparison: plain, lower case, without quotes and stops around it, nor a box that is all there is.

    Empty for NaN and the like, and for what has neither letters nor digits.
    """
    found = boxes(text)
    if len(found) == 1 and not _trimmed(plain(found[0].before)) and not _trimmed(plain(found[0].after)):
        text = found[0].content
    bare = _trimmed(" ".join(plain(text).split()))
    bare = bare.removesuffix("!") if bare[-2:-1].isalpha() else bare
    has_content = any(character.isalnum() for character in bare)
    return bare if has_content and bare not in _NO_TEXTS else ""


def answer_items(text: str) -> list[Item] | str:
    """The values of an answer, or why there are none.

    With boxes only these count, and no number but a year may stand beside them, so that the answer shows one decision.
    """
    found = boxes(text)
    if len(found) > MOST_ITEMS:
        return f"There are more than {MOST_ITEMS} values."
    if not found:
        items = _items(_LEAD_IN.sub("", plain(text)), is_truth=False)
    elif _numbers_beside(found):
        return "There are other numbers beside the boxed ones."
    else:
        items = [item for box in found for item in _boxed_items(box, is_truth=False)]
    return items if len(items) <= MOST_ITEMS else f"There are more than {MOST_ITEMS} values."


def truth_items(text: str) -> list[Item]:
    """The values of a truth. A text that is no list of numbers, yes and no is one value, whatever commas it has."""
    parts = [(box.content, _boxed_items(box, is_truth=True)) for box in boxes(text)]
    items = []
    for written, part in parts or [(text, _items(plain(text), is_truth=True))]:
        is_list = all(isinstance(item.value, Number) or item.value in ("yes", "no") for item in part)
        items += part if is_list else [Item("", bare_text(written))]
    return items


def _numbers_beside(found: Sequence[Box]) -> bool:
    outside = " ".join([found[0].before, *(box.after for box in found)])
    return any(character.isnumeric() for character in _YEARS_IN_PROSE.sub(" ", plain(outside)))


def _boxed_items(box: Box, *, is_truth: bool) -> list[Item]:
    """The values in a box; a single one takes its unit from behind the box, and sign and year from before it."""
    before, content, after = plain(box.before), plain(box.content), plain(box.after)
    items = _items(content, is_truth=is_truth)
    if len(items) != 1:
        return items
    items = _items(_with_neighbours(before, content, after, is_truth), is_truth=is_truth)
    years = {_years(match) for match in _YEARS_IN_PROSE.finditer(before)}
    if len(years) == 1 and len(items) == 1 and not items[0].key:
        return [Item(years.pop(), items[0].value)]
    return items


def _with_neighbours(before: str, content: str, after: str, is_truth: bool) -> str:
    """A boxed value with what belongs to it outside: the unit, and symbols that change it or make it no number."""
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
