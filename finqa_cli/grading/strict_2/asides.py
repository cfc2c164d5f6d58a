"""Removes remarks beside a value: other years in brackets, other measures after `while`, and how it was computed.

A remark is removed only if its own label shows that it is of another year or measure than the question's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, pairwise

from finqa_cli.grading.numbers import NO_UNIT, Kind
from finqa_cli.grading.strict_2.labels import contradicts, quantities
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.values import Element, Sort, is_computed, is_same

_OPPOSING = frozenset(("while", "whereas"))
_ENDS = (".", ";")
_SPAN_REACH = 12
_ONE = frozenset(("1", "1.0", "1.00", "one"))
_PER = frozenset(("every", "each", "per"))
_EXPLAINS = frozenset(("—", "(", ",", ":", "based", "because", "since", "as", "on", "from", "with", "using", "being"))


def without_asides(found: Sequence[Element], question: Question) -> list[Element]:
    """Removes brackets and clauses whose values are of another year or measure: `(2020: 24.5%)`, `while diluted ...`.

    The 1 of `for every $1` is removed, too.
    """
    kept: list[Element] = []
    place, has_value = 0, False
    while place < len(found):
        one = found[place]
        end = _aside_end(found, place) if has_value and question.known else place
        if end > place and (_is_of_another(found[place + 1 : end], question) or _makes(kept, found[place + 1 : end])):
            place = end + (one.text == "(")
            continue
        is_unit = one.text in _ONE and bool(kept) and any(word.text in _PER for word in kept[-2:])
        if not (is_unit and has_value):
            kept.append(one)
            has_value = has_value or one.sort in (Sort.VALUE, Sort.YEAR)
        place += 1
    return kept


def _aside_end(found: Sequence[Element], place: int) -> int:
    """Returns where the remark that begins here ends, or the place itself if none begins here."""
    text = found[place].text
    if text == "(":
        return next((at for at in range(place + 1, min(place + 40, len(found))) if found[at].text == ")"), place)
    if text in _OPPOSING:
        ends = (at for at in range(place, len(found)) if found[at].sort is Sort.BREAK or found[at].text in _ENDS)
        return next(ends, len(found))
    return place


def _makes(kept: Sequence[Element], inner: Sequence[Element]) -> bool:
    """Returns whether a bracket contains the two numbers that the value before is computed from: `57 (641 vs. 584)`."""
    values = [one.value.number for one in kept if one.sort is Sort.VALUE and one.value]
    parts = [one.value.number.value for one in inner if one.sort is Sort.VALUE and one.value]
    if len(values) != 1 or len(parts) != 2 or any(one.sort is Sort.OPERATION for one in inner):
        return False
    first = values[0]
    if is_computed(first.value, first.place * first.unit.factor, parts):
        return True
    is_bare = all(one.value.number.unit is NO_UNIT for one in inner if one.sort is Sort.VALUE and one.value)
    return is_bare and first.unit.kind is Kind.SCALE and is_computed(first.mantissa, first.place, parts)


def _is_of_another(inner: Sequence[Element], question: Question) -> bool:
    if not any(one.sort is Sort.VALUE for one in inner):
        return False
    if [one.text for one in inner[:2]] == ["out", "of"]:
        return True
    label = " ".join(one.text for one in inner if one.sort is Sort.WORD)
    if label.split(" ")[0] in ("up", "down") and not question.direction and "change" not in question.text:
        return True  # `3.12% (down 28 basis points)`
    years = {one.text for one in inner if one.sort is Sort.YEAR}
    if years and question.years:
        return not years & question.years
    named = quantities(label)
    other = bool(named and question.quantities and not named & question.quantities)
    return bool(label) and (contradicts(label, question.text) or other)


def explains_another(text: str, question: Question) -> bool:
    """Returns whether a remark `this is ...` after a value is about another measure than the question's."""
    for remark in islice(_THIS_IS.finditer(text), _MOST_REMARKS):
        named = quantities(remark[1])
        if contradicts(remark[1], question.text) or (named and question.quantities and not named & question.quantities):
            return True
    return False


