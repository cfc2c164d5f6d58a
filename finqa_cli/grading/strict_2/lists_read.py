"""Reads the numbers of a list, each with its year or name. They are as many as those of the truth."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finqa_cli.grading.items import Item, truth_items
from finqa_cli.grading.numbers import Kind, Number
from finqa_cli.grading.strict_2 import refused_words, statement
from finqa_cli.grading.strict_2.direction import signed
from finqa_cli.grading.strict_2.labels import contradicts, quantities, unaccounted
from finqa_cli.grading.strict_2.lexer import tokens
from finqa_cli.grading.strict_2.number_words import DOWN, UP, word_set
from finqa_cli.grading.strict_2.numbers_read import Given, unreadable
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.question_fit import ASKS_CHANGE, CHANGE
from finqa_cli.grading.strict_2.units import SCALES
from finqa_cli.grading.strict_2.values import Element, Sort, elements, is_computed, precision

_BETWEEN_KEY_AND_VALUE = frozenset([":", "=", "→"])


def bracketed_items(truth: str) -> list[Item] | None:
    """Returns the numbers of a truth that is a plain list in brackets, `[0.312, 0.284]`; None for any other truth."""
    text = truth.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    items = truth_items(text[1:-1])
    return items if len(items) > 1 and all(isinstance(item.value, Number) for item in items) else None


def read_many(text: str, truths: Sequence[Item], question: Question) -> list[Given] | str:
    """Returns the numbers of a list in lower case with their years or names, or why the text is refused."""
    text = _with_colons(_with_commas(_ZERO.sub(" 0", text), len(truths)), truths)
    start, end = statement.region(text)
    found = elements(text, tokens(text))
    if why := unreadable(text, found):
        return why
    if text.rstrip(" ])}").endswith("..."):
        return "The list is not complete."
    found = _with_names([one for one in found if start <= one.start < end], truths)
    found = _without_heading(_with_year_spans(found, truths), truths, question)
    if any(one.sort is Sort.OPERATION for one in found):
        return "An expression is not computed."
    if any(
        found[at].text == "to" and {found[at - 1].sort, found[at + 1].sort} == {Sort.VALUE}
        for at in range(1, len(found) - 1)
    ):
        return "A range is not a list."
    found = _years_as_values(found, len(truths))
    values = [one for one in found if one.sort is Sort.VALUE]
    merged = statement.merge_notations(values, found)
    if len(merged) == len(truths) + 1 and (cut := _derived_from(found, merged)):
        text = text[:cut]
        found = [one for one in found if one.start < cut]
        merged = merged[:-1]
    if len(merged) != len(truths):
        return f"{len(truths)} values are expected, got {len(merged)}."
    if any(one.text == refused_words.OR_EQUAL for one in found):
        return "The answer names alternatives."
    if refused_words.REJECTED.search(text[start:]) or refused_words.NO_AS_DETERMINER.search(text):
        return "The answer rejects a value."
    kept = {one.start for one in merged}
    shown = [one for one in found if one.sort is not Sort.VALUE or one.start in kept]
    is_keyed = any(item.key for item in truths)
    if is_keyed and question.known and (why := _why_other(shown, question)):
        return why
    if question.known and _moves_otherwise(shown, question):
        return "A value has another direction, or is a change."
    given = _keyed(shown, found) if is_keyed else _labelled(shown, question)
    if isinstance(given, str):
        return given
    return _signed_all(given, found, question)


def _with_commas(text: str, count: int) -> str:
    """Replaces the slashes of `$14 million (2018) / $15 million (2019)` by `; `: each part has a year and an amount."""
    parts = text.split(" / ")
    if not 1 < len(parts) == count:
        return text
    numbers = [_ANY_NUMBER.findall(part) for part in parts]
    years = [[one for one in part if _YEARS.fullmatch(one)] for part in numbers]
    one_each = all(len(own) == 1 and len(part) == 2 for own, part in zip(years, numbers, strict=True))
    return "; ".join(parts) if one_each else text


_ANY_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?")


def _with_colons(text: str, truths: Sequence[Item]) -> str:
    """Replaces the dash of `marine - 275` in each line or item by `: `; a minus has no blank after it."""
    parts = [part.strip() for part in _ITEM_END.split(text.strip())]
    if len(parts) != len(truths) or not all(_NAMED.fullmatch(part) for part in parts):
        return text
    return "\n".join(_NAMED.sub(r"\1: \2", part) for part in parts)


_ITEM_END = re.compile(r"[;\n]|, (?=[a-z])")
_NAMED = re.compile(r"([a-z][a-z&'. ]{0,40}[a-z.]) (?:-|—) ([$€£]?[0-9][0-9.,]{0,20}(?:%| ?[a-z]{1,8}illion)?)")

_ZERO = re.compile(
    r"(?<=[0-9]:) (?:none|nil|nothing|zero)(?=[;,.\n]|\Z)| (?:none|nil|nothing)(?= in (?:19|20)[0-9]{2})"
)


def _derived_from(found: Sequence[Element], values: Sequence[Element]) -> int:
    """Returns where a change or sum of the list's values begins: `, an increase of $24 million`; 0 without one."""
    *others, last = [one.value.number for one in values if one.value is not None]
    place = found.index(values[-1])
    back = place
    while back and found[back].text not in (",", "(", ";", ".") and found[back].sort is not Sort.BREAK:
        back -= 1
    between = found[back + 1 : place]
    says = [one.text for one in between if one.sort is Sort.WORD]
    if not back or len(others) < 2 or not any(ASKS_CHANGE.fullmatch(word) or word in _SUMS for word in says):
        return 0
    if any(one.sort in (Sort.YEAR, Sort.NAME) for one in between):
        return 0
    assert values[-1].value is not None
    step = precision(values[-1].value)
    return found[back].start if is_computed(abs(last.value), step, [one.value for one in others]) else 0


