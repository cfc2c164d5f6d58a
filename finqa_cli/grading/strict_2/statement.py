"""Finds the part of an answer that decides on numbers, and the values that it states.

Each step only narrows the text: after the last `answer is` or `so`; without the explanation after it; without contrasts
(`, not 85`, `vs. 74`); the result of an equation or an arrow. The rest must contain one value, written once or in two
notations of the same amount; otherwise the answer is not a decision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from finqa_cli.grading.numbers import NO_UNIT, Kind, Unit
from finqa_cli.grading.strict_2.direction import says_the_same
from finqa_cli.grading.strict_2.labels import is_common
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.refused_words import OR_EQUAL
from finqa_cli.grading.strict_2.units import PERCENT
from finqa_cli.grading.strict_2.values import Element, Sort, is_computed, is_same, precision

_IS = r"(?:\s*(?:is|was|are|were|equals|be|comes to|=|:|→)\s*(?:that |=|:)?)"
_LABEL = (
    r"(?:final|correct|right|actual|resulting|requested|overall|exact|computed|calculated)[ _](?:answer|value|result|"
    r"figure|number|ratio|amount|percentage|count|output|solution)|answer|result|conclusion|solution"
)
STRONG = re.compile(
    rf"(?<![\w-])(?:{_LABEL})"
    rf"(?: to (?:the|this) question| for [^.,;:\n]{{1,40}}| of (?:the|this) [^.,;:\n]{{1,40}})?{_IS}"
    r"|(?:最终|最終|正确)?(?:答案|答え|回答|结果)\s*(?:是|为|は|:)|réponse\s*(?:finale)?\s*:|respuesta(?: final)?\s*:"
    r"|antwort\s*:|risposta\s*:|resposta\s*:|ответ\s*:|정답\s*:|antwoord\s*:|####\s*"
)
"""Words that announce the decision of an answer."""
FIRM = re.compile(r"answer|final|conclusion|correct|####|答|réponse|respuesta|antwort|risposta|resposta|ответ|정답")
"""Announcements of a decision: two of them with different values contradict. A `result` before them is working."""
WEAK = re.compile(
    r"(?<=[,.;:)] )(?:so|hence|thus|therefore)\b|^(?:so|hence|thus|therefore)\b|\n(?:so|hence|thus|therefore)\b"
    r"|\band (?:so|hence|thus|therefore)\b|(?<![\w-])(?:gives?|giving|yields?|yielding|we get|results in|resulting in"
    r"|which means|returned|works out (?:to|at)|therefore|consequently|(?:for|making|giving|"
    r"with) an? (?:grand )?total of"
    r"|totall?ing|to get|(?:and|i|we) got|getting|(?:to|we|i) obtain(?:ed)?|obtaining|arriv(?:e|ed|ing) at|gave|"
    r"to find|adds? up to|sums? to)(?![\w-])"
)
"""Words before a result that follows its working."""
_EXPLAINS = re.compile(
    r"(?:\n\s{0,6}|\s--\s|[.;]\s{1,6})(?=(?:explanation|reasoning|reason|calculation|workings?(?! capital)|"
    r"computation|derivation|notes?"
    r"|because|computed|calculated|steps|formula|method|source)\b|(?:check|verification|proof)[ ]?:)"
)
_REASON = re.compile(
    r"(?:,|(?<=[0-9%x])) (?=(?:because|since|as|calculated|computed|derived|obtained|found) "
    r"(?:as|by|from|the|total|net|[0-9$]|it|this|that)\b)"
)
"""The beginning of a reason in the sentence of a value: `1.42, calculated as 710 / 500`."""
_CHECKS = re.compile(r"(?:check|verification|proof)[ ]?:")
_LAST_NUMBER = re.compile(r"(?<![0-9.,])([0-9][0-9.,]{0,40})[^0-9]*\Z")
CLAUSE_END = re.compile(r"[.;!](?=\s|\Z)|\n|,\s*(?:but|so)\b|(?<=\s)--?(?=\s)|—")

_CONTRASTS = (
    ("not",), ("rather", "than"), ("instead", "of"), ("versus",), ("vs",), ("vs.",), ("compared",), ("against",),
    ("up", "from"), ("down", "from"), ("from",), ("than",), ("as", "opposed"), ("prior",), ("and", "not"),
)  # fmt: skip
_CONTRAST_STARTS = frozenset(words[0] for words in _CONTRASTS)
_CONTRAST_REACH = 6
_SPAN_REACH = 12
_SAME_LINKS = word_set("= ~ ( [ { oreq i.e i.e. equals equal equivalent equivalently corresponds namely is or: aka")


def region(text: str) -> tuple[int, int]:
    """Returns start and end of the text that decides: from its last announcement up to its explanation."""
    strong = list(STRONG.finditer(text))
    start = strong[-1].end() if strong else 0
    end = len(text)
    explained = _EXPLAINS.search(text, start) or _reason(text, start)
    stated = _LAST_NUMBER.search(text[start : explained.start()]) if explained else None
    if explained and stated and (not _CHECKS.match(text, explained.end()) or stated[1] in text[explained.end() :]):
        end = explained.start()
    return start, end


def _reason(text: str, start: int) -> re.Match[str] | None:
    """Returns where the reason begins that follows the first and only value, if no conclusion follows; else None."""
    found = _REASON.search(text, start)
    if found is None or WEAK.search(text, found.end()):
        return None
    numbers = _ANY_NUMBER.findall(text[start : found.start()])
    return found if len(numbers) == 1 and not _YEAR.fullmatch(numbers[0]) else None


_ANY_NUMBER = re.compile(r"[0-9][0-9.,]*")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")


def decides_from(text: str) -> int:
    """Returns where the last firm announcement of an answer begins; text before it is working. 0 without one."""
    found = [match for match in STRONG.finditer(text) if FIRM.search(match[0])]
    return found[-1].start() if found else 0


def announced_before(text: str) -> tuple[int, int]:
    """Returns the range between the first and the last firm announcement; (0, 0) if there is none."""
    found = list(STRONG.finditer(text))
    firm = [match for match in found if FIRM.search(match[0])] or found
    return (firm[0].end(), firm[-1].start()) if firm else (0, 0)


def without_spans(found: Sequence[Element]) -> list[Element]:
    """Removes `from 100 to 105` if there is another value, because these are the inputs of that value."""
    for place, one in enumerate(found):
        if one.text != "from" or one.sort is not Sort.WORD:
            continue
        stop = min(place + _SPAN_REACH, len(found))
        values = [at for at in range(place, stop) if found[at].sort is Sort.VALUE][:2]
        others = [*found[:place], *(found[values[-1] + 1 :] if values else ())]
        if len(values) == 2 and _values(others) and any(o.text == "to" for o in found[values[0] : values[1]]):
            at = values[-1] + 1
            said = at < len(found) and found[at].text == OR_EQUAL and not _is_rate(found[values[0]])
            return [one for one in others if one is not found[at]] if said else others  # `from 50.0 to 52.6, or 5.2%`
    return list(found)


def _is_rate(one: Element) -> bool:
    return one.value is not None and one.value.number.unit.kind in (Kind.PERCENT, Kind.POINTS)


def weak_start(text: str, start: int, end: int) -> int:
    """Returns where the text after the last `so`, `gives` or similar word begins; `start` without such a word."""
    for match in reversed(list(WEAK.finditer(text, start, end))):
        return match.end()
    return start


def clause_start(text: str, place: int) -> int:
    """Returns where the clause begins that contains a place of the text."""
    starts = [match.end() for match in CLAUSE_END.finditer(text, 0, place)]
    return starts[-1] if starts else 0


def without_contrasts(found: Sequence[Element], is_value: Callable[[Element], bool]) -> tuple[list[Element], str]:
    """Removes values that only contrast with the one before (`not 85`, `vs. 74`); also returns the removed text."""
    kept: list[Element] = []
    dropped: list[str] = []
    place, has_value = 0, False
    while place < len(found):
        length = _contrast(found, place) if has_value else 0
        if length:
            stop = place + length
            ahead = range(stop, min(stop + _CONTRAST_REACH, len(found)))
            target = next((one for one in ahead if is_value(found[one])), None)
            between = found[stop:target] if target is not None else []
            if (
                target is not None
                and all(_may_stand_between(one, found[place].text) for one in between)
                and (found[place].text not in _BESIDE or _is_labelled(between, found[target + 1 : target + 4]))
            ):
                dropped += [one.text for one in found[place : target + 1]]
                place = target + 1
                while place < len(found) and found[place].sort in (Sort.WORD, Sort.YEAR):
                    place += 1  # `vs. 74 the year before`, `and 70 in 2020`
                    if found[place - 1].text == "and" and place + 2 < len(found) and is_value(found[place]):
                        place += found[place + 1].text == "in" and found[place + 2].sort is Sort.YEAR
                continue
        kept.append(found[place])
        has_value = has_value or is_value(found[place])
        place += 1
    return kept, " ".join(dropped)


def _is_labelled(between: Sequence[Element], after: Sequence[Element]) -> bool:
    """Returns whether words or a year label the other value: `vs. 74 the year before`; `7.9% vs 8.2%` has no label."""
    if any(one.sort is Sort.WORD and one.text not in _CONTRAST_LINKS for one in between):
        return True
    following = next((one for one in after if one.text not in _OPENING), None)
    labels = (Sort.WORD, Sort.YEAR)
    return following is not None and following.sort in labels and following.text not in _CONTRAST_STARTS


_BESIDE = word_set("versus vs vs. compared against")
"""Words between two values that do not show which of them is the answer."""
_CONTRAST_LINKS = word_set("with to the a an about only just")
_OPENING = frozenset("([,")


def _may_stand_between(one: Element, cue: str) -> bool:
    """Returns whether an element may be between the cue of a contrast and its value: `not the 85 of last year`."""
    if one.sort is Sort.WORD:
        return not (cue == "from" and one.text == "to") and (cue != "not" or is_common(one.text))
    return one.sort is Sort.YEAR or (one.sort is Sort.SYMBOL and one.text not in "()[],;")


def _contrast(found: Sequence[Element], place: int) -> int:
    if found[place].text not in _CONTRAST_STARTS:
        return 0
    for words in _CONTRASTS:
        if all(place + offset < len(found) and found[place + offset].text == word for offset, word in enumerate(words)):
            return len(words)
    return 0


def without_working(found: Sequence[Element]) -> list[Element]:
    """Removes brackets of any kind that contain an expression after a value, as in `47.3 days (365 / 7.717)`."""
    kept: list[Element] = []
    place = 0
    while place < len(found):
        mark = _BRACKETS.get(found[place].text)
        if mark and any(one.sort is Sort.VALUE for one in kept[-2:]):
            close = _closing(found, place, mark)
            if close is not None and any(one.sort is Sort.OPERATION for one in found[place:close]):
                place = close + 1
                continue
        kept.append(found[place])
        place += 1
    return kept


def _closing(found: Sequence[Element], place: int, mark: str) -> int | None:
    """Returns where the bracket that opens at a place closes; None if it does not."""
    depth = 0
    for at in range(place, len(found)):
        depth += (found[at].text == found[place].text) - (found[at].text == mark)
        if not depth:
            return at
    return None


_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def without_used_results(found: Sequence[Element]) -> list[Element]:
    """Returns the last of several equations if each earlier result is a number of the next one; else everything."""
    parts: list[list[Element]] = [[]]
    for one in found:
        if one.sort is Sort.BREAK or (one.sort is Sort.SYMBOL and one.text in (",", ";", ".")):
            parts.append([])
        else:
            parts[-1].append(one)
    parts = [part for part in parts if _values(part)]
    if not 1 < len(parts) <= _MOST_EQUATIONS or not all(any(one.text == "=" for one in part) for part in parts):
        return list(found)
    numbers = [{one.text for one in _values(part)} for part in parts]
    used = all(_values(part)[-1].text in numbers[at + 1] for at, part in enumerate(parts[:-1]))
    return parts[-1] if used and _has_operation(parts[-1]) else list(found)


_MOST_EQUATIONS = 10


def result_of(found: Sequence[Element]) -> list[Element] | str:
    """Returns the result of an equation or after an arrow, or why there is none; without both, all elements.

    The result of `100 - 20 = 80` and of `80 = 100 - 20` is the side that is a value. Two sides with different values
    are two answers.
    """
    sides = _split(found, "→")
    found = sides[-1]
    if len(sides) > 1 and _is_plain_value(sides[-2]):  # from one notation or one value to another
        found = [*sides[-2], _link(sides[-2]), *found]
    sides = [_trimmed(side) for side in _split(found, "=")]
    if len(sides) == 1:
        return "The expression is not computed." if _has_operation(found) else list(found)
    plain = [side for side in sides if _values(side) and not _has_operation(side)]
    single = [side for side in plain if len(_values(side)) == 1]
    plain = [side for side in plain if side in single or not single or not _computes(side, single[-1])]
    if not plain:
        return "The equation has no value on either side."
    joined = [one for side in plain for one in (*side, _link(side))]
    return joined[:-1]


def result_after_arrow(found: Sequence[Element]) -> list[Element]:
    """Returns the text after the last arrow, if it has a year and amounts are before the arrow; else everything."""
    *before, last = _split(found, "→")
    is_result = any(one.sort is Sort.YEAR for one in last) and any(_values(side) for side in before)
    return last if is_result else list(found)


def _link(side: Sequence[Element]) -> Element:
    end = side[-1].end
    return Element(Sort.SYMBOL, "=", end, end)


def _split(found: Sequence[Element], mark: str) -> list[list[Element]]:
    sides: list[list[Element]] = [[]]
    for one in found:
        if one.text == mark:
            sides.append([])
        else:
            sides[-1].append(one)
    return sides


def _computes(side: Sequence[Element], result: Sequence[Element]) -> bool:
    """Returns whether one side computes the result: `$2.10 per share on 600 million shares = $1,260 million`."""
    numbers = [one.value.number.value for one in _values(side) if one.value]
    number = next(one.value.number for one in _values(result) if one.value)
    if number.value in numbers:
        return False  # `125 / 200 = 0.625 or 62.5%`
    return is_computed(number.value, number.place * number.unit.factor, numbers)


def _trimmed(side: list[Element]) -> list[Element]:
    """Returns a side of an equation without line ends around it: `= 710 / 500`, and in the next line `= 1.42`."""
    start, end = 0, len(side)
    while start < end and side[start].sort is Sort.BREAK:
        start += 1
    while end > start and side[end - 1].sort is Sort.BREAK:
        end -= 1
    return side[start:end]


def _values(found: Sequence[Element]) -> list[Element]:
    return [one for one in found if one.sort is Sort.VALUE]


def _is_plain_value(found: Sequence[Element]) -> bool:
    return len(_values(found)) == 1 and all(one.sort in (Sort.VALUE, Sort.SYMBOL) for one in found)


def _has_operation(found: Sequence[Element]) -> bool:
    return any(one.sort is Sort.OPERATION for one in found)


def candidates(found: Sequence[Element], question: Question) -> list[Element]:
    """Returns the values of a statement, without those that only repeat a number of the question."""
    values = _values(found)
    if not values:
        years = [one for one in found if one.sort is Sort.YEAR and one.value is not None]
        return years if len(years) == 1 else []
    others = [one for one in values if not _is_echo(one, question)]
    return others or values


def _is_echo(one: Element, question: Question) -> bool:
    return one.text in question.numbers or _DIGIT_WORDS.get(one.text, one.text) in question.numbers


_DIGIT_WORDS = {"one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "ten": "10"}


def merge_notations(values: Sequence[Element], found: Sequence[Element], scale: Unit = NO_UNIT) -> list[Element]:
    """Joins values that are two notations of one amount, such as `0.05 (5%)`; the more precise one is kept.

    They must be linked by brackets, an equals sign or `i.e.`, and be written differently: `5, 5` are two values.

    Args:
        values: The values.
        found: The statement that contains them.
        scale: The scale that the question asks for: `80 ($80 million)` is one amount in millions.
    """
    merged: list[Element] = []
    places = {one.start: place for place, one in enumerate(found)}
    for one in values:
        last = merged[-1] if merged else None
        between = found[places[last.start] + 1 : places[one.start]] if last is not None else ()
        if (
            last is not None
            and (links := _links(between))
            and _say_the_same(last, one, _is_exact(between, links), scale)
        ):
            assert last.value and one.value
            merged[-1] = _finer(last, one, is_next=len(between) == 1)
            continue
        pair = (_in_scale(last, one, scale), _in_scale(one, last, scale)) if last is not None else None
        if last is not None and pair is not None and _links(between) and says_the_same(*pair, found, places):
            assert last.value
            merged[-1] = last if last.value.number.mantissa < 0 else one
            continue
        merged.append(one)
    return merged


def _is_exact(between: Sequence[Element], links: set[str]) -> bool:
    """Returns whether two values joined by `or` must be equal: `5.25% or 5.3%`. After `about`, rounding is allowed."""
    return OR_EQUAL in links and not any(one.text in _ROUNDS for one in between)


_ROUNDS = word_set("about approximately roughly approx. rounded")


def _finer(first: Element, second: Element, *, is_next: bool) -> Element:
    """Returns the more precise notation, an equally precise percentage directly after, a decimal beside a fraction."""
    assert first.value and second.value
    if not first.value.number.place:
        return second
    if is_next and second.value.number.unit is PERCENT and precision(second.value) == precision(first.value):
        return second
    return second if 0 < precision(second.value) < precision(first.value) else first


def _links(between: Sequence[Element]) -> set[str]:
    """Returns the words between two values that link them as one amount."""
    words = {word for one in between for word in one.text.split()}
    if not words & {"(", "[", "{"} and any(one.sort is Sort.BREAK for one in between):
        return set()
    return words if {"that", "is"} <= words else words & _SAME_LINKS


def _in_scale(one: Element, other: Element, scale: Unit) -> Element:
    """Returns a bare value in the scale of the question, if the other value has a scale; else unchanged."""
    if one.value is None or other.value is None or scale.kind is not Kind.SCALE:
        return one
    if one.value.number.unit is not NO_UNIT or other.value.number.unit.kind is not Kind.SCALE:
        return one
    return replace(one, value=replace(one.value, number=replace(one.value.number, unit=scale)))


def _say_the_same(first: Element, second: Element, is_exact: bool, scale: Unit) -> bool:
    scaled = _in_scale(first, second, scale), _in_scale(second, first, scale)
    return _are_one(first, second, is_exact) or _are_one(*scaled, is_exact)


def _are_one(first: Element, second: Element, is_exact: bool) -> bool:
    if first.value is None or second.value is None or first.value.written == second.value.written:
        return False
    if is_exact and all(one.value is None or one.value.number.place for one in (first, second)):
        # `5.25% or 5.3%` are alternatives
        return first.value.number.value == second.value.number.value
    return is_same(first.value, second.value)
