"""Reads the year that an answer decides on, among its amount and the years that it is compared with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finqa_cli.grading.strict_2 import asides, statement
from finqa_cli.grading.strict_2.labels import quantities, unaccounted
from finqa_cli.grading.strict_2.lexer import tokens
from finqa_cli.grading.strict_2.names.names_read import other_extreme
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.numbers_read import rejected, unreadable
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.question_fit import is_about_something_else
from finqa_cli.grading.strict_2.values import Element, Sort, elements

_OPEN_YEARS = word_set("onwards onward forward present later earlier beyond")
_YEAR_BOUNDS = word_set("before after since until from by through between prior pre post")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")


def read_year(text: str, question: Question) -> str | None:
    """Returns the year that a text in lower case names, for a question that asks for one; None for none or several.

    Amounts are allowed beside it, as in `2021, with net income of $4.2 billion`; bare numbers are not.
    """
    text = _without_others_in_brackets(_without_asked_span(text, question), question)
    found = elements(text, tokens(text))
    start, end = statement.region(text)
    if unreadable(text, found):
        return None
    runner_up = _RUNNER_UP.search(text, start, end) or _others_after(text, start, end)
    if (others := _COMPARED_WITH.search(text, start, end)) and _is_exceeded(
        text[start : others.start()], text[others.start() : end], question
    ):
        return None
    start, end = _last_ranking(text, start, end), runner_up.start() if runner_up else end
    within = [one for one in found if start <= one.start < end]
    sides = asides.without_asides(statement.result_after_arrow(within), question)
    kept, dropped = statement.without_contrasts(sides, lambda one: one.sort in (Sort.YEAR, Sort.VALUE))
    kept = [_as_year(one) for one in kept]
    years = [one for one in kept if one.sort is Sort.YEAR]
    bare = [one for one in kept if one.sort is Sort.VALUE and not _is_amount(one) and one.text not in question.numbers]
    bare = [one for one in bare if not _MONTH.fullmatch(kept[kept.index(one) - 1].text)]
    if len(bare) == 1 and _RANKING_WORD.search(question.text) and _is_its_amount(bare[0], kept):
        bare = []
    if len({one.text for one in years}) != 1 or bare or rejected(text, start, years[0], dropped, question):
        return None
    named = quantities(" ".join(one.text for one in kept if one.sort is Sort.WORD))
    if named and question.quantities and not named & question.quantities:
        return None
    words = [one.text for one in kept if one.sort is Sort.WORD]
    if named and question.known and not question.quantities and unaccounted(words, question.words):
        return None
    if other_extreme(text, question) or _RANKED.search(text) or is_about_something_else(kept, years[0], question):
        return None
    place = kept.index(years[0])
    before = kept[place - 1].text if place else ""
    if any(one.text in _OPEN_YEARS for one in kept[place + 1 : place + 4]):
        return None
    return None if before in _YEAR_BOUNDS else years[0].text


def _without_asked_span(text: str, question: Question) -> str:
    """Returns a text without the period of the question, `from 2016 to 2019`, if another year remains."""
    asked = {match.group(1, 2) for match in _YEAR_SPAN.finditer(question.text)}
    rest = _YEAR_SPAN.sub(lambda span: " " if span.group(1, 2) in asked else span[0], text)
    return rest if _YEAR.search(rest) else text


_YEAR_SPAN = re.compile(
    r"(?:,? ?\b(?:from|between|over|during|among|in|for|of|across)(?: the)?(?: years| period)? )?"
    r"((?:19|20)[0-9]{2})(?: ?- ?| to | and | through )((?:19|20)[0-9]{2})(?![0-9%]|[.,][0-9])"
)


def _without_others_in_brackets(text: str, question: Question) -> str:
    """Returns a text without `(2014: $140 million; 2016: $121 million)` at its end, if none exceeds its own amount."""
    others = _OTHERS_IN_BRACKETS.search(text)
    if others is None or not _RANKING_WORD.search(question.text):
        return text
    before = text[: others.start()]
    own, named = set(_YEAR.findall(before)), set(_YEAR.findall(others[0]))
    amounts = [one for one in _WHOLE.findall(_YEAR.sub(" ", before)) if one]
    if len(own) != 1 or own & named or len(amounts) != 1 or _is_exceeded(before, others[0], question):
        return text
    return before


_OTHER_YEAR = (
    r"(?:fy ?)?(?:19|20)[0-9]{2}(?: ?[:=,]| at| with| was)? "
    r"?-?[$€£]?[0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?(?: ?%| [a-z]{1,8}illion|m|b)?"
)
_OTHERS_IN_BRACKETS = re.compile(
    rf" \((?:(?:vs\.?|versus|compared (?:to|with)) )?{_OTHER_YEAR}"
    rf"(?:(?:[;,] (?:and )?| and ){_OTHER_YEAR}){{0,9}}\)[. ]*\Z"
)


def _others_after(text: str, start: int, end: int) -> re.Match[str] | None:
    """Returns where the years begin that a ranked year is compared with: `, compared with $210 million in 2013`."""
    others = _COMPARED_WITH.search(text, start, end)
    if others is None or _YEAR.search(text, start, others.start()) is None:
        return None
    before = text[start : others.start()]
    says = _RANKING_WORD.search(before) or any(not _YEAR.fullmatch(one) for one in _WHOLE.findall(before))
    own = set(_YEAR.findall(before))
    return others if says and len(own) == 1 and own.isdisjoint(_YEAR.findall(text, others.start(), end)) else None


def _is_exceeded(before: str, after: str, question: Question) -> bool:
    """Returns whether an amount of the other years exceeds that of the year; for the lowest, whether it is smaller."""
    own, others = (
        [float(one.replace(",", "").rstrip(".")) for one in _WHOLE.findall(_YEAR.sub(" ", side)) if one.count(".") < 3]
        for side in (before, after)
    )
    if len(own) != 1 or not others:
        return False
    is_low = _LOWEST.search(question.text) is not None
    return min(others) < own[0] if is_low else max(others) > own[0]


_LOWEST = re.compile(r"\b(?:lowest|smallest|least|fewest|min\w*)\b")
_COMPARED_WITH = re.compile(
    r",? \(?(?:compared (?:with|to)|versus|vs\.?|against|ahead of|followed by|before (?:falling|declining|dropping)) "
)
_WHOLE = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?")


def _is_its_amount(one: Element, found: Sequence[Element]) -> bool:
    """Returns whether a bare number is the amount of the year: `2017 (318)`, `max = 318 (2017)`."""
    before = found[found.index(one) - 1].text if found.index(one) else ""
    assert one.value is not None
    amount = abs(one.value.number.value)
    return before in _JOINS and amount >= _LEAST_AMOUNT and not 1900 <= amount < 2100


_JOINS = word_set("( : = → with at of , | $")
_LEAST_AMOUNT = 100
"""A smaller bare number may be a year of two digits."""


def _last_ranking(text: str, start: int, end: int) -> int:
    """Returns where the last sentence begins, if only it ranks the years of the series before it; else `start`."""
    last = _RANKING.search(text, start, end)
    if last is None or _RANKING_WORD.search(text, start, last.start()):
        return start
    return last.start() + 1


_RANKING_WORD = re.compile(r"\b(?:highest|largest|greatest|biggest|lowest|smallest|most|least|peak\w*|max\w*|min\w*)\b")
_RANKING = re.compile(
    rf"(?:[.;\n]|, (?=so |hence |thus |therefore )) ?[^.;\n0-9]{{0,60}}{_RANKING_WORD.pattern}[^.;\n0-9]{{0,60}}"
    r"(?:19|20)[0-9]{2}[.! ]*\Z"
)
_RUNNER_UP = re.compile(
    r",? (?:followed by|ahead of) (?:fiscal )?(?:19|20)[0-9]{2}"
    r"(?:(?!(?:19|20)[0-9]{2})[^.;\n]){0,60}(?:[.][0-9]+[a-z %]{0,20})?\.?\Z"
)


def _as_year(one: Element) -> Element:
    """Returns a year in words, as in `two thousand twenty-one`, as a year; other elements unchanged."""
    value = one.value
    if one.sort is Sort.VALUE and value is not None and "words" in value.written and _YEAR.fullmatch(one.text):
        return Element(Sort.YEAR, one.text, one.start, one.end, value)
    return one


_RANKED = re.compile(
    r"(?<![\w-])(?:second|third|fourth|2nd|3rd|4th|runner-up|lost to|after|before|following|preceding|prior to|"
    r"later|earlier|"
    r"but 2|mid-)(?![\w-]?[a-z])"
)
_MONTH = re.compile(r"(?:jan|feb|mar|apr|may|june?|july?|aug|sept?|oct|nov|dec)[a-z]*\.?")


def _is_amount(one: Element) -> bool:
    value = one.value
    return value is not None and (bool(value.currency or value.measure) or value.at_word or not value.number.is_whole)