_SUMS = word_set("total sum average mean combined totaling")


def _why_other(found: Sequence[Element], question: Question) -> str:
    """Returns why the words around the values of a list with years or names are of another measure, or ""."""
    values = _numbers(found)
    for at, run in enumerate(_runs(found)):
        label = " ".join(run)
        if contradicts(label, question.text):
            return "A value is labelled as another one."
        named = quantities(label)
        if named and question.quantities and not named & question.quantities:
            return "A value is labelled as another quantity."
        if unaccounted([word for word in run if word not in _HEADINGS], question.words):
            return "A word next to a value is not related to the question."
        if (
            not ASKS_CHANGE.search(question.text)
            and "from" not in run
            and any(CHANGE.fullmatch(word) or word == "growth" for word in run)
            and not _moves_to(run, values[at - 1 : at + 1])
        ):
            return "The values are changes, but the question does not ask for a change."
    return ""


def _moves_to(run: Sequence[str], values: Sequence[Number]) -> bool:
    """Returns whether words such as `and decreased to` between two values agree with their difference."""
    if len(values) != 2 or run[-1:] != ["to"] or values[0].unit != values[1].unit:
        return False
    words = set(run)
    rises, falls = bool(words & _RISES), bool(words & _FALLS)
    change = values[1].mantissa - values[0].mantissa
    return rises != falls and (change > 0 if rises else change < 0)


def _numbers(found: Sequence[Element]) -> list[Number]:
    return [one.value.number for one in found if one.sort is Sort.VALUE and one.value is not None]


def _moves_otherwise(found: Sequence[Element], question: Question) -> bool:
    """Returns whether `fell to` precedes the greater of two values, or `rose by` a value; not if a change is asked."""
    if ASKS_CHANGE.search(question.text):
        return False
    values = _numbers(found)
    for at, run in enumerate(_runs(found)):
        moves = bool(set(run[-3:-1]) & (_RISES | _FALLS))
        if moves and run[-1] == "by":
            return True
        if (
            moves
            and run[-1] == "to"
            and len(values[max(at - 1, 0) : at + 1]) == 2
            and not _moves_to(run, values[at - 1 : at + 1])
        ):
            return True
    return False


_RISES = UP | word_set("rising growing climbing jumping increasing")
_FALLS = DOWN | word_set("falling dropping declining decreasing sliding shrinking")


def _labelled(found: Sequence[Element], question: Question) -> list[tuple[str, Element]] | str:
    """Returns values for a truth without labels, in the question's order of their years or names, or as written."""
    keys = [one for one in found if one.sort is Sort.YEAR]
    values = [one for one in found if one.sort is Sort.VALUE]
    if len(keys) == len(values) and len({one.text for one in keys}) == len(keys):
        given = _keyed(found, found)
        return given if isinstance(given, str) else _by_years(given, question)
    if len(keys) > 1 and len({one.text for one in keys}) < len(keys):
        return "A year or name occurs twice."
    if not question.known:
        return _keyed(found, found)
    return _by_labels(found, values, question)


