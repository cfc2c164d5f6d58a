"""Checks that the words around a value fit the question: its time, its quantity, and every single word.

Each word of the clause that contains a value must be related to the question, or be one of the common words of
`labels.py`. The words of a formula are an exception: they name the inputs of the value, and one of them must be related
to the question.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from finqa_cli.grading.numbers import Kind
from finqa_cli.grading.strict_2 import refused_words
from finqa_cli.grading.strict_2.labels import (
    contradicts,
    is_common,
    is_foreign,
    names_another_source,
    quantities,
    unaccounted,
)
from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.question import Question, operands
from finqa_cli.grading.strict_2.values import Element, Sort


def why_other(found: Sequence[Element], one: Element, question: Question) -> str:
    """Returns why the words around a value show that it is not what is asked for, or "".

    Args:
        found: The statement that contains the value.
        one: The value.
        question: The question.
    """
    return (
        _another_time(found, one, question)
        or _another_quantity(found, one, question)
        or is_about_something_else(found, one, question)
    )


_CLAUSE_ENDS = frozenset((".", ";", ",", "(", ")", "—", "[", "]", "{", "}", "→"))
_COMPUTES = word_set("/ = ÷ × divided over covers covered relative")  # noqa: RUF001
CHANGE = re.compile(
    r"(?:increas|decreas|grew|grow|rise|rose|risen|fell|fall|drop|declin|climb|jump|surg|shrank|shrunk|plung|tumbl|"
    r"widen|narrow|expand|contract(?:ed|ion)|improve|worsen|cagr)\w*"
)
ASKS_CHANGE = re.compile(
    r"\b(?:chang|increas|decreas|ris|rose|grow|grew|fell|fall|drop|declin|differ|varia|improv|worsen|expan|widen|"
    r"narrow|"
    r"higher|lower|more|less|fewer|gain|loss|lost|reduc|by how|cagr|total return|exceed|swing|shift|mov|trend|delta|"
    r"appreciat|spread|compound|contract|shr[aiu]nk|climb|jump)\w*"
)


_FURTHER = word_set("more fewer additional extra further")
_MOST_WORDS = 80
_RATIO_OF = re.compile(r"\bratio of\b")


def _clause(found: Sequence[Element], place: int) -> tuple[Sequence[Element], Sequence[Element]]:
    """Returns the elements before and after a value in its clause."""
    start, end = place, place + 1
    while start and not _ends(found[start - 1]):
        start -= 1
    while end < len(found) and not _ends(found[end]):
        end += 1
    return found[start:place], found[place + 1 : end]


def _ends(one: Element) -> bool:
    return one.sort is Sort.BREAK or one.text in _CLAUSE_ENDS or (one.sort is Sort.SYMBOL and one.text == "-")


def is_about_something_else(found: Sequence[Element], one: Element, question: Question) -> str:
    """Returns why the clause of a value does not fit the question, or ""."""
    if not question.known:
        return ""
    before, after = _clause(found, found.index(one))
    clause = [*before, *after]
    words = _words(clause)
    if len(words) > _MOST_WORDS:
        return "The clause of the value is too long."
    is_formula = any(part.text in _COMPUTES or part.sort is Sort.OPERATION for part in clause)
    is_multiple = one.value is not None and one.value.measure == "times"
    if not is_formula and not is_multiple and _is_another_ratio(words, question):
        return "The value is one part of the ratio, or another ratio."
    if question.counts:  # names of what is counted may follow: `3 (Alpha, Beta, Gamma)`
        after = after[: next((at for at, part in enumerate(after) if part.text == ":"), len(after))]
        words = _words([*before, *after])
    computes = _RATIO_OF.search(" ".join(words)) is not None or any(
        part.text in _COMPUTES or part.sort is Sort.OPERATION for part in clause
    )
    if computes and not question.divides:
        computed = sum(part.sort is Sort.VALUE for part in clause) > 1
        return "The formula is of something else." if not computed and is_foreign(words, question.words) else ""
    if _words(after[:1]) and after[0].text in _FURTHER - set(question.words) and not ASKS_CHANGE.search(question.text):
        return "The value is a change, but the question does not ask for a change."
    if _ASKS_RATE_OF_CHANGE.search(question.text):
        if [part.text for part in after[:1]] in (["of"], ["share"]):
            return "The value is a share, but the question asks for a change."
        if before and before[-1].text == "to" and any(CHANGE.fullmatch(word) for word in words):
            return "The value is a level, but the question asks for a change."
    if "margin" in question.words:  # `18.4% of revenue`
        words = [word for word in words if word not in ("revenue", "revenues", "sales")]
    own = [word for word in " ".join(words).replace("on average", "").split() if word not in question.numbers]
    if unaccounted(own, question.words) or any(word in _AGGREGATES and word not in question.words for word in own):
        return "A word next to the value is not related to the question."
    counts_quarters = question.counts and "quarters" in question.words
    if not counts_quarters and names_another_source(" ".join(_words(_sentence_after(found, one))), question.text):
        return "The value belongs to another company or segment."
    if not question.counts and _remark_is_other(found, one, question):
        return "A remark next to the value is about another quantity."
    if question.left_out and _is_left_out(own, question):
        return "The value is a quantity that the question excludes."
    share = _SHARE_OF.search(question.text)
    if share and _is_share_of_another(before, after, share[1]):
        return "The value is a change, or a share of something else."
    if (
        before
        and before[-1].text in ("up", "down")
        and not _MAKES & set(_words(before))
        and not ASKS_CHANGE.search(question.text)
    ):
        return "The value is a change, but the question does not ask for a change."
    levels = any(part.text == "to" for part in before[-2:])
    if not levels and not ASKS_CHANGE.search(question.text) and any(CHANGE.fullmatch(word) for word in words):
        return "The value is a change, but the question does not ask for a change."
    if _is_level(before, after, one, question) and not any(ASKS_CHANGE.fullmatch(word) for word in _words(after)):
        return "The value is a level, but the question asks for a change."
    return ""


def _is_left_out(words: Sequence[str], question: Question) -> bool:
    """Returns whether the words name an excluded quantity, `37 closures`, without stating that it is excluded."""
    if _LEAVES_OUT & set(words):
        return False
    asked = [word for word in question.words if word not in question.left_out]
    named = [word for word in words if not is_common(word)]
    return bool(unaccounted(named, asked)) and not is_foreign(named, tuple(question.left_out))


_LEAVES_OUT = word_set("net excluding exclusive less after before without except apart deducting ignoring")
_SHARE_OF = re.compile(
    r"\b(?:percent|percentage|%|portion|proportion|share) of "
    r"(?!(?:the |its )?(?:[a-z]+ )?(?:growth|increase|decrease|change|decline|rise|drop)\b)([^?]{3,120})"
)


def _is_share_of_another(before: Sequence[Element], after: Sequence[Element], whole: str) -> bool:
    """Returns whether a value is a change, `grew 6.5%`, or a share of another total, `6.5% of deferred revenue`."""
    words = [word for word in _words(before) if word != "by"]
    if words and CHANGE.fullmatch(words[-1]) and words[-1] not in ("increase", "decrease", "change"):
        return True
    said = _words(after)
    if said[:1] != ["of"]:
        return False
    end = next((at for at, word in enumerate(said) if at and word in _PHRASE_ENDS), len(said))
    return bool(unaccounted(said[1:end], whole.split()))


_PHRASE_ENDS = word_set("in for at during was were is are came comes from which as and with on to by of")


def _is_another_ratio(words: Sequence[str], question: Question) -> bool:
    """Returns whether the words name only one operand of the ratio, or a quantity that is neither."""
    if question.divides is None:
        return False
    if question.quantities and quantities(" ".join(words)) - question.quantities:
        return True
    side_words = [word for side in question.divides for word in side]
    if (
        "&" in "".join(side_words)
        or _RATIOS & set(words)
        or not all(question.divides)
        or any(word.isdigit() for word in question.divides[0])
    ):
        return False
    said = operands(" ".join(words))
    top, bottom = (bool(said & side) for side in question.divides)
    return top != bottom


_RATIOS = word_set("ratio multiple leverage factor x times")


def _sentence_after(found: Sequence[Element], one: Element) -> Sequence[Element]:
    start = found.index(one) + 1
    end = next((at for at in range(start, len(found)) if found[at].text in (".", ";")), len(found))
    return found[start:end]


def _remark_is_other(found: Sequence[Element], one: Element, question: Question) -> bool:
    """Returns whether a short remark directly after a value, `(Defense)`, is unrelated to the question."""
    place = found.index(one) + 1
    if place >= len(found) or found[place].text not in ("(", ",", "—"):
        return False
    end = place + 1
    while end < len(found) and not _ends(found[end]):
        end += 1
    remark = found[place + 1 : end]
    words = _words(remark)
    if (
        any(part.sort is not Sort.WORD for part in remark)
        or not 0 < len(words) < _LONGER
        or _SOURCES & {part for word in words for part in word.split()}
    ):
        return False
    return is_foreign(words, question.words) and len(unaccounted(words, question.words)) == len(words)


_LONGER = 4
_SOURCES = word_set(
    "rounded unaudited audited approximately source note table computed calculated derived based per see from using as "
    "10-k 10-q 8-k page pages consolidated reported because since which this that i.e. e.g. statement usd nominal "
    "annualized"
)


_AGGREGATES = frozenset(("average", "median", "cumulative"))
_MAKES = word_set("make makes made making take takes took add adds")


def _is_level(before: Sequence[Element], after: Sequence[Element], one: Element, question: Question) -> bool:
    """Returns whether a value is a level, `gross profit was 57`, although the question asks for a change."""
    words = [word for word in _words(before) if word not in ("negative", "minus", "about")]
    if not _AMOUNT_OF_CHANGE.search(question.text) or not words or one.value is None:
        return False
    verb = words[-1] in _LEVEL_VERBS or (one.value.signed and "level" in words)
    named_year = len({part.text for part in (*before, *after) if part.sort is Sort.YEAR}) == 1
    of_loss = bool(_LOSS_OF.search(" ".join(words))) and not any(
        "loss" in part for part in re.split(r"[.?]", question.text) if "negative" not in part
    )
    if not (verb or of_loss or (named_year and one.value.signed)):
        return False
    subject = [word for word in words if word not in _FILLERS and not is_common(word)]
    said = any(ASKS_CHANGE.fullmatch(word) for word in words) and not of_loss
    return bool(subject or "level" in words) and not said


_LEVEL_VERBS = frozenset(("is", "was", "were", "are"))
_LOSS_OF = re.compile(r"\b(?:operating|net|pre-?tax) loss(?:es)? (?:of|was|is|were)\b")
_AMOUNT_OF_CHANGE = re.compile(
    r"\bby how much\b|\bby how many\b|\bhow much (?:higher|lower|more|less)\b|\b(?:increase|decrease|change|"
    r"difference) in\b"
)
_ASKS_RATE_OF_CHANGE = re.compile(
    r"\bby how much\b|\b(?:percent|percentage) (?:of (?:the )?)?(?:change|increase|decrease|growth|decline)\b"
    r"|\bgrowth rate\b|\bcagr\b"
    r"|\b(?:increase|decrease|change) in (?!.* as a )"
)
_FILLERS = word_set("so and but it this that which company's")


def _another_time(found: Sequence[Element], one: Element, question: Question) -> str:
    """Returns why a value is of a time that the question does not ask for, or ""."""
    words = " ".join(element.text for element in found)
    if refused_words.ANOTHER_TIME.search(words):
        return "The value is of another time."
    around = [(found[at - 1].text, found[at].text) for at in range(1, len(found)) if found[at].sort is Sort.YEAR]
    if any(_AROUND_YEAR.fullmatch(word) and f"{word} {year}" not in question.text for word, year in around):
        return "The value is of another time."
    if any(_opens_otherwise(word, year, question.text) for word, year in around):
        return "The value is of another time."
    working = {at for at, element in enumerate(found) if element.sort is Sort.OPERATION}
    years = {
        element.text
        for at, element in enumerate(found)
        if element.sort is Sort.YEAR and element is not one and not working & {at - 1, at + 1}
    }
    first = min(map(int, question.years), default=0)
    if ASKS_CHANGE.search(question.text) and len(question.years) == 1:
        compared = {year for word, year in around if word in _COMPARED and year == str(first - 1)}
        years = years - compared  # `up 3.6% versus 2018`
    if years and question.years and not years & question.years and not _counts_years(question):
        return "The value is of another year."
    if years and years < question.years and not working and _OF_ALL.search(question.text):
        return "The value is of one of the years."
    known = {str(first - 1)} if ASKS_CHANGE.search(question.text) and len(question.years) == 1 else set()
    known |= years if _counts_years(question) else set()
    if question.years and years - question.years - known and _is_of_years(found, one, question.years | known):
        return "The value is of other years as well."
    if _EVERY_YEAR.search(words) and not _YEARLY.search(question.text):
        return "The value is a value per year."
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


def another_span(words: str, question: Question) -> str:
    """Returns why the period of a value is not that of the question, or "".

    Args:
        words: The answer in lower case.
        question: The question.
    """
    asked = {_horizon(match) for match in _HORIZON.finditer(question.text)}
    said = {_horizon(match) for match in _HORIZON.finditer(words)}
    if asked and (said - asked or (_THEREAFTER.search(words) and not _THEREAFTER.search(question.text))):
        return "The value is due in another period."
    spans = {(match[1], match[2]) for match in _FROM_TO.finditer(words)}
    if spans & {(match[2], match[1]) for match in _FROM_TO.finditer(question.text)}:
        return "The years are in the wrong order."
    if any(_asks_from_to(question.text, match[1], match[2]) for match in _THAN_YEAR.finditer(words)):
        return "The years are in the wrong order."
    if (
        len(question.years) > 1
        and not _counts_years(question)
        and any(
            not {match[1], match[2]} <= question.years for match in _YEARS_TO.finditer(words) if match[1] < match[2]
        )
    ):
        return "The value is of other years."
    if _A_YEAR.search(question.text) and not _A_YEAR.search(words) and _IN_TOTAL.search(words):
        return "The value is of all years together."
    return ""


def _counts_years(question: Question) -> bool:
    """Returns whether the question asks in how many years something was true; an answer may then list these years."""
    return question.asks_how_many and "years" in question.words


def _horizon(match: re.Match[str]) -> tuple[bool, str]:
    """Returns whether a period is after a time (True) or within it, and the time; 12 months become 1 year."""
    count, unit = match[2], match[3].rstrip("s")
    count = {"a": "1", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "twelve": "12"}.get(count, count)
    return match[1] not in _WITHIN, "1 year" if (count, unit) == ("12", "month") else f"{count} {unit}"


_FROM_TO = re.compile(r"\bfrom (?:fy ?|fiscal )?((?:19|20)[0-9]{2}) to (?:fy ?|fiscal )?((?:19|20)[0-9]{2})\b")


def _asks_from_to(text: str, first: str, last: str) -> bool:
    return any((match[1], match[2]) == (first, last) for match in _FROM_TO.finditer(text))


_THAN_YEAR = re.compile(
    r"\b((?:19|20)[0-9]{2})\b(?:(?!(?:19|20)[0-9]{2})[^.;\n]|\.[0-9]){1,60}?"
    r"\b(?:higher|more|greater|larger|lower|less|smaller) than "
    r"(?:in |that of |for )?(?:fy ?|fiscal )?((?:19|20)[0-9]{2})\b"
)
_YEARS_TO = re.compile(
    r"(?<![0-9.,])((?:19|20)[0-9]{2})(?: ?- ?| to | through |/)(?:fy ?)?((?:19|20)[0-9]{2})(?![0-9%]|[.,][0-9])"
)
_WITHIN = frozenset(("within", "less than", "under", "up to", "over the next", "in the next", "the next"))
_HORIZON = re.compile(
    r"\b(within|less than|under|up to|over the next|in the next|the next|after|beyond|more than|over|later than)"
    r"(?: the next| more than)? (a|one|two|three|four|five|twelve|[0-9]{1,2}) (years?|months?)\b"
)
_THEREAFTER = re.compile(r"\bthereafter\b|\blong[- ]term\b|\blater\b")
_A_YEAR = re.compile(
    r"\b(?:compound|compounded|cagr|annual|annuali[sz]ed|annually|p\.?a\.?)\b|\b(?:per|a|each) (?:year|annum)\b"
)
_IN_TOTAL = re.compile(
    r"\b(?:in (?:total|all|aggregate)|total growth|cumulative(?:ly)?|altogether|simple|arithmetic|"
    r"overall(?! growth rate)|(?:whole|entire|full) period)\b"
)


def _is_of_years(found: Sequence[Element], one: Element, known: Collection[str]) -> bool:
    """Returns whether the clause of a value names a year that is not in `known`."""
    before, after = _clause(found, found.index(one))
    return any(part.sort is Sort.YEAR and part.text not in known for part in (*before, *after))


_EVERY_YEAR = re.compile(r"\b(?:per|a|each|every) year\b|\bannually\b")
_YEARLY = re.compile(r"annual|turnover|times|how often|year|rate|average|cagr|yield|interest|growth|grow|grew")
OVER_YEARS = re.compile(
    r"\b(?:over|across|for) (?:the )?(?:past |last )?(?:two|three|four|five|six|seven|eight|nine|ten|[0-9]{1,2})[ -]"
    r"years?\b(?! (?:average|cagr))|\bin each (?:year|of)\b"
)


def _opens_otherwise(word: str, year: str, question: str) -> bool:
    """Returns whether a year has another preposition than in the question: `in 2025` instead of `after 2025`."""
    asked = re.search(rf"\b(after|before|since|until|by|through|beyond) (?:the end of )?{year}\b", question)
    return asked is not None and word in _OPENERS and word != asked[1]


_COMPARED = word_set("with versus vs vs. from over than against to")
_OPENERS = word_set("in by before after since until through beyond")
_OF_ALL = re.compile(
    r"\b(?:average|combined|cumulative|sum|total)\b(?!.*\b(?:chang|increas|decreas|growth|from))"
    r".*(?: and | through |[0-9]-[0-9])"
)
_AROUND_YEAR = re.compile(r"before|after|until|since|prior|pre")


def _another_quantity(found: Sequence[Element], one: Element, question: Question) -> str:
    """Returns why the label of a value names a quantity that the question does not ask for, or ""."""
    if not question.known:
        return ""
    place = found.index(one)
    start = place
    while start and found[start - 1].sort in _LABEL_SORTS and found[start - 1].text not in _ENDS:
        start -= 1
    end = place + 1
    while end < len(found) and found[end].sort in _LABEL_SORTS and found[end].text not in _ENDS:
        end += 1
    if end - start > 2 * _MOST_WORDS:
        return "The label of the value is too long."
    before, after = _words(found[start:place]), _words(found[place + 1 : end])
    label = " ".join(before)
    if (each := _EACH.match(" ".join(after))) and each[0] not in question.text:
        return "The value is one of several."
    if not ASKS_CHANGE.search(question.text) and not _DIFFERENCES.isdisjoint(before):
        return "The value is a change, but the question does not ask for a change."
    if after and after[0] in _OTHER_MEASURES and after[0] not in question.words:
        return "The value is of another measure."
    if contradicts(f"{label} | {' '.join(after)}", question.text):
        return "The value is labelled as another one."
    value = one.value
    is_share = value is not None and value.number.unit.kind is Kind.PERCENT and after[:1] == ["of"]
    if is_share and not question.asks_ratio and _is_other(quantities(" ".join(after)), question):
        return "The value is a share of something else."
    is_formula = "/" in {element.text for element in found[start:place]} or bool(_FORMULA.search(label))
    is_of = after[:1] == ["of"] and not question.asks_ratio and not is_share
    if is_of and _is_other(quantities(" ".join(after[1:3])), question):
        return "The value is of another quantity."
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


_DIFFERENCES = word_set("change difference variance")
_OTHER_MEASURES = word_set("margin margins yield yields return returns")


def _has_other_object(words: Sequence[str], question: Question) -> bool:
    """Returns whether a phrase such as `on term loans` or `to intangibles` is unrelated to the question."""
    for at, word in enumerate(words[:-1]):
        if word in _OBJECT_OF:
            nouns = [one for one in words[at + 1 : at + 4] if one not in ("the", "its", "their", "a", "an")][:1]
            if nouns and is_foreign(nouns, question.words):
                return True
    return False


_OBJECT_OF = frozenset(("to", "on", "over", "above"))


def _has_unknown_noun(one: Element, after: Sequence[Element], question: Question) -> bool:
    """Returns whether the noun directly after the value is neither a unit nor in the question: `7.42 BTC`."""
    if not after or after[0].sort is not Sort.WORD or (one.value and one.value.measure):
        return False
    return is_foreign([after[0].text], question.words)


_FORMULA = re.compile(
    r"\b(?:divided|ratio of|percentage of|percent of|share of|proportion of|as a|relative to|over|per)\b"
)
_EACH = re.compile(
    r"(?:each|a (?:month|quarter|week|day)|apiece|quarterly|monthly|weekly|daily|per (?:quarter|month|week|day))\b"
)


def _words(found: Sequence[Element]) -> list[str]:
    return [element.text for element in found if element.sort is Sort.WORD]


def _is_other(named: frozenset[str], question: Question) -> bool:
    return bool(named and question.quantities and not named & question.quantities)


_ENDS = frozenset((".", ";", ",", "(", "—", "-"))
_LABEL_SORTS = (Sort.WORD, Sort.SYMBOL, Sort.YEAR)
_SAYS = frozenset((":", "=", "→", "is", "was", "are", "were"))
