"""The verdict of profile `strict-2`: reads the deciding text of an answer and compares it with the truth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from finqa_cli.grading.closeness import is_within, same_item, unit_readings
from finqa_cli.grading.items import MOST_ITEMS, Item, answer_items, bare_text, boxed_parts, pair_up, truth_items
from finqa_cli.grading.numbers import Kind, Number
from finqa_cli.grading.strict_2 import json_form, refused_words, surface, transcript
from finqa_cli.grading.strict_2.labels import covers
from finqa_cli.grading.strict_2.lists_read import bracketed_items, read_many
from finqa_cli.grading.strict_2.names.name_lists import are_names, listed_names
from finqa_cli.grading.strict_2.names.names_read import is_name
from finqa_cli.grading.strict_2.notations import amount_of_money, same_notation
from finqa_cli.grading.strict_2.numbers_read import Given, read_one, says_nothing
from finqa_cli.grading.strict_2.question import Question, read_question
from finqa_cli.grading.strict_2.statement import STRONG
from finqa_cli.grading.strict_2.units import PERCENT, TIMES
from finqa_cli.grading.strict_2.values import Value, is_points
from finqa_cli.grading.strict_2.wrappers import Wrapped, unwrap
from finqa_cli.grading.strict_2.years_read import read_year
from finqa_cli.grading.strict_2.yes_no import yes_or_no
from finqa_cli.grading.verdict import Verdict, shown

_TIME_UNIT = re.compile(r"[0-9] (day|week|month|quarter|year)s?\Z")
_HEDGED = "The answer hedges, names alternatives, or is about something else."


def grade(answer: str, truth: str, question: str = "") -> Verdict:
    """Compares an answer with the truth of a question. Never raises."""
    if truth.count("\\boxed") > MOST_ITEMS:
        return Verdict(0.0, f"There are more than {MOST_ITEMS} values.")
    truth, asked, names, expected = _read_task(truth, question)
    wrapped = _unwrapped(answer, question, asked)
    if isinstance(wrapped, str):
        return Verdict(0.0, wrapped)
    if names and wrapped.boxed_count < 2 and are_names(wrapped.decision, names, asked):
        return Verdict(1.0, f"{shown(answer)} matches.")
    if names and truth.lstrip().startswith("["):
        return Verdict(0.0, f"{shown(answer)} is not the expected list of names.")
    if len(expected) == 1 and isinstance(expected[0].value, str):
        return _word(answer, wrapped, truth, expected[0].value, asked)
    if any(isinstance(item.value, str) for item in expected):
        return _mixed(answer, wrapped, expected, asked)
    return _numbers(answer, wrapped, expected, asked)


@lru_cache(maxsize=64)
def _read_task(truth: str, question: str) -> tuple[str, Question, tuple[str, ...], tuple[Item, ...]]:
    """Return the truth without JSON around it, what the question says, and the names and values of the truth.

    Cached, because many answers are compared with one truth: those of a group of attempts.
    """
    asked = read_question(question)
    names = listed_names(truth, asked)
    if not names and truth.lstrip().startswith("{") and isinstance(written := json_form.read(truth), str):
        truth = written
    expected = bracketed_items(truth) or truth_items(truth)
    if money := amount_of_money(truth):
        expected = truth_items(money[1])
        asked = replace(asked, currencies=asked.currencies | {money[0]}, measures=asked.measures | {"money"})
    if time_unit := _TIME_UNIT.search(truth.lower()):
        asked = replace(asked, measures=asked.measures - TIMES | {time_unit[1]})
    return truth, asked, names, tuple(expected)


def _unwrapped(answer: str, question: str, asked: Question) -> Wrapped | str:
    """Returns the deciding text and the texts beside it, in plain form, or why the answer is refused."""
    text = surface.without_hidden(transcript.restated(transcript.after_rule(transcript.without_footnote(answer))))
    if text is None:
        return "There is a hidden character, or a digit of another script."
    wrapped = unwrap(transcript.without_echo(transcript.without_endings(text), question))
    if isinstance(wrapped, str):
        return wrapped
    parts = [surface.plain(part) for part in (wrapped.decision, wrapped.before, wrapped.after)]
    if any(part is None for part in parts):
        return "There is LaTeX or Markdown that hides or strikes out text, or is unknown."
    decision, before, after = (part or "" for part in parts)
    decision, after = _with_notation(decision, after) if wrapped.boxed_count == 1 else (decision, after)
    if not any(character.isalnum() for character in decision):
        return "The answer is empty, or not a number."
    beside = f"{before}\n{after}".lower()
    if (
        refused_words.undecided(beside, asked.words)
        or refused_words.REJECTED.search(after.lower())
        or _denies(before.lower())
    ):
        return "Text next to the answer contradicts it."
    values_after = any(character.isdigit() for character in after) and not _EXPLANATION.match(after.lower())
    if values_after or STRONG.search(after.lower()) or refused_words.WORDS_OF_DECISIONS.search(beside):
        return "There are other values next to the answer."
    return Wrapped(decision, before, after, wrapped.boxed_count)


_NOTATION = re.compile(
    r"[ \n\x1f]*(?:,?[ ]?(?:i\.e\.|or|which is|that is|equivalently)|[(=~≈])[^\n.;]*(?:[.][0-9][^\n.;]*)*", re.I
)
_EXPLANATION = re.compile(
    r"[\s.,;:(—*\x1f-]*(?:explanation|reasoning|calculation|working|because|since|where|calculated|computed|"
    r"derived|based on|"
    r"source|using|see|this (?:is|was|figure|value|number)|which (?:is|was)|steps?|formula|rounded)\b"
)


def _with_notation(decision: str, after: str) -> tuple[str, str]:
    r"""Moves a second notation to the boxed value, as in `\boxed{0.213}, i.e. 21.3%`; they are compared later."""
    notation = _NOTATION.match(after)
    if notation is None or not any(character.isdigit() for character in notation[0]):
        return decision, after
    return f"{decision}{notation[0]}", after[notation.end() :]


def _denies(before: str) -> bool:
    """Returns whether the clause before a tag or a boxed value is a negation."""
    clause = before[refused_words.last_clause(before) :]
    return bool(refused_words.REJECTED.search(clause) or refused_words.NO_AS_DETERMINER.search(clause))


def _word(answer: str, wrapped: Wrapped, truth: str, expected: str, question: Question) -> Verdict:
    text = wrapped.decision
    if not expected:
        return Verdict(0.0, "There is no truth to compare with.")
    if expected in ("yes", "no"):
        right = yes_or_no(text.lower(), question) == expected
    else:
        written = boxed_parts(truth)[0].content if boxed_parts(truth) else truth
        text, written = same_notation(text, written)
        name = bare_text(written)
        right = wrapped.boxed_count < 2 and (bare_text(text) == name or is_name(text, name, question))
    if wrapped.boxed_count > 1 or not right:
        return Verdict(0.0, f"{shown(answer)} is not the expected text.")
    return Verdict(1.0, f"{shown(answer)} matches.")


def _mixed(answer: str, wrapped: Wrapped, expected: Sequence[Item], asked: Question) -> Verdict:
    """Grades a list that contains words, such as `Yes, 5`: as in version 1, after the check of refused words."""
    if refused_words.undecided(wrapped.decision.lower(), asked.words):
        return Verdict(0.0, _HEDGED)
    given = answer_items(wrapped.decision)
    pairs = given if isinstance(given, str) else pair_up(given, expected)
    if isinstance(pairs, str):
        return Verdict(0.0, pairs)
    right = all(same_item(one, item) for one, item in pairs)
    return Verdict(float(right), f"{shown(answer)} {'matches' if right else 'does not match'}.")


def _numbers(answer: str, wrapped: Wrapped, expected: Sequence[Item], question: Question) -> Verdict:
    text = refused_words.without_equivalents(wrapped.decision.lower())
    if refused_words.undecided(text, question.words) or refused_words.foreign(text):
        return Verdict(0.0, _HEDGED)
    if len(expected) == 1 and wrapped.boxed_count > 1:
        return Verdict(0.0, f"1 value is expected, got {wrapped.boxed_count}.")
    if len(expected) == 1 and question.asks_year and _is_year(expected[0].value):
        right = read_year(text, question) == str(_number(expected[0]).mantissa)
        return Verdict(float(right), f"{shown(answer)} {'matches' if right else 'is not the expected year'}.")
    given: list[Given] | str
    if len(expected) == 1 and expected[0].is_of_years:
        question = replace(question, years=frozenset(expected[0].key.split(" to ")))
    if len(expected) == 1:
        if _number(expected[0]).value == 0 and says_nothing(text, question):
            return Verdict(1.0, f"{shown(answer)} matches.")
        one = read_one(text, question)
        given = one if isinstance(one, str) else [one]
        if _said_otherwise(wrapped.before, expected[0], question):
            return Verdict(0.0, "Text before the answer states another value.")
    else:
        given = read_many(text, expected, question)
    pairs = given if isinstance(given, str) else pair_up(given, expected)
    if isinstance(pairs, str):
        return Verdict(0.0, pairs)
    wrong = [place for place, (one, item) in enumerate(pairs, start=1) if not _is_right(one.value, item, question)]
    if not wrong:
        return Verdict(1.0, f"{shown(answer)} matches." if len(pairs) == 1 else f"All {len(pairs)} values match.")
    if len(pairs) == 1:
        return Verdict(0.0, f"{shown(answer)} is outside the tolerance, or in another unit.")
    return Verdict(0.0, f"{len(wrong)} of {len(pairs)} values do not match, the first one at position {wrong[0]}.")


def _said_otherwise(before: str, expected: Item, question: Question) -> bool:
    """Returns whether a sentence before the boxed or tagged value answers the whole question with a wrong value."""
    for sentence in _SENTENCE.split(before.lower())[-_MOST_SENTENCES:]:
        if covers(_WORDS.findall(sentence), question.words):
            one = read_one(sentence, question)
            if not isinstance(one, str) and not _is_right(one.value, expected, question):
                return True
    return False


_SENTENCE = re.compile(r"[.;](?=\s|\Z)|\n")
_WORDS = re.compile(r"[a-z][a-z'&-]*")
_MOST_SENTENCES = 4


def _is_year(value: Number | str) -> bool:
    return isinstance(value, Number) and value.is_exact and value.unit.kind is Kind.PLAIN and 1900 <= value.value < 2100


def _number(item: Item) -> Number:
    assert isinstance(item.value, Number)
    return item.value


def _is_right(value: Value, item: Item, question: Question) -> bool:
    if _measures_something_else(value, question):
        return False
    truth = question.counted(_number(item))
    if question.is_about_decline and _is_raised(value):
        return False
    if question.is_about_decline and truth.mantissa * value.number.mantissa < 0:
        value = replace(value, number=replace(value.number, mantissa=-value.number.mantissa))
    if not value.number.place and int(value.written.split()[0].partition("/")[2]) > _SIMPLE and not question.counts:
        return False  # `580/80` is not computed
    if not value.number.place and (truth.is_exact or (truth.place and value.number.mantissa.denominator > _SIMPLE)):
        return False  # `10/2` and `213/1000` are not computed
    if question.counts and truth.is_exact and truth.unit.kind is Kind.PLAIN and value.number.value.denominator > 1:
        return False  # there are no half stores
    return any(is_within(value.number, factor, truth) for factor in _readings(value, truth, question))


def _is_raised(value: Value) -> bool:
    """Returns whether a value has a plus sign, so that it is not a decrease."""
    return value.signed and value.number.mantissa > 0


_SIMPLE = 20
"""Largest denominator of a fraction that is accepted instead of a decimal number."""


def _readings(value: Value, truth: Number, question: Question) -> tuple[Fraction, ...]:
    """Returns the factors for the unit of the answer: as in version 1, but a named unit is always read literally.

    Points have the factor 1 against a bare truth only if the question is unknown. A question that asks for points has
    already given the truth this unit.
    """
    if is_points(value) and value.number.unit.factor == Fraction(1, 100) and _is_relative(question, truth):
        return ()  # a growth of 5 percentage points is not a growth of 5 %
    if is_points(value) and question.known:
        return (value.number.unit.factor,)
    is_percent = value.number.unit == PERCENT
    if is_percent and truth.unit.kind is Kind.PLAIN and abs(truth.mantissa) >= 1:
        is_large = abs(truth.mantissa) >= _LARGEST_RATIO and _RATE.search(question.text)
        if is_large or _COUNTED_IN_PERCENT.search(question.text):
            return (Fraction(1),)
        if _PERCENTAGE.search(question.text):
            return (Fraction(1), *unit_readings(value.number, truth))
    if value.currency and truth.unit.kind is Kind.SCALE and question.scale.kind is not Kind.SCALE:
        return (value.number.unit.factor,)  # `$77` is not 77 million
    if value.at_word and not is_points(value) and question.scale.kind is Kind.PLAIN:
        return (value.number.unit.factor,)
    if (
        truth.unit.kind is Kind.PERCENT
        and not value.at_word
        and not value.currency
        and _IN_PERCENT.search(question.text)
    ):
        return (*unit_readings(value.number, truth), truth.unit.factor)
    return unit_readings(value.number, truth)


_COUNTED_IN_PERCENT = re.compile(
    r"\bin (?:percent|per cent|%)|\(%\)|\(in percent\)|\b(?:expressed|stated|given|shown|reported) as an? percent"
)
_RATE = re.compile(
    r"(?<![0-9] )(?<![0-9])(?:percent|per cent|%)(?!\w* points?)|\bmargin\b|\b(?:tax|growth|interest) rate\b|\byield\b|"
    r"\breturn on\b|\bcagr\b"
)
_LARGEST_RATIO = 3
"""A bare truth of a percentage, a margin or a rate that is not smaller than this is in percent: none of them is 300 %.