_MOST_REMARKS = 3
_THIS_IS = re.compile(r"(?<=[0-9%x)])(?: ?[—.;,(]| -|\n) ?(?:this|that|which|it) (?:is|was) ([^.;\n]{3,120})")


def to_asked_year(found: Sequence[Element], question: Question) -> list[Element]:
    """Keeps the second value of `from 24.5% in 2020 to 21.3% in 2021`, if the question asks for its year only."""
    start = next((at for at, one in enumerate(found) if one.text == "from" and one.sort is Sort.WORD), None)
    if start is None or len(question.years) != 1:
        return list(found)
    span = found[start : start + _SPAN_REACH]
    shape = [one for one in span if one.sort in (Sort.VALUE, Sort.YEAR) or one.text in ("to", ",")]
    values = [one for one in found if one.sort is Sort.VALUE]
    sorts = [one.text if one.sort is Sort.WORD else one.sort for one in shape if one.text != ","]
    if sorts[:5] != [Sort.VALUE, Sort.YEAR, "to", Sort.VALUE, Sort.YEAR] or len(values) != 2:
        return list(found)
    first, last = (one.text for one in shape if one.sort is Sort.YEAR)
    if {last} != question.years or first == last:
        return list(found)
    target = next(at for at in range(start, len(found)) if found[at].text == "to")
    return list(found[target:])


def without_explanation(found: Sequence[Element]) -> list[Element]:
    """Keeps only the first value if labelled values explain it: `21.3%, tax of 213 over income of 1,000`; else all.

    Each of the others has a label, and the first is their quotient, difference, sum or rate of change.
    """
    places = [at for at, one in enumerate(found) if one.sort is Sort.VALUE]
    if len(places) < 3 or not any(one.text in _EXPLAINS for one in found[places[0] + 1 : places[0] + 3]):
        return list(found)
    between = [found[before + 1 : at] for before, at in pairwise(places)]
    labelled = all(any(one.sort is Sort.WORD for one in run) for run in between)
    labelled = labelled or found[places[0] + 1].text == "("
    labelled = labelled and not any(one.text in ("=", "→") for run in between for one in run)
    amounts = [one.value.number for at in places if (one := found[at]).value is not None]
    first, *others = amounts
    step = first.place * first.unit.factor
    if not labelled or not is_computed(first.value, step, [number.value for number in others]):
        return list(found)
    return list(found[: places[0] + 1])


def without_meaning(found: Sequence[Element]) -> list[Element]:
    """Returns the text up to the explanation of what its one amount means; without such an explanation, everything."""
    cut = _means_the_same(found, [at for at, one in enumerate(found) if one.sort is Sort.VALUE])
    return list(found[:cut]) if cut else list(found)


def _means_the_same(found: Sequence[Element], places: Sequence[int]) -> int:
    """Returns where `6.118, meaning about $6.12 of debt per dollar of equity` repeats its amount, or 0.

    Amounts may be in percent or cents. The one dollar that they refer to is ignored.
    """
    first = found[places[0]].value if places else None
    cue = next((at for at in range(places[0] + 1, len(found)) if found[at].text in _MEANS), 0) if places else 0
    if len(places) > 1 and places[1] == places[0] + 2 and found[places[0] + 1].text == "-":
        cue = places[0] + 1  # a dash and no minus: the amount minus itself would not be an answer
    if first is None or not cue or (len(places) > 1 and cue > places[1]):
        return 0
    for at in places[1:]:
        other = found[at].value
        if other is None or (found[at].text in _ONE and found[cue].text != "-"):
            continue
        if not is_same(first, other) or (found[cue].text == "-" and first.number.unit.kind is other.number.unit.kind):
            return 0
    return cue


_MEANS = frozenset(("meaning", "means", "implying", "indicating", "so", "i.e."))
