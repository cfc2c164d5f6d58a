"""The verdict of profile `strict-3`: compares the value of an answer with the truth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from finqa_cli.grading.closeness import ROUNDED_DIGITS_BEFORE_A_SCALE, is_within, unit_readings
from finqa_cli.grading.items import MOST_ITEMS, pair_up, truth_items
from finqa_cli.grading.numbers import NO_UNIT, Kind, Number, Unit
from finqa_cli.grading.strict_3.amounts import CURRENCY, Amount, find_amounts, without_brackets
from finqa_cli.grading.strict_3.submitted_values import (
    Asked,
    Labelled,
    Value,
    Word,
    is_name,
    label_of,
    normal_name,
    read_amount,
    read_list,
    read_name,
    read_word,
)
from finqa_cli.grading.strict_3.wrapping import UnreadableError, bare, json_values
from finqa_cli.grading.verdict import Verdict, shown

_SCALE = re.compile(
    rf"(?:\bin|\bhow (?:many|much)|\(|(?<![a-z0-9]){CURRENCY})\s*(?:of\s+)?(?:{CURRENCY}\s*)?"
    r"(thousand|million|billion|trillion|crore|lakh)s?\b"
)
_FACTOR = {"lakh": 10**5, "crore": 10**7, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_LIST_ASKED = re.compile(r"\bwhich (?:of the )?(?:two|three|four|five|(?:[a-z]+ )?[a-z]{3,}s)\b")
_COUNT_ASKED = re.compile(r"\bhow many\b|\b(?:which|what) (?:fiscal )?year\b")
_PERCENT = re.compile(r"\bpercent|\bper cent\b|%")
_POINTS = re.compile(r"\b(percentage|basis) points?\b|\bbps\b")


@dataclass(frozen=True, slots=True)
class Task:
    """What an answer is compared with.

    Attributes:
        asked: The question.
        expected: Values of the truth.
        numbers: Whether some of them are numbers.
        names: Whether some of them are not.
        scale: Unit of a bare number, by the question.
        percent: Whether the question asks for percent.
    """

    asked: Asked
    expected: tuple[Labelled, ...]
    numbers: bool
    names: bool
    scale: Unit
    percent: bool

    @property
    def currencies(self) -> frozenset[str]:
        """Currencies that an answer may have: those of truth and question, else dollars."""
        written = {one.value.currency for one in self.expected if isinstance(one.value, Amount)} - {""}
        return frozenset(written) or self.asked.currencies or frozenset({"usd"})


def grade(answer: str, truth: str, question: str = "") -> Verdict:
    """Compares an answer with the truth of a question. Never raises."""
    if truth.count("\\boxed") > MOST_ITEMS:
        return Verdict(0.0, f"There are more than {MOST_ITEMS} values.")
    task = read_task(truth, question)
    if not task.expected:
        return Verdict(0.0, "There is no truth to compare with.")
    try:
        if len(task.expected) == 1:
            value = read_one(answer, task)
            return replace(_single(answer, value, task), again=_coarse(answer, [value]))
        given = read_list(answer, task.asked, numbers=task.numbers, names=task.names)
        if not task.names and not all(isinstance(one.value, Amount) for one in given):
            raise UnreadableError("a value of the list is not a number")
    except UnreadableError as error:
        reason = f"{shown(answer)} cannot be read as one value of a common form: {error}."
        return Verdict(0.0, reason, readable=False, again=reason)
    return replace(_several(answer, given, task), again=_coarse(answer, [one.value for one in given]))


def pair_values(answer: str, truth: str, question: str = "") -> list[tuple[Number | str, Number | str]]:
    """Returns each value of an answer with that of the truth, for rewards that have tolerances of their own.

    A word is in normal form. A bare number of the truth is in the scale that the question asks for.

    Raises:
        UnreadableError: The answer does not have the form or the values of the truth.
    """
    task = read_task(truth, question)
    if len(task.expected) == 1:
        pairs = [(read_one(answer, task), task.expected[0].value)]
    else:
        found = _pairs(read_list(answer, task.asked, numbers=task.numbers, names=task.names), task)
        if isinstance(found, str):
            raise UnreadableError(found)
        pairs = [(given.value, wanted.value) for given, wanted in found]
    return [(_plain(given), _plain(wanted, task.scale)) for given, wanted in pairs]


def _plain(value: Value, scale: Unit = NO_UNIT) -> Number | str:
    if isinstance(value, Word):
        return value.text
    return replace(value.number, unit=scale) if value.number.unit is NO_UNIT else value.number


def _coarse(answer: str, values: Sequence[Value]) -> str:
    """Why a number like `2.1 billion` is asked again: it is rounded further than the tolerance allows.

    `77 million` is not: whole numbers before a scale are often exact, and a decimal of two digits hardly ever is.
    """
    for value in values:
        number = value.number if isinstance(value, Amount) else None
        if number is None or number.unit.kind is not Kind.SCALE or number.is_whole:
            continue
        if number.digits < ROUNDED_DIGITS_BEFORE_A_SCALE:
            least = ROUNDED_DIGITS_BEFORE_A_SCALE
            return f"{shown(answer)} is rounded too far: write at least {least} digits before a scale, or all of them."
    return ""


def read_one(answer: str, task: Task) -> Value:
    """Returns the one value of an answer.

    Raises:
        UnreadableError: It is not exactly one value of the kind that the truth has.
    """
    text = bare(answer)
    if task.asked.text and text.lower().startswith(task.asked.text):
        text = bare(text[len(task.asked.text) :])
    if parts := json_values(text):
        if len(parts) > 1:
            raise UnreadableError("one value is asked for, and there are several")
        text = ": ".join(filter(None, parts[0]))
    if not any(character.isalnum() for character in text):
        raise UnreadableError("it is empty")
    wanted = task.expected[0].value
    word = read_word(text)
    if isinstance(wanted, Amount):
        if word is not None:
            raise UnreadableError("it is not a number")
        amount = read_amount(text, task.asked)
        if amount.currency and amount.currency not in task.currencies:
            raise UnreadableError("the question does not ask for this currency")
        return amount
    if word is None and wanted.kind == "name":
        return read_name(text, task.asked)
    if word is None or word.kind != wanted.kind:
        raise UnreadableError(f"it is not a {wanted.kind}")
    return word


@lru_cache(maxsize=64)
def read_task(truth: str, question: str) -> Task:
    """Reads truth and question. Cached, because the attempts of a group are compared with one truth."""
    asked = Asked.of(question)
    try:
        written = bare(truth) if "\\boxed" in truth else truth
    except UnreadableError:
        written = truth
    expected = _listed(written) if written.strip().startswith(("[", "{")) else ()
    expected = expected or tuple(
        Labelled(item.key, _word_of(item.value, written) if isinstance(item.value, str) else Amount(item.value))
        for item in truth_items(truth)
        if item.value != ""
    )
    if len(expected) == 1 and not expected[0].key:
        text = without_brackets(plain_lower(written))
        found = find_amounts(text)
        if len(found) == 1 and text == text[found[0].start : found[0].end]:
            expected = (Labelled("", found[0].amount),)
        elif isinstance(expected[0].value, Word):
            expected = _names_of(written, asked) or expected
    amounts = [isinstance(one.value, Amount) for one in expected]
    scale = _SCALE.search(asked.text)
    unit = Unit(Kind.SCALE, Fraction(_FACTOR[scale[1]])) if scale else NO_UNIT
    if found_points := _POINTS.search(asked.text):
        factor = Fraction(1, 100) if found_points[1] == "percentage" else Fraction(1, 10_000)
        unit = Unit(Kind.POINTS, factor)
    percent = bool(_PERCENT.search(asked.text)) and unit.kind is not Kind.POINTS
    return Task(asked, expected, any(amounts), not all(amounts), unit, percent)


def plain_lower(text: str) -> str:
    """Returns a truth in lower case with plain signs."""
    return " ".join(text.lower().replace("\\$", "$").replace("\\%", "%").split())


def _word_of(value: str, written: str) -> Word:
    try:
        return read_word(value) or Word("name", normal_name(value))
    except UnreadableError:
        return Word("name", normal_name(written))


def _listed(written: str) -> tuple[Labelled, ...]:
    try:
        parts = json_values(written.strip())
    except UnreadableError:
        return ()
    if not parts or (len(parts) == 1 and not parts[0][0]):
        return ()
    found = []
    for label, text in parts:
        items = truth_items(text)
        number = items[0].value if len(items) == 1 else text
        found.append(Labelled(label.lower(), Amount(number) if isinstance(number, Number) else _word_of(text, text)))
    return tuple(found)


def _names_of(written: str, asked: Asked) -> tuple[Labelled, ...]:
    """Returns the names that a truth lists, which may have labels between semicolons; none if it is one name."""
    if ";" in written:
        parts = [part.rpartition(":") for part in written.split(";") if part.strip()]
        return tuple(Labelled(label.strip().lower(), _word_of(name.strip(), name)) for label, _, name in parts)
    if not _LIST_ASKED.search(asked.text) or not re.search(r",|\band\b", written):
        return ()
    return tuple(Labelled("", Word("name", normal_name(name))) for name in re.split(r",|\band\b", written))


def _single(answer: str, value: Value, task: Task) -> Verdict:
    (expected,) = task.expected
    if _is_right(value, expected.value, task):
        return Verdict(1.0, f"{shown(answer)} matches.")
    if isinstance(value, Amount):
        return Verdict(0.0, f"{shown(answer)} is outside the tolerance, or in another unit.")
    return Verdict(0.0, f"{shown(answer)} is not the expected {value.kind}.")


def _several(answer: str, given: Sequence[Labelled], task: Task) -> Verdict:
    if not task.numbers and not any(one.key for one in (*task.expected, *given)):
        right = _name_words(given) == _name_words(task.expected)
        return Verdict(float(right), f"{shown(answer)} {'matches' if right else 'is not the expected list'}.")
    pairs = _pairs(given, task)
    if isinstance(pairs, str):
        return Verdict(0.0, pairs)
    wrong = [place for place, (one, wanted) in enumerate(pairs, 1) if not _is_right(one.value, wanted.value, task)]
    if wrong:
        return Verdict(0.0, f"{len(wrong)} of {len(pairs)} values do not match, first the one at place {wrong[0]}.")
    return Verdict(1.0, f"All {len(pairs)} values match.")


def _pairs(given: Sequence[Labelled], task: Task) -> list[tuple[Labelled, Labelled]] | str:
    """Returns each value of a list with that of the truth, by label or order, or the reason why this is impossible."""
    expected = [replace(one, key=_expected_key(one.key, task.asked)) for one in task.expected]
    if not any(one.key for one in expected) and all(one.key for one in given):
        order = _order_of_question([one.key for one in given], task.asked)
        if order is None:
            return "The years or names are not those of the question."
        given = [replace(given[place], key="") for place in order]
    return pair_up(given, expected)


def _expected_key(key: str, asked: Asked) -> str:
    try:
        return label_of(key, asked) if key else ""
    except UnreadableError:
        return key


def _order_of_question(keys: Sequence[str], asked: Asked) -> list[int] | None:
    """Returns the places of labels in the order in which the question has them; None if it does not have them all."""
    question = normal_name(asked.text)
    if not question and all(re.fullmatch(r"(?:19|20)[0-9]{2}", key) for key in keys):
        return list(range(len(keys)))  # no question is known: years stand in the order of the truth
    places = [question.find(key) for key in keys]
    if -1 in places or len(set(places)) < len(places):
        return None
    return sorted(range(len(keys)), key=places.__getitem__)


def _name_words(values: Sequence[Labelled]) -> list[str]:
    """Returns the words of all names in order of the alphabet: names are listed in any order, with `and` or commas."""
    texts = [one.value.text for one in values if isinstance(one.value, Word)]
    return sorted(word for text in texts for word in text.split() if word != "and")


def _is_right(value: Value, expected: Value, task: Task) -> bool:
    if isinstance(value, Word) or isinstance(expected, Word):
        return _same_words(value, expected, task.asked)
    if value.currency and value.currency not in task.currencies:
        return False
    truth = expected.number
    if value.currency and not expected.currency and task.percent:
        return False
    counts = truth.unit is NO_UNIT and bool(_COUNT_ASKED.search(task.asked.text))
    if counts and value.currency and value.currency not in ({expected.currency} | task.asked.currencies):
        return False
    if counts and truth.is_exact and value.number.unit is NO_UNIT and value.number.mantissa.denominator > 1:
        return False  # there are no half stores
    if truth.unit is NO_UNIT and task.scale is not NO_UNIT:
        truth = replace(truth, unit=task.scale)
    return any(is_within(value.number, factor, truth) for factor in _readings(value, truth, task))


def _same_words(value: Value, expected: Value, asked: Asked) -> bool:
    if not (isinstance(value, Word) and isinstance(expected, Word)) or value.kind != expected.kind:
        return False
    if value.kind == "name":
        return is_name(value.text, expected.text, asked)
    if value == expected or value.kind != "quarter":
        return value == expected
    one, other = value.text.split(), expected.text.split()
    years = set(one[1:]) ^ set(other[1:])  # a year that the question names may be left out
    return one[0] == other[0] and len(one) != len(other) and years <= asked.words


def _readings(value: Amount, truth: Number, task: Task) -> tuple[Fraction, ...]:
    """Returns the factors for the unit of an answer: a written one is literal, a bare number is in the truth's."""
    own = value.number.unit
    if own.kind is Kind.POINTS and truth.unit.kind is not Kind.POINTS and task.asked.text:
        return (own.factor,) if own.factor < Fraction(1, 100) else ()  # points are no growth rate
    if task.percent and {own.kind, truth.unit.kind} == {Kind.PERCENT, Kind.PLAIN}:
        return (own.factor, truth.unit.factor)  # the question asks for percent, so one of the two left the sign out
    if value.currency and own is NO_UNIT and truth.unit.kind is Kind.SCALE and truth.unit != task.scale:
        return (own.factor,)  # `$77` is not 77 million
    return unit_readings(value.number, truth)
