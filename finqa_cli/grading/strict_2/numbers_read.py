"""The numbers that an answer decides on, each with its year or name; or why it has not decided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.grading.items import MOST_ITEMS
from finqa_cli.grading.numbers import Kind
from finqa_cli.grading.strict_2 import asides, refused_words, statement, working
from finqa_cli.grading.strict_2.direction import is_inverted, is_level, signed
from finqa_cli.grading.strict_2.labels import contradicts, is_foreign, quantities
from finqa_cli.grading.strict_2.lexer import tokens
from finqa_cli.grading.strict_2.names_read import other_extreme
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.values import Element, Sort, Value, elements, is_same
from finqa_cli.grading.strict_2.wordlists import word_set

_INEQUALITIES = ("!=", "==", "<", ">", "≤", "≥", "≠", "±", "∞", "+/-", "<>")
_EMPTY_ITEM = re.compile(r"[,;]\s*[,;]")
_ABSOLUTE = re.compile(r"\s*\|(?:[^|\n]*-[^|\n]*|[^|\s](?:[^|\n]*[^|\s])?)\|\s*|.*(?<!\w)![0-9].*", re.DOTALL)
_OPEN_YEARS = word_set("onwards onward forward present later earlier beyond")
_YEAR_BOUNDS = word_set("before after since until from by through between prior pre post")


@dataclass(frozen=True, slots=True)
class Given:
    """A value of an answer with its key: a year, two, a name, or nothing."""

    key: str
    value: Value

    @property
    def is_of_years(self) -> bool:
        """The key is a year, or two."""
        return self.key[:4].isdigit()


def read_one(text: str, question: Question) -> Given | str:
    """The one number that a text in lower case decides on."""
    text = _plain_numerals(text, question)
    if is_inverted(text, question) or is_level(text, question):
        return "The value is of the inverse, or of the level that is left."
    start, end = statement.region(text)
    found = elements(text, tokens(text), counts=question.asks_how_many)
    if why := unreadable(text, found, statement.decides_from(text)):
        return why
    within = [one for one in found if start <= one.start < end]
    within = statement.without_spans(asides.to_asked_year(working.as_equations(working.with_cents(within)), question))
    within = asides.without_asides(within, question)
    kept, dropped = statement.without_contrasts(within, lambda one: one.sort is Sort.VALUE)
    if len(_amounts(kept, question)) > 1:
        later = statement.weak_start(text, start, end)
        if any(one.sort is Sort.VALUE for one in kept if one.start >= later):
            kept, start = [one for one in kept if one.start >= later], later
    if len(_amounts(kept, question)) > 1:
        kept = asides.without_explanation(working.last_labelled(working.after_fronted_clause(kept), question))
        kept = statement.without_used_results(kept)
    result = statement.result_of(statement.without_working(kept))
    if isinstance(result, str):
        return result
    amounts = _amounts(result, question)
    values = working.of_asked_kind(amounts, question)
    left = {one.start for one in amounts} - {one.start for one in values}
    kept = [one for one in kept if one.start not in left or one.sort is not Sort.VALUE]
    if any(one.text == refused_words.OR_EQUAL for one in result) and len(_values(result)) - len(values) < 1:
        return "The answer names alternatives."
    if len(values) != 1:
        return f"1 value is expected, got {len(values)}."
    if why := _rejected(text, start, values[0], dropped) or _announced_otherwise(text, found, values[0]):
        return why
    value = signed(values[0], kept, question)
    if isinstance(value, str):
        return value
    if why := _another_time(kept, values[0], question) or _another_quantity(kept, values[0], question):
        return why
    return Given("", value)


_DECIMAL_COMMA = re.compile(r"(?<![0-9.,%])([0-9]{1,3}),([0-9]{1,2})(?=[ ]?%)")
_BELOW_ONE = re.compile(r"(?<![0-9.,:])(0\.[0-9]{1,9})[ ]?(?::|to)[ ]?1(?:\.0{1,3})?(?![0-9:%]|[.,][0-9])")
_YEAR_ARGUMENT = re.compile(r"(?<=[a-z])\((?=(?:19|20)[0-9]{2}\))")
_SCOPE = re.compile(r"(?<=[0-9a-z%]), (?:excluding|before|net of) [a-z -]{3,60}\.?\Z")


def _plain_numerals(text: str, question: Question) -> str:
    """`5,2 %` with a point, `0.85:1` for a ratio as 0.85, and without the scope that ends `204, excluding rentals`."""
    text = _YEAR_ARGUMENT.sub(" (", _SCOPE.sub("", text))
    if len(_DECIMAL_COMMA.findall(text)) == text.count("%"):
        text = _DECIMAL_COMMA.sub(r"\1.\2", text)
    return _BELOW_ONE.sub(r"\1", text) if "ratio" in question.text or not question.known else text


def _announced_otherwise(text: str, found: Sequence[Element], final: Element) -> str:
    """Why an earlier `answer is` contradicts the last one, or nothing."""
    start, end = statement.announced_before(text)
    for one in found:
        differs = one.value is not None and final.value is not None and not is_same(one.value, final.value)
        if start <= one.start < end and one.sort is Sort.VALUE and differs:
            return "Two different answers are announced."
    return ""


def read_year(text: str, question: Question) -> str | None:
    """The year that a text in lower case names, for a question that asks for one; None when it names none or several.

    Amounts may stand beside it, as in `2021, with net income of $4.2 billion`; bare numbers may not.
    """
    found = elements(text, tokens(text))
    start, end = statement.region(text)
    if unreadable(text, found):
        return None
    within = [one for one in found if start <= one.start < end]
    sides = asides.without_asides(statement.result_after_arrow(within), question)
    kept, dropped = statement.without_contrasts(sides, lambda one: one.sort in (Sort.YEAR, Sort.VALUE))
    kept = [_as_year(one) for one in kept]
    years = [one for one in kept if one.sort is Sort.YEAR]
    bare = [one for one in kept if one.sort is Sort.VALUE and not _is_amount(one) and one.text not in question.numbers]
    bare = [one for one in bare if not _MONTH.fullmatch(kept[kept.index(one) - 1].text)]
    if len({one.text for one in years}) != 1 or bare or _rejected(text, start, years[0], dropped):
        return None
    if other_extreme(text, question) or _RANKED.search(text):
        return None
    place = kept.index(years[0])
    before = kept[place - 1].text if place else ""
    if any(one.text in _OPEN_YEARS for one in kept[place + 1 : place + 4]):
        return None
    return None if before in _YEAR_BOUNDS else years[0].text


def _values(found: Sequence[Element]) -> list[Element]:
    return [one for one in found if one.sort is Sort.VALUE]


def unreadable(text: str, found: Sequence[Element], start: int = 0) -> str:
    """Why a text has no number that can be read, or nothing; before `start` is working, which may have any form."""
    if sum(one.value is not None for one in found) > MOST_ITEMS:
        return f"There are more than {MOST_ITEMS} values."
    if any(one.sort is Sort.MALFORMED and one.end > start for one in found):
        return "A number is malformed, or stands beside what changes it."
    if any(sign in text[start:] for sign in _INEQUALITIES):
        return "There is an inequality."
    if _EMPTY_ITEM.search(text):
        return "A value of a list is missing."
    if _ABSOLUTE.fullmatch(text):
        return "An absolute value is not computed."
    if refused_words.WORDS_OF_DECISIONS.search(text):
        return "There is a yes or no beside a number."
    return ""


def _amounts(found: Sequence[Element], question: Question) -> list[Element]:
    return statement.merge_notations(statement.candidates(found, question), found, question.scale)


def _rejected(text: str, start: int, one: Element, dropped: str) -> str:
    """Why the statement around a value takes it back, or nothing."""
    around = text[min(statement.clause_start(text, start), statement.clause_start(text, one.start)) :]
    for part in dropped.split("\n"):
        around = _without(around, part)
    is_zero = one.value is not None and one.value.number.value == 0
    if refused_words.REJECTED.search(around) or (refused_words.NO_AS_DETERMINER.search(around) and not is_zero):
        return "The answer rejects a value."
    return ""


def _without(text: str, dropped: str) -> str:
    """A text without the cue words of contrasts that were taken out."""
    for cue in ("not", "instead of", "rather than", "than"):
        if cue in dropped:
            text = text.replace(f"{cue} ", " ", 1)
    return text


def _another_time(found: Sequence[Element], one: Element, question: Question) -> str:
    """Why a value is given to a time that the question does not ask for, or nothing."""
    words = " ".join(element.text for element in found)
    if refused_words.ANOTHER_TIME.search(words):
        return "The value is of another time."
    around = [(found[at - 1].text, found[at].text) for at in range(1, len(found)) if found[at].sort is Sort.YEAR]
    if any(_AROUND_YEAR.fullmatch(word) and f"{word} {year}" not in question.text for word, year in around):
        return "The value is of another time."
    working = {at for at, element in enumerate(found) if element.sort is Sort.OPERATION}
    years = {
        element.text
        for at, element in enumerate(found)
        if element.sort is Sort.YEAR and element is not one and not working & {at - 1, at + 1}
    }
    if years and question.years and not years & question.years:
        return "The value is of another year."
    if (
        years
        and question.base_year in question.years
        and years == {question.base_year}
        and re.search(r"\bin (?:fy ?)?[0-9]", words)
    ):
        return "The value is of the year before."
    if len(years) > 1 and len(question.years) == 1 and re.search(r"\b(?:total|combined|cumulative|together)\b", words):
        return "The value is of several years."
    return ""


_AROUND_YEAR = re.compile(r"before|after|until|since|prior|pre")


def _another_quantity(found: Sequence[Element], one: Element, question: Question) -> str:
    """Why the label of a value names a quantity that the question does not ask for, or nothing."""
    if not question.known:
        return ""
    place = found.index(one)
    start = place
    while start and found[start - 1].sort in _LABEL_SORTS and found[start - 1].text not in _ENDS:
        start -= 1
    end = place + 1
    while end < len(found) and found[end].sort in _LABEL_SORTS and found[end].text not in _ENDS:
        end += 1
    before, after = _words(found[start:place]), _words(found[place + 1 : end])
    label = " ".join(before)
    if (each := _EACH.match(" ".join(after))) and each[0] not in question.text:
        return "The value is one of several."
    if contradicts(f"{label} | {' '.join(after)}", question.text):
        return "The value is labelled as another one."
    value = one.value
    is_share = value is not None and value.number.unit.kind is Kind.PERCENT and after[:1] == ["of"]
    if is_share and not question.asks_ratio and _is_other(quantities(" ".join(after)), question):
        return "The value is a share of something else."
    is_formula = "/" in {element.text for element in found[start:place]} or bool(_FORMULA.search(label))
    if not is_formula and _is_other(quantities(label), question):
        return "The value is labelled as another quantity."
    is_said = len(after) > 1 and after[0] in _SAYS
    if not is_formula and (
        is_foreign(before, question.words) or _has_unknown_noun(one, found[place + 1 : end], question)
    ):
        return "The value is labelled as something else."
    if not question.asks_ratio and _has_other_object([*before, "|", *after], question):
        return "The value is of something else."
    if is_said and (is_foreign(after, question.words) or _is_other(quantities(" ".join(after)), question)):
        return "The value is labelled as something else."
    return ""


def _has_other_object(words: Sequence[str], question: Question) -> bool:
    """A phrase such as `on term loans` or `to intangibles` names what the question does not."""
    for at, word in enumerate(words[:-1]):
        if word in _OBJECT_OF:
            nouns = [one for one in words[at + 1 : at + 4] if one not in ("the", "its", "their", "a", "an")][:1]
            if nouns and is_foreign(nouns, question.words):
                return True
    return False


_OBJECT_OF = frozenset(("to", "on", "over", "above"))


def _has_unknown_noun(one: Element, after: Sequence[Element], question: Question) -> bool:
    """What is counted is right behind the value, and neither a unit nor of the question: `7.42 BTC`."""
    if not after or after[0].sort is not Sort.WORD or (one.value and one.value.measure):
        return False
    return is_foreign([after[0].text], question.words)


_FORMULA = re.compile(
    r"\b(?:divided|ratio of|percentage of|percent of|share of|proportion of|as a|relative to|over|per)\b"
)
_EACH = re.compile(r"(?:each|apiece|quarterly|monthly|weekly|daily|per (?:quarter|month|week|day))\b")


def _words(found: Sequence[Element]) -> list[str]:
    return [element.text for element in found if element.sort is Sort.WORD]


def _is_other(named: frozenset[str], question: Question) -> bool:
    return bool(named and question.quantities and not named & question.quantities)


_ENDS = frozenset((".", ";", ",", "(", "—", "-"))
_LABEL_SORTS = (Sort.WORD, Sort.SYMBOL, Sort.YEAR)
_SAYS = frozenset((":", "=", "→", "is", "was", "are", "were"))


def _as_year(one: Element) -> Element:
    """A year that is spelled, as in `two thousand twenty-one`."""
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
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")


def _is_amount(one: Element) -> bool:
    value = one.value
    return value is not None and (bool(value.currency or value.measure) or value.at_word or not value.number.is_whole)
