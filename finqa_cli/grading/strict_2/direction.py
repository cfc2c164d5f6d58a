"""Reads signs in words, as in `fell by 3.4%` and `minus 5`, and finds bounds such as `over 5` and inverted ratios."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from finqa_cli.grading.numbers import Number
from finqa_cli.grading.strict_2.number_words import DOWN, UP, word_set
from finqa_cli.grading.strict_2.question import Question, operands
from finqa_cli.grading.strict_2.refused_words import BOUNDS, BOUNDS_AFTER
from finqa_cli.grading.strict_2.values import Element, Sort, Value, is_same

_NEGATIVE = frozenset(("minus", "negative"))
_FILLERS = word_set(
    "by of was is were a an the about approximately approx approx. around roughly circa ca ca. some : = ~ "
    "→ oreq at just exactly precisely stood came in only net total ( $ \" ' → >"
)
_AFTER_FILLERS = word_set("( , in year over yoy points relative")
_REACH = 6


def signed(one: Element, found: Sequence[Element], question: Question, *, is_listed: bool = False) -> Value | str:
    """Returns a value with the sign that the words around it give it, or the reason why its sign is unclear.

    Args:
        one: The value.
        found: The statement that contains it.
        question: The question.
        is_listed: Whether it is one of several; `from 1% in 2022 to 2% in 2023` then names two levels.
    """
    assert one.value is not None
    if question.names_losses:
        found = [replace(word, text="amount") if word.text in _LOSSES else word for word in found]
    elif question.text and one.value.number.mantissa < 0:  # `net income loss: -4215`
        found = [
            replace(word, text="amount") if word.text in _LOSSES and at and found[at - 1].text in _GAINS else word
            for at, word in enumerate(found)
        ]
    place = found.index(one)
    before = _word_before(found, place)
    further = _word_before(found, _place_before(found, place))
    if (before in _NEGATIVE and further in _NEGATIVE | DOWN) or (before in DOWN and further in _NEGATIVE):
        return "The value has two signs."
    if before in DOWN and further in UP:
        return "The value has two directions."
    if is_listed and before in ("from", "to"):
        return one.value
    if (before in BOUNDS and not _turned_over(found, place)) or _bounded_after(found, place):
        return "The answer is a bound."
    after = _after(found, place)
    clause = _clause(found, place, is_listed=is_listed)
    if (
        before not in DOWN | UP
        and not after
        and place
        and found[place - 1].text == "by"
        and any(word in DOWN for word in clause)
    ):
        before = next(word for word in clause if word in DOWN)  # `declined from 1,020 to 943, i.e. by 77`
    downs = [word for word in (before, after) if word in DOWN or word in _NEGATIVE]
    ups = [word for word in (before, after) if word in UP]
    if question.is_about_decline and not _NEGATIVE & set(downs):
        rises = ups or "growth" in (before, _after_word(found, place))
        return one.value if not rises else "The direction contradicts the question."
    if one.value.number.mantissa < 0 and downs == [after] and before not in UP and _is_apart(found, place):
        return one.value  # `-77 (a decrease)`
    if before == "negative" and found[place - 1].text == ":" and one.value.number.mantissa < 0:
        return one.value  # `it is negative: -31%`
    if (downs and ups) or ((downs or ups) and one.value.number.mantissa < 0):
        return "The value has two signs."
    if downs:
        return replace(one.value, number=_negated(one.value.number), signed=True)
    if (
        not ups
        and not one.value.signed
        and before != "to"
        and any(word in DOWN and word not in question.words for word in clause)
    ):
        return "Its sign is not clear."
    return one.value


_LOSSES = frozenset(("loss", "losses"))
_GAINS = frozenset(("income", "profit", "gain", "earnings"))


def _turned_over(found: Sequence[Element], place: int) -> bool:
    """Returns whether `over` belongs to the verb, as in `the inventory turned over 7 times`."""
    at = _place_before(found, place)
    return at > 0 and found[at].text == "over" and found[at - 1].text in ("turn", "turns", "turned")


def _is_apart(found: Sequence[Element], place: int) -> bool:
    """Returns whether a bracket or a comma follows directly after the value."""
    return place + 1 < len(found) and found[place + 1].text in ("(", ",")


def says_the_same(first: Element, second: Element, found: Sequence[Element], places: Mapping[int, int]) -> bool:
    """Returns whether one value has a minus and the other one a word for it: `-0.034 (a 3.4% decrease)`.

    Args:
        first: One value.
        second: The other value.
        found: The statement that contains them.
        places: Position in the text -> index in `found` of the element that begins there.
    """
    if first.value is None or second.value is None or first.value.number.mantissa * second.value.number.mantissa >= 0:
        return False
    unsigned = first if first.value.number.mantissa > 0 else second
    place = places[unsigned.start]
    if _word_before(found, place) not in DOWN and _after(found, place) not in DOWN:
        return False
    assert unsigned.value is not None
    opposite = replace(unsigned.value, number=_negated(unsigned.value.number))
    return is_same(opposite, second.value if unsigned is first else first.value)


def _negated(number: Number) -> Number:
    return replace(number, mantissa=-number.mantissa)


def _word_before(found: Sequence[Element], place: int) -> str:
    """Returns the nearest word before a value that is not a filler; `exceeding` for `up to`, which is a bound."""
    at = _place_before(found, place)
    if at < 0:
        return ""
    return "exceeding" if found[at].text == "to" and at and found[at - 1].text == "up" else found[at].text


def _place_before(found: Sequence[Element], place: int) -> int:
    """Returns the index of the nearest word before a value that is not a filler, or -1."""
    back = place - 1
    while back >= 0 and place - back <= _REACH:
        word = found[back]
        if word.sort in (Sort.WORD, Sort.SYMBOL) and word.text in _FILLERS:
            back -= 1
            continue
        return back if word.sort is Sort.WORD else -1
    return -1


def _after(found: Sequence[Element], place: int) -> str:
    for one in found[place + 1 : place + 4]:
        if one.sort not in (Sort.WORD, Sort.SYMBOL):
            return ""
        if one.text in DOWN or one.text in UP:
            return one.text
        if one.text not in _AFTER_FILLERS:
            return ""
        if one.text in (",",):
            return ""
    return ""


def _after_word(found: Sequence[Element], place: int) -> str:
    """Returns the text of the element directly after a value."""
    return found[place + 1].text if place + 1 < len(found) else ""


def _bounded_after(found: Sequence[Element], place: int) -> bool:
    words = " ".join(one.text for one in found[place + 1 : place + 4])
    return words.startswith(BOUNDS_AFTER)


def _clause(found: Sequence[Element], place: int, *, is_listed: bool) -> list[str]:
    """Returns the words of the clause around a value, without those that give another value its sign or movement."""
    ends = [at for at, one in enumerate(found) if one.sort is Sort.BREAK or one.text in (".", ";")]
    start = max((at for at in ends if at < place), default=-1)
    end = min((at for at in ends if at > place), default=len(found))
    values = [at for at in range(start + 1, end) if found[at].sort is Sort.VALUE and at != place]
    taken = {_place_before(found, at) for at in values if at > place or _word_before(found, at) in _NEGATIVE}
    if is_listed:  # `212 in 2019 and decreased to 187`
        taken |= {at - 1 for at in taken if found[at].text == "to" and at}
    return [found[at].text for at in range(start + 1, end) if found[at].sort is Sort.WORD and at not in taken]


_GROWS = re.compile(r"\bfrom (?:fy ?|fiscal )?((?:19|20)[0-9]{2}) to (?:fy ?|fiscal )?((?:19|20)[0-9]{2})\b")
_TIMES = re.compile(r"(?:[0-9]|[a-z]) ?(?:times|x) ")
_TO = re.compile(
    r"(?<![a-z&])([a-z&]{1,30})(?: to | over |-to-| ?/ ?)(?:net |total |current |average |long-term |"
    r"its )?([a-z&]{1,30})(?=[ ]?(?::|=|is|was|of|ratio|\Z))"
)
_LEVEL = re.compile(r"% of (?:[a-z'-]+ ){0,4}levels?\b|% of (?:[a-z'-]+ ){0,3}(?:size|base)\b")


def is_inverted(text: str, question: Question) -> bool:
    """Returns whether a text in lower case gives the inverse of the ratio that the question asks for."""
    grows = _GROWS.search(question.text)
    if question.divides:
        top, bottom = question.divides
    elif grows:
        top, bottom = frozenset({grows[2]}), frozenset({grows[1]})
    else:
        return False
    if any(match[1] in bottom and match[2] in top for match in _TO.finditer(text)):
        return True
    times = _TIMES.search(text)
    if times is None:
        return False
    before, after = operands(text[: times.start()]), operands(text[times.end() :])
    before, after = before - after, after - before
    straight = before & top or after & bottom
    return not straight and bool(before & bottom or after & top)


def is_level(text: str, question: Question) -> bool:
    """Returns whether a text in lower case gives a remainder, `fell to 9.5% of its level`, instead of a change."""
    return question.known and bool(_LEVEL.search(text)) and "level" not in question.text