"""
_PERCENTAGE = re.compile(r"\bwhat (?:(?:was|is|were|are) the )?percentage of\b")
_IN_PERCENT = re.compile(r"\bpercent|\bper cent\b|%")
"""The question names percent, so a bare number is in percent."""


_DAYS = re.compile(
    r"\bdays (?:sales|inventory|payables?|outstanding|of)\b|\bhow many (?:\w+ )?(?:days|months)\b"
    r"|\bcash conversion cycle\b"
)


def _is_relative(question: Question, truth: Number) -> bool:
    """Returns whether the question asks for a rate or a relative change, and not for points."""
    return question.asks_share and question.scale.kind is not Kind.POINTS and truth.unit.kind is not Kind.POINTS


def _measures_something_else(value: Value, question: Question) -> bool:
    """Returns whether a value has a measure or currency that is not asked for, such as shares instead of dollars."""
    if not question.known:
        return False
    if value.currency and value.currency not in (question.currencies or {"usd"}):
        return True
    if value.currency and _DAYS.search(question.text):
        return True
    if value.currency and value.measure == "shares":  # `$1,260 million of shares`
        return re.search(r"\b(?:share|stock|equity)", question.text) is None
    if value.measure == "unit" and question.counts:
        return False
    if value.currency and (_PERCENTAGE.search(question.text) or _COUNTED_IN_PERCENT.search(question.text)):
        return True
    if value.measure == "times" and (_RATE.search(question.text) and "ratio" not in question.text):
        return True
    if value.measure in ("per share", "times") and question.scale.kind is Kind.SCALE:
        return True
    return bool(value.measure) and value.measure not in question.measures
