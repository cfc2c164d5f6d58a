"""Reads the number that an answer decides on, or returns why the answer is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.grading.items import MOST_ITEMS
from finqa_cli.grading.numbers import Kind
from finqa_cli.grading.strict_2 import asides, refused_words, statement, working
from finqa_cli.grading.strict_2.direction import is_inverted, is_level, signed
from finqa_cli.grading.strict_2.labels import contradicts, is_foreign, is_related, unaccounted
from finqa_cli.grading.strict_2.lexer import tokens
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.question_fit import OVER_YEARS, another_span, why_other
from finqa_cli.grading.strict_2.reasons import compares_otherwise
from finqa_cli.grading.strict_2.rewording import in_plain_words
from finqa_cli.grading.strict_2.units import SCALES
from finqa_cli.grading.strict_2.values import Element, Sort, Value, elements, is_same

_INEQUALITIES = ("!=", "==", "<", ">", "≤", "≥", "≠", "±", "∞", "+/-", "<>")
_EMPTY_ITEM = re.compile(r"[,;]\s*[,;]")
_ABSOLUTE = re.compile(r"\s*\|(?:[^|\n]*-[^|\n]*|[^|\s](?:[^|\n]*[^|\s])?)\|\s*|.*(?<!\w)![0-9].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Given:
    """A value of an answer with its key: one year or two, a name, or ""."""

    key: str
    value: Value

    @property
    def is_of_years(self) -> bool:
        """Whether the key is one year or two."""
        return self.key[:4].isdigit()


def read_one(text: str, question: Question) -> Given | str:
    """Returns the one number that a text in lower case decides on, or why the text is refused."""
    text = in_plain_words(_plain_numerals(text, question), question)
    if _BY_HOW_MUCH.search(question.text) and compares_otherwise(text, question):
        return "The comparison is reversed."
    if _MONTH_NAMES.search(question.text) and set(_MONTH_NAMES.findall(text)) - set(
        _MONTH_NAMES.findall(question.text)
    ):
        return "The value is of another month."
    if question.known and (why := another_span(text, question) or _from_range(text, question)):
        return why
    if question.known and asides.explains_another(text, question):
        return "A remark next to the value is about another quantity."
    tenors = set(_TENORS.findall(question.text))
    if tenors and set(_TENORS.findall(text)) - tenors:
        return "The value is of another term."
    if is_inverted(text, question) or is_level(text, question):
        return "The value is the inverse, or the remainder."
    start, end = statement.region(text)
    found = elements(text, tokens(text), counts=question.asks_how_many)
    if not any(one.value for one in found):
        return "1 value is expected, got 0."
    if why := unreadable(text, found, statement.decides_from(text)):
        return why
    within = [one for one in found if start <= one.start < end]
    within = statement.without_spans(asides.to_asked_year(working.as_equations(working.with_cents(within)), question))
    within = asides.without_asides(within, question)
    kept, dropped = statement.without_contrasts(within, lambda one: one.sort is Sort.VALUE)
    if len(_amounts(kept, question)) > 1:
        kept = asides.without_meaning(kept)
    if len(_amounts(kept, question)) > 1:
        kept = working.final_statement(kept, question)
    if len(_amounts(kept, question)) > 1:
        later = statement.weak_start(text, start, end)
        if any(one.sort is Sort.VALUE for one in kept if one.start >= later):
            kept, start = [one for one in kept if one.start >= later], later
    if len(_amounts(kept, question)) > 1:
        kept = working.last_labelled(working.after_fronted_clause(kept), question)
        if len(working.of_asked_kind(_amounts(kept, question), question)) != 1:
            kept = asides.without_explanation(kept)
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
    if why := rejected(text, start, values[0], dropped, question) or _announced_otherwise(text, found, values[0]):
        return why
    value = signed(values[0], kept, question)
    if isinstance(value, str):
        return value
    if why := why_other(kept, values[0], question):
        return why
    unit = text[values[0].start : values[0].end]
    scales = {SCALES[word] for word in _IN_SCALE.findall(text)}
    if question.scale.kind is Kind.SCALE and not value.at_word and scales - {question.scale.factor}:
        return "The value is in another scale."
    if scales and not value.at_word and "per share" in question.text:
        return "The value is in another scale."
    if question.known and (contradicts(unit, question.text) or _is_over_years(text[start:end], question)):
        return "The value has another unit, or covers several years."
    return Given("", value)


def _is_over_years(text: str, question: Question) -> bool:
    if len(question.years) > 1:
        first, last = min(map(int, question.years)), max(map(int, question.years))
        counts = {_COUNTS.get(match[1], match[1]) for match in _OVER.finditer(text)}
        return bool(counts) and not counts & {str(last - first), str(last - first + 1)}
    return any(match[0] not in question.text for match in OVER_YEARS.finditer(text))


_COUNTS = {
    name: str(count)
    for count, name in enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), start=2)
}
_OVER = re.compile(rf"\bover (?:the )?(?:past |last )?({'|'.join(_COUNTS)}|[0-9]{{1,2}})[ -]years?\b")


def _from_range(text: str, question: Question) -> str:
    """Returns why a value was not read but chosen: it is the middle of two others, or one of a range; else ""."""
    if _ASKS_MIDDLE.search(question.text):
        return ""
    if _MIDDLE.search(text):
        return "The value is the midpoint of other values."
    ranges = [(match[1], match[2], match[3]) for match in _RANGE.finditer(text)]
    ranges += [(match[2], match[3], match[1]) for match in _RANGE_AFTER.finditer(text)]
    for found in ranges:
        low, high, value = (float(one.replace(",", "")[:30]) for one in found)
        if low < value < high and not any(_YEAR.fullmatch(one) for one in found):
            return "The value is chosen from a range."
    return ""


_ASKS_MIDDLE = re.compile(r"\b(?:average|mean|midpoint|median|middle|weighted|blended)\b")
_MIDDLE = re.compile(
    r"\b(?:midpoint|mid-point|mid|middle|halfway|(?:average|mean)(?= ?[:=]| (?:of|is|was|[0-9]))|splitting)\b"
)
_NUMERAL = r"[$€£]?([0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)(?:%| million| billion| thousand|x)?"
_RANGE_AFTER = re.compile(
    rf"(?<![\w.,-]){_NUMERAL}[a-z ]{{0,12}}[(\[] ?{_NUMERAL} ?(?:-|(?:up )?to|\.{{2,3}}) ?{_NUMERAL}(?!\w|[.,][0-9])"
)
_RANGE = re.compile(
    rf"(?<![\w.,-]){_NUMERAL} ?(?:-|(?:up )?to|and|\.{{2,3}}) ?{_NUMERAL}[^0-9]{{1,30}}{_NUMERAL}(?![\w]|[.,][0-9])"
)


_IN_SCALE = re.compile(r"\bin (thousands|millions|billions)\b")
_DECIMAL_COMMA = re.compile(r"(?<![0-9.,%])([0-9]{1,3}),([0-9]{1,2})(?=[ ]?%)")
_BELOW_ONE = re.compile(r"(?<![0-9.,:])(0\.[0-9]{1,9})[ ]?(?::|to)[ ]?1(?:\.0{1,3})?(?![0-9:%]|[.,][0-9])")
_STATEMENT = re.compile(
    r"\b(?:cash flow|income|financial) (?:statements?|information|data|disclosures?)\b|"
    r"\bstatements? of (?:cash flows?|income|operations|earnings)\b|"
    r"\bbalance sheets?\b"
)
_BY_HOW_MUCH = re.compile(
    r"\b(?:(?:by )?how much|by how many)\b.{0,120}\b(?:exceed|trail|outperform|underperform|higher|lower|more|"
    r"less|greater|above|below|over|under)\b"
)
_TENORS = re.compile(r"\b[0-9]{1,2}-(?:year|month|day)\b")
_MONTH_NAMES = re.compile(r"\b(january|february|march|april|june|july|august|september|october|november|december)\b")
_CASH_FLOW = re.compile(r"\bcash flows?\b")
_SQUARE_FEET = re.compile(r"\bsq\.? ?(?:ft|feet)\b\.?")
_COMPONENT = re.compile(
    r"(?<=[a-z0-9]), (?:including|inclusive of|which includes) [^,.;0-9]{3,60} (?:of )?[$€£]?[0-9][0-9.]{0,12}"
    r"(?: million| billion| thousand|%)?(?:,(?= (?:was|is|were|are|amounted|totall?ed|came|stood)\b)|\.?\Z)"
)
"""A part of the total that the value is of: `debt, including current debt of $0.35 billion, was $4.86 billion`."""
_ROUNDED_CALL = re.compile(r"(?<!\w)round\(([^(),]{1,60}), ?[0-9]\)(?= ?[=~])")
_DEBT_TO_EQUITY = re.compile(r"(?<![\w/])d/e(?![\w/])")
_ROUNDS_TO = re.compile(
    r"(?<=[0-9%]),? \(?(?:which |and )?(?:(?:is )?rounded|rounds|rounding) (?:up |down |off )?(?:to|as) "
    r"(?=[$]?[0-9][0-9,]*(?:\.[0-9]+)?%?\)?[. ]*\Z)(?![0-9](?: d|$))"
)
"""Text before the same amount with fewer digits. Whether the amounts agree is checked later."""
_FALLS_DUE = re.compile(r"\bfalls? due\b")
_MIXED = re.compile(r"(?<![\w.,/$-])([0-9]{1,3}) (1|3|5|7|9|11|13|15)/(2|4|8|16)(?![\w.,/]|[ ]?[-+*/×÷])")  # noqa: RUF001
_YEAR_ARGUMENT = re.compile(r"(?<=[a-z])\((?=(?:19|20)[0-9]{2}\))")
_SCOPE = re.compile(r"(?<=[0-9a-z%]), (?:excluding|before|net of) [a-z -]{3,60}\.?\Z")


def _plain_numerals(text: str, question: Question) -> str:
    """Rewrites notations: `5,2 %` with a point, `0.85:1` as 0.85 for a ratio, `204, excluding rentals` as 204."""
    if "statement" not in question.text:
        text = _STATEMENT.sub("statement", text)
    if "operating activities" in question.text:
        text = _CASH_FLOW.sub("cash", text)
    text = _FALLS_DUE.sub("due", _YEAR_ARGUMENT.sub(" (", _SCOPE.sub("", text)))
    text = _ROUNDED_CALL.sub(r"\1", _ROUNDS_TO.sub(" = ", text))
    if "debt" in question.words and "equity" in question.words:
        text = _DEBT_TO_EQUITY.sub("debt-to-equity", text)
    text = _MIXED.sub(lambda mixed: str(int(mixed[1]) + int(mixed[2]) / int(mixed[3])), text)
    text = _SQUARE_FEET.sub("square feet", text)
    if question.known:
        text = _COMPONENT.sub("", text)
    if len(_DECIMAL_COMMA.findall(text)) == text.count("%"):
        text = _DECIMAL_COMMA.sub(r"\1.\2", text)
    return _BELOW_ONE.sub(r"\1", text) if "ratio" in question.text or not question.known else text


def _announced_otherwise(text: str, found: Sequence[Element], final: Element) -> str:
    """Returns why an earlier `answer is` contradicts the last one, or ""."""
    start, end = statement.announced_before(text)
    for one in found:
        differs = one.value is not None and final.value is not None and not is_same(one.value, final.value)
        if start <= one.start < end and one.sort is Sort.VALUE and differs:
            return "The answer states two different results."
    return ""


def says_nothing(text: str, question: Question) -> bool:
    """Returns whether a text is a zero in words of the question: `None`, or `no impairment was recorded in 2020`."""
    stated = _ZERO_FIRST.fullmatch(text.strip())
    text = _DID_NOT.sub("no ", stated[1] if stated else text)
    match = _NOTHING.fullmatch(text.strip(" .!*\n\x1f"))
    if match is None or any(year not in question.years for year in _YEAR.findall(text)):
        return False
    words = _LETTERS.findall(match[1] or "")
    if not _NOT_FOUND.isdisjoint(words):
        return False  # the answer has found no value, which does not mean 0
    asked = _ASKED_AMOUNT.search(question.text)
    if words and asked and is_foreign([asked[1]], words, related=False):
        return False  # `no goodwill`, where its impairment is asked for
    if not words:
        return text.strip(" .!*\n\x1f") in ("none", "nil", "zero", "nothing")
    return question.known and not unaccounted(words, question.words) and is_related(words, question.words)


_DID_NOT = re.compile(
    r"\A(?:the company|it|they|we) (?:did not|didn't) "
    r"(?:record|recognize|recognise|have|incur|pay|make|issue|repurchase) any "
    r"|\A(?:the company|it|they|we) (?:recorded|recognized|recognised|had|incurred|paid|made|issued|repurchased) no "
)
"""Verbs of a company's actions, not of its report: `did not disclose any` is not a zero."""
_ASKED_AMOUNT = re.compile(r"\bhow much (?:[a-z-]+ ){0,3}?([a-z-]+) (?:was|were|did|does|is|has)\b")
_NOT_FOUND = word_set(
    "data datum info information figure figures value values amount amounts number numbers disclosure "
    "disclosures disclosed mention mentions mentioned record records evidence table tables found find finds "
    "located listed list shown given provided stated extracted available source sources document documents "
    "filing text context appears appear appearing row rows column columns entry entries line result results "
    "answer match matches detail details seen visible identified retrieved returned indicated specified noted "
    "statement statements comment comments presented displayed included exists sign signs trace"
)
_LETTERS = re.compile(r"[a-z][a-z'&-]*")
_ZERO_FIRST = re.compile(
    r"(?:[$]?0(?:\.0{1,3})?(?: (?:million|thousand|billion|dollars))?|none|nil|zero)\s{0,2}[-,;:.(—]\s{0,2}"
    r"((?:no|zero|none|there was no|there were no) [^()]{3,120})\)?"
)
_NOTHING = re.compile(
    r"(?:(?:there (?:was|were) )?no (?![a-z]{1,8}[.,;:])|none|nil|zero|nothing)([^.,;:\n!0-9]{0,120}"
    r"(?:(?:[0-3]?[0-9],? )?\b(?:19|20)[0-9]{2}\b)?)(?:[,:(]? ?(?:so |i\.e\.,? )?(?:the amount is )?[$]?0\)?"
    r"(?: (?:thousand|million|billion|dollars))?)?"
)


