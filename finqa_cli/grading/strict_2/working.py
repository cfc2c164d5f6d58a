"""Separates a result from its working: sentences that compute, labelled lines before the result, amounts with a share.

Each rule keeps only the result if the text distinguishes it from the working: by an operation before a verb, a clause
that begins with `since` or `with`, a label that alone is what the question asks for, or units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from finqa_cli.grading.numbers import Kind
from finqa_cli.grading.strict_2.labels import covers, is_foreign, measures_named
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.units import TIMES
from finqa_cli.grading.strict_2.values import Element, Sort, is_computed, is_same

_EQUALS = frozenset(("equals", "equalling", "equaling"))
_VERBS = _EQUALS | word_set("is was are were gives give makes yields returns totals")
_AMONG = word_set("average mean sum total ratio difference quotient product median change percentage proportion")
_OF = word_set("of between from in")
_FRONTED = word_set(
    "with given since because as dividing using taking based by adding subtracting considering having summing "
    "averaging "
    "comparing multiplying after for whereas while"
)
_INTERMEDIATE = word_set("total sum difference change increase decrease")
_MOST_PARTS = 12
_SENTENCE_ENDS = (".", ";")


def as_equations(found: Sequence[Element]) -> list[Element]:
    """Replaces verbs by equals signs: `equals` everywhere, `is` and `gives` after an operation on numbers.

    `The average of 4 and 6 is 5` also has an operation: a noun such as `average`, and several values before the verb. A
    `~` between an expression and a value becomes an equals sign, too.
    """
    kept: list[Element] = []
    begins, values, computes = 0, 0, False
    for place, one in enumerate(found):
        if one.sort is Sort.BREAK or (one.sort is Sort.SYMBOL and one.text in _SENTENCE_ENDS):
            begins, values, computes = place + 1, 0, False
        elif one.sort is Sort.OPERATION:
            computes = True
        elif one.sort is Sort.VALUE:
            values += 1
        is_verb = (one.sort is Sort.WORD and one.text in _VERBS) or (one.text == ":" and values > 1 and not computes)
        if is_verb and values > 1 and not computes and _combines(found[begins:place]):
            kept.append(Element(Sort.OPERATION, "of", one.start, one.start))
            computes = True
        if (is_verb and values and (computes or one.text in _EQUALS)) or (
            one.sort is Sort.SYMBOL and one.text == "~" and computes
        ):
            one = Element(Sort.SYMBOL, "=", one.start, one.end)
            computes, values, begins = False, 0, place + 1
        kept.append(one)
    return kept


def _combines(found: Sequence[Element]) -> bool:
    """Returns whether `average of` or a similar phrase precedes the values."""
    first = next((at for at, one in enumerate(found) if one.sort is Sort.VALUE), len(found))
    words = [one.text for one in found[:first] if one.sort is Sort.WORD]
    return any(word in _AMONG and set(words[at + 1 :]) & _OF for at, word in enumerate(words))


def after_fronted_clause(found: Sequence[Element]) -> list[Element]:
    """Returns the main clause of `Since assets are 710 and liabilities 500, the ratio is 1.42`; else everything."""
    ends = [
        at
        for at, one in enumerate(found[:-1])
        if one.sort is Sort.BREAK or (one.sort is Sort.SYMBOL and one.text in _SENTENCE_ENDS)
    ]
    start = ends[-1] + 1 if ends else 0
    if any(one.sort is Sort.VALUE for one in found[:start]):
        return list(found)
    if start >= len(found) or found[start].text not in _FRONTED:
        return list(found)
    commas = [at for at in range(start, len(found)) if found[at].sort is Sort.SYMBOL and found[at].text == ","]
    if not commas:
        return list(found)
    tail = found[commas[-1] + 1 :]
    count = sum(one.sort is Sort.VALUE for one in tail)
    says = tail and tail[0].sort is Sort.WORD and any(one.text in _VERBS or one.text == "=" for one in tail)
    return list(tail) if count and says else list(found)


def last_labelled(found: Sequence[Element], question: Question) -> list[Element]:
    """Returns the last of several labelled values, if only its label is what the question asks for; else everything.

    The others are then its inputs: their labels name no measure that is asked for, or the value is their sum,
    difference, quotient or rate of change.
    """
    parts = _parts(found)
    if not question.known or not 2 <= len(parts) <= _MOST_PARTS or not all(label for label, _ in parts):
        return list(found)
    label, last = parts[-1]
    before = parts[:-1]
    named = measures_named(label)
    asked = named & (measures_named(question.words) | {"total"})
    if any(measures_named(other) & asked or other == label for other, _ in before):
        return list(found)
    own = set(label)
    if (
        all(word.isdigit() for word in label)
        or is_foreign(label, question.words)
        or any(set(other) >= own for other, _ in before)
    ):
        return list(found)
    others = [one.value.number.value for _, part in before for one in part if one.sort is Sort.VALUE and one.value]
    result = [one.value.number for one in last if one.sort is Sort.VALUE and one.value]
    if not result or any(one.text == "?" for one in last):
        return list(found)
    computed = is_computed(result[-1].value, result[-1].place * result[-1].unit.factor, others)
    is_new = asked and not any(measures_named(other) - _INTERMEDIATE for other, _ in before)
    return list(last) if computed or is_new else list(found)


def final_statement(found: Sequence[Element], question: Question) -> list[Element]:
    """Returns the last sentence if it names everything that the question asks for and has one value; else everything.

    It is also the last sentence if this is a bare value that repeats the result of the working before it, or the last
    value if this is computed from all others and follows a word or a colon.
    """
    parts = _sentences(found)
    pieces = parts if len(parts) > 1 else [piece for piece in _split_at_commas(found) if _has_value(piece)]
    if len(pieces) > 1 and _repeats(pieces[-1], pieces[-2]):
        return pieces[-1]
    if len(parts) > 1 and _repeats_conclusion(parts):
        return parts[-1]
    if len(parts) > 1 and _uses(parts[-1], parts[:-1]):
        return parts[-1]
    last = _last_clause(parts[-1]) if parts else []
    values = [one for one in last if one.sort is Sort.VALUE]
    covering = [part for part in parts[:-1] if covers(_words_of(part), question.words)]
    others = [[one for one in part if one.sort is Sort.VALUE][-1] for part in covering]
    is_asked = question.known and len(values) == 1 and covers(_words_of(last), question.words)
    given = [one.value.number.value for part in parts for one in part if one.sort is Sort.VALUE and one.value][:-1]
    if is_asked and len(given) == 2 and values[0].value is not None:  # two inputs, which then make the result
        number = values[0].value.number
        is_asked = is_computed(number.value, number.place * number.unit.factor, given) or (
            number.unit.kind is Kind.SCALE and is_computed(number.mantissa, number.place, given)
        )
    if is_asked and all(_is_same_value(one, values[0]) for one in others):
        return last
    return _computed_last(found)


def _computed_last(found: Sequence[Element]) -> list[Element]:
    places = [at for at, one in enumerate(found) if one.sort is Sort.VALUE]
    if len(places) < 3 or any(one.sort is Sort.OPERATION for one in found):
        return list(found)
    *others, last = [one.value.number for at in places if (one := found[at]).value is not None]
    before = found[places[-1] - 1]
    names = before.text in (":", "→") or before.text in _TOTALS
    step = last.place * last.unit.factor
    if not names or not is_computed(last.value, step, [number.value for number in others]):
        return list(found)
    return list(found[places[-1] - 1 :])


_TOTALS = word_set("average averages averaged mean total totals totaled totalled sum is was gives totaling equals")


def _sentences(found: Sequence[Element]) -> list[list[Element]]:
    """Returns the sentences and lines that contain a value."""
    parts: list[list[Element]] = [[]]
    for one in found:
        if one.sort is Sort.BREAK or (one.sort is Sort.SYMBOL and one.text in _SENTENCE_ENDS):
            parts.append([])
        else:
            parts[-1].append(one)
    return [part for part in parts if _has_value(part)]


def _split_at_commas(found: Sequence[Element]) -> list[list[Element]]:
    pieces: list[list[Element]] = [[]]
    for one in found:
        if one.sort is Sort.SYMBOL and one.text == ",":
            pieces.append([])
        else:
            pieces[-1].append(one)
    return pieces


def _has_value(part: Sequence[Element]) -> bool:
    return any(one.sort is Sort.VALUE for one in part)


def _last_clause(part: list[Element]) -> list[Element]:
    """Returns the part after the last comma of a sentence with several values."""
    if sum(one.sort is Sort.VALUE for one in part) < 2:
        return part
    return _split_at_commas(part)[-1]


def _uses(last: Sequence[Element], before: Sequence[Sequence[Element]]) -> bool:
    """Returns whether an equation at the end computes with the values of the sentences before it."""
    computes = any(one.sort is Sort.OPERATION or "/" in one.text for one in last)
    if not computes or not any(one.text == "=" for one in last):
        return False
    given = {one.text for part in before for one in part if one.sort is Sort.VALUE}
    sides = [one.text for one in last if one.sort is Sort.VALUE][:-1]
    operands = [text for side in sides for text in side.split("/")]
    return (
        len(operands) > 1
        and any(text in given for text in operands)
        and not any(one.sort is Sort.OPERATION for part in before for one in part)
    )


def _repeats(last: Sequence[Element], before: Sequence[Element]) -> bool:
    """Returns whether the last part is a bare value that is the result of the equation before it."""
    values = [one for one in last if one.sort is Sort.VALUE]
    bare = len(values) == 1 and all(one.sort is not Sort.OPERATION for one in last)
    result = [one for one in before if one.sort is Sort.VALUE][-1]
    return bare and any(one.text == "=" for one in before) and _is_same_value(result, values[0])


def _repeats_conclusion(parts: Sequence[Sequence[Element]]) -> bool:
    """Returns whether the last part is a bare value that the sentence before it concludes with `therefore`."""
    *working, conclusion, last = [[one for one in part if one.sort is Sort.VALUE] for part in parts]
    given = [one.value.number.value for part in working for one in part if one.value]
    if len(last) != 1 or len(conclusion) != 1 or _words_of(parts[-1]) or conclusion[0].value is None:
        return False
    number = conclusion[0].value.number
    says = not _THEREFORE.isdisjoint(_words_of(parts[-2]))
    computed = is_computed(number.value, number.place * number.unit.factor, given)
    return says and computed and _is_same_number(conclusion[0], last[0])


_THEREFORE = word_set("therefore so thus hence consequently")


def _is_same_number(one: Element, other: Element) -> bool:
    """Returns whether two values are the same number, where one may lack the unit: `$18.6 million` and `18.6`."""
    if one.value is None or other.value is None:
        return False
    first, second = one.value.number, other.value.number
    plain = Kind.PLAIN in (first.unit.kind, second.unit.kind)
    return _is_same_value(one, other) or (plain and first.mantissa == second.mantissa)


def _is_same_value(one: Element, other: Element) -> bool:
    return one.value is not None and other.value is not None and is_same(one.value, other.value)


def _words_of(part: Sequence[Element]) -> list[str]:
    return [one.text for one in part if one.sort is Sort.WORD]


def _parts(found: Sequence[Element]) -> list[tuple[tuple[str, ...], list[Element]]]:
    """Returns (label, elements) for each line, clause or item that contains a value."""
    parts: list[list[Element]] = [[]]
    for at, one in enumerate(found):
        following = found[at + 1].sort if at + 1 < len(found) else Sort.BREAK
        is_comma = one.sort is Sort.SYMBOL and one.text == "," and following is Sort.WORD
        if one.sort is Sort.BREAK or is_comma or (one.sort is Sort.SYMBOL and one.text in _SENTENCE_ENDS):
            parts.append([])
        else:
            parts[-1].append(one)
    labelled: list[tuple[tuple[str, ...], list[Element]]] = []
    for part in parts:
        first = next((at for at, one in enumerate(part) if one.sort is Sort.VALUE), None)
        if first is not None:
            labelled.append((tuple(one.text for one in part[:first] if one.sort in (Sort.WORD, Sort.YEAR)), part))
    return labelled


def of_asked_kind(values: Sequence[Element], question: Question) -> list[Element]:
    """Keeps the kind of value that the question asks for, as of an amount and its share: `$310 million (12.4%)`.

    If no duration is asked for, durations beside other values are removed: `7.1% over 3 years`.
    """
    if not question.known or len(values) < 2:
        return list(values)
    if "per share" in question.measures:
        each = [one for one in values if one.value is not None and one.value.measure == "per share"]
        if len(each) == 1 and all(one is each[0] or _is_total(one) for one in values):
            return each
    if question.counts and "shares" in question.measures and "money" not in question.measures:
        counted = [one for one in values if one.value is not None and one.value.measure == "shares"]
        paid = [one for one in values if one.value is not None and one.value.currency]
        if len(counted) == 1 and len(paid) == len(values) - 1:
            return counted
    if question.asks_amount and not question.counts and "share" in question.text:
        paid = [one for one in values if one.value is not None and one.value.currency]
        if len(paid) == 1 and all(one is paid[0] or (one.value and one.value.measure == "shares") for one in values):
            return paid
    if not question.asks_time:
        values = [one for one in values if one.value is None or one.value.measure not in TIMES] or values
    shares = [one for one in values if one.value is not None and one.value.number.unit.kind is Kind.PERCENT]
    points = [one for one in values if one.value is not None and one.value.number.unit.kind is Kind.POINTS]
    if question.scale.kind is Kind.POINTS and len(points) == 1 and len(shares) == len(values) - 1:
        return points if _is_their_difference(points[0], shares) else list(values)
    amounts = [one for one in values if one.value is not None and _is_amount(one)]
    if len(shares) + len(amounts) < len(values) or not shares or not amounts:
        return list(values)
    if question.asks_share:
        return shares
    return amounts if question.asks_amount else list(values)


def _is_their_difference(points: Element, shares: Sequence[Element]) -> bool:
    """Returns whether points are the difference of two percentages: `38.9% was 1.7 percentage points above 37.2%`."""
    if len(shares) != 2 or points.value is None:
        return len(shares) == 1 and points.start > shares[0].start
    number = points.value.number
    parts = [one.value.number.value for one in shares if one.value is not None]
    return abs(abs(parts[0] - parts[1]) - abs(number.value)) <= number.place * number.unit.factor


def _is_total(one: Element) -> bool:
    """Returns whether an element is a number of shares, or an amount with a scale."""
    value = one.value
    return value is not None and (value.measure == "shares" or value.number.unit.kind is Kind.SCALE)


def _is_amount(one: Element) -> bool:
    value = one.value
    return value is not None and (bool(value.currency) or value.number.unit.kind is Kind.SCALE)


def with_cents(found: Sequence[Element]) -> list[Element]:
    """Joins `3 dollars and 27 cents` to one value."""
    kept: list[Element] = []
    for one in found:
        before = kept[-2] if len(kept) > 1 and kept[-1].text == "and" else None
        if before is not None and _is_dollars(before) and _is_cents(one):
            assert before.value and one.value
            whole = before.value.number
            number = replace(
                whole, mantissa=whole.mantissa + one.value.number.value, is_whole=False, place=Fraction(1, 100)
            )
            value = replace(before.value, number=number, at_word=True)
            kept[-2:] = [Element(Sort.VALUE, before.text, before.start, one.end, value)]
            continue
        kept.append(one)
    return kept


def _is_dollars(one: Element) -> bool:
    value = one.value
    return value is not None and bool(value.currency) and value.number.is_whole and value.number.unit.kind is Kind.PLAIN


def _is_cents(one: Element) -> bool:
    value = one.value
    return value is not None and one.text != "" and value.measure == "money" and 0 < value.number.value < 1