def _by_years(given: list[tuple[str, Element]], question: Question) -> list[tuple[str, Element]] | str:
    asked = list(dict.fromkeys(_YEARS.findall(question.text)))
    if len(asked) == 2 and _SPAN.search(question.text):
        first, last = sorted(map(int, asked))
        asked = [str(year) for year in range(first, last + 1)] if last - first < _LONGEST_SPAN else asked
    by_year = dict(given)
    if len(asked) == len(given) and by_year.keys() == set(asked):
        return [("", by_year[year]) for year in asked]
    if len(asked) >= len(given) and not by_year.keys() <= set(asked):
        return "The years are not those of the question."
    return [("", value) for _, value in given]


_YEARS = re.compile(r"(?<![0-9.,])(?:19|20)[0-9]{2}(?![0-9])")
_SPAN = re.compile(r"(?:19|20)[0-9]{2} ?(?:to|through|-|–) ?(?:fy ?|fiscal )?(?:19|20)[0-9]{2}")  # noqa: RUF001
_LONGEST_SPAN = 30


def _by_labels(found: Sequence[Element], values: list[Element], question: Question) -> list[tuple[str, Element]] | str:
    """Orders values by the names that question and answer share, or as written if the answer has none of them.

    The names are directly before their values, directly after them, or all before all values.
    """
    runs = _runs(found)
    plain = [("", one) for one in values]
    places = [_places(run, question) for run in runs]
    named = [quantities(" ".join(run)) for run in runs]
    years = {one.text for one in found if one.sort is Sort.YEAR}
    if years and question.years and not years <= question.years:
        return "The values are of another year."
    if any(unaccounted([word for word in run if word not in _HEADINGS], question.words) for run in runs):
        return "A word next to a value is not related to the question."
    labels = [" ".join(word for word in run if word not in _HEADINGS) for run in runs]
    if any(contradicts(label, question.text) for label in labels):
        return "A value is labelled as another one."
    if question.quantities and any(one and not one & question.quantities for one in named):
        return "A value is labelled as another quantity."
    if len(values) != len(runs) - 1:
        return plain
    all_before = len(places[0]) >= len(values) and not any(places[1:])
    if all_before:
        return _ordered([[place] for place in places[0][-len(values) :]], values)
    before, after = places[:-1], places[1:]
    sides = [side for side in (before, after) if all(side)]
    if not sides:
        return plain
    return _ordered(sides[0], values)


def _ordered(places: Sequence[Sequence[int]], values: Sequence[Element]) -> list[tuple[str, Element]]:
    """Returns the values in the order in which the question has the words that label only one of them."""
    shared = set(places[0]).intersection(*places[1:])
    own = [min((at for at in one if at not in shared), default=-1) for one in places]
    if -1 in own or len(set(own)) < len(own):
        return [("", one) for one in values]
    return [("", one) for _, one in sorted(zip(own, values, strict=True), key=lambda pair: pair[0])]


def _runs(found: Sequence[Element]) -> list[list[str]]:
    """Returns the words before, between and after the values."""
    runs: list[list[str]] = [[]]
    for one in found:
        if one.sort is Sort.VALUE:
            runs.append([])
        elif one.sort is Sort.WORD:
            runs[-1].append(one.text)
    return runs


def _places(words: Sequence[str], question: Question) -> list[int]:
    """Returns where the question has the words of a label, in order of the label; common words do not count."""
    first = {word: place for place, word in reversed(list(enumerate(question.words)))}
    names = (word for one in words for word in one.split("-"))
    return [first[word] for word in names if word in first and word not in _COMMON]


_HEADINGS = word_set(
    "region segment country category name item product type class division line q1 q2 q3 q4 while whereas followed "
    "quarterly first second third fourth"
)
_COMMON = word_set(
    "a an the of in at on for to by as is was were are be been and with from what which how each per million millions "
    "thousand thousands billion year years change respectively it total then"
)