def _values(found: Sequence[Element]) -> list[Element]:
    return [one for one in found if one.sort is Sort.VALUE]


def unreadable(text: str, found: Sequence[Element], start: int = 0) -> str:
    """Returns why a text has no readable number, or ""; the working before `start` may have any form."""
    if sum(one.value is not None for one in found) > MOST_ITEMS:
        return f"There are more than {MOST_ITEMS} values."
    if any(one.sort is Sort.MALFORMED and one.end > start for one in found):
        return "A number is malformed, or is next to a symbol that changes it."
    if any(sign in text[start:] for sign in _INEQUALITIES):
        return "There is an inequality."
    if _EMPTY_ITEM.search(text):
        return "A value of a list is missing."
    if _ABSOLUTE.fullmatch(text):
        return "An absolute value is not computed."
    if refused_words.WORDS_OF_DECISIONS.search(text):
        return "There is a yes or no next to a number."
    return ""


def _amounts(found: Sequence[Element], question: Question) -> list[Element]:
    return statement.merge_notations(statement.candidates(found, question), found, question.scale)


_SCOPES = re.compile(r"\b(?:excluding|excluded|except|without|ex)\b")


def rejected(text: str, start: int, one: Element, dropped: str, question: Question) -> str:
    """Returns why the statement around a value rejects it, or ""."""
    around = text[min(statement.clause_start(text, start), statement.clause_start(text, one.start)) :]
    for part in dropped.split("\n"):
        around = _without(around, part)
    around = (
        around
        if question.left_out
        else _SCOPES.sub(lambda found: "" if found[0] in question.words else found[0], around)
    )
    around = _SCOPES.sub("", around) if question.left_out else around
    is_zero = one.value is not None and one.value.number.value == 0
    if refused_words.REJECTED.search(around) or (refused_words.NO_AS_DETERMINER.search(around) and not is_zero):
        return "The answer rejects a value."
    return ""


def _without(text: str, dropped: str) -> str:
    """Returns a text without the cue words of contrasts that were removed."""
    for cue in ("not", "instead of", "rather than", "than"):
        if cue in dropped:
            text = text.replace(f"{cue} ", " ", 1)
    return text


_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