def _with_names(found: list[Element], truths: Sequence[Item]) -> list[Element]:
    """Replaces the words of each name that the truth has as a key by one element."""
    names = [(tuple(item.key.split()), item.key) for item in truths if item.key and not item.is_of_years]
    kept: list[Element] = []
    place = 0
    while place < len(found):
        for words, key in names:
            run = found[place : place + len(words)]
            if tuple(one.text for one in run) == words:
                kept.append(Element(Sort.NAME, key, run[0].start, run[-1].end))
                place += len(words)
                break
        else:
            kept.append(found[place])
            place += 1
    return kept


def _without_heading(found: list[Element], truths: Sequence[Item], question: Question) -> list[Element]:
    """Removes the only year of the question, `In 2020, ... $214 million for Retail`, if names are the keys."""
    if len(question.years) != 1 or any(item.is_of_years or not item.key for item in truths):
        return found
    return [one for one in found if one.sort is not Sort.YEAR or one.text not in question.years]


def _with_year_spans(found: list[Element], truths: Sequence[Item]) -> list[Element]:
    """Joins `2022 to 2023` to one key if the truth has such keys."""
    if not any(" to " in item.key for item in truths):
        return found
    kept: list[Element] = []
    for one in found:
        if (
            one.sort is Sort.YEAR
            and len(kept) > 1
            and kept[-1].text in ("to", "-", "→", "/")
            and kept[-2].sort is Sort.YEAR
        ):
            first = kept[-2]
            kept[-2:] = [Element(Sort.NAME, f"{first.text} to {one.text}", first.start, one.end)]
            continue
        kept.append(one)
    return kept


def _years_as_values(found: list[Element], wanted: int) -> list[Element]:
    """Reads a bare number that looks like a year as a value: directly after `2022:`, or if all values are years."""
    bare = [one for one in found if one.sort is Sort.YEAR and one.value is not None]
    has_values = any(one.sort is Sort.VALUE for one in found)
    if not has_values and len(bare) == wanted:
        return [_as_value(one) if one in bare else one for one in found]
    kept: list[Element] = []
    for one in found:
        is_after_key = len(kept) > 1 and kept[-1].text in _BETWEEN_KEY_AND_VALUE and kept[-2].sort in _KEYS
        kept.append(_as_value(one) if one in bare and is_after_key else one)
    return kept


_KEYS = (Sort.YEAR, Sort.NAME)


def _as_value(one: Element) -> Element:
    return Element(Sort.VALUE, one.text, one.start, one.end, one.value)


def _keyed(kept: Sequence[Element], found: Sequence[Element]) -> list[tuple[str, Element]] | str:
    """Returns each value with its key, or why that is unclear; all keys precede or all follow, or there are none."""
    parts = [one for one in kept if one.sort is Sort.VALUE or one.sort in _KEYS]
    values = [one for one in parts if one.sort is Sort.VALUE]
    keys = [one for one in parts if one.sort in _KEYS]
    if not keys:
        places = [found.index(one) for one in values]
        if (
            sum(place > 1 and found[place - 1].text == ":" and found[place - 2].sort is Sort.WORD for place in places)
            > 1
        ):
            return "There is an unexpected name or word before a value."
        return [("", one) for one in values]
    if len(keys) != len(values):
        return "Some values come with a year or name and some without."
    if len({one.text for one in keys}) < len(keys):
        return "A year or name occurs twice."
    shape = "".join("v" if one.sort is Sort.VALUE else "k" for one in parts)
    count = len(values)
    if shape not in ("kv" * count, "vk" * count, "k" * count + "v" * count, "v" * count + "k" * count):
        return "The assignment of values to years or names is unclear."
    return [(key.text, value) for key, value in zip(keys, values, strict=True)]


def _signed_all(
    given: Sequence[tuple[str, Element]], found: Sequence[Element], question: Question
) -> list[Given] | str:
    scale = _common_scale(found)
    values: list[Given] = []
    for key, one in given:
        value = signed(one, found, question, is_listed=True)
        if isinstance(value, str):
            return value
        values.append(Given(key, value))
    if scale and all(one.value.number.unit.kind is not Kind.SCALE for one in values):
        return (
            values if question.scale.kind is Kind.SCALE and question.scale.factor == scale else "The scale is unclear."
        )
    return values


def _common_scale(found: Sequence[Element]) -> int:
    """Returns the scale of `(in millions)` for a whole list; 0 without one."""
    words = [one.text for one in found]
    for place, word in enumerate(words[1:], start=1):
        if word in SCALES and len(word) > 3 and words[place - 1] in ("in", "(", "$"):
            return SCALES[word]
    return 0
