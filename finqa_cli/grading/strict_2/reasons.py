"""Checks whether the reason beside a yes or no agrees with it: `yes, it fell` contradicts the question `did it rise`.

Each comparison (`above 1`, `exceeded equity`) and each movement (`rose`, `improved`) of question and reason becomes a
sign. `not` inverts the sign, and so does a comparison with exchanged sides.
"""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.number_words import NUMERAL, word_set
from finqa_cli.grading.strict_2.question import Question


def _words(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{words})(?![\w-])")


_ABOVE = _words(r"exceed\w*|above|over|greater|higher|more|larger|bigger|surpass\w*|topped|outpaced?|outperformed")
_BELOW = _words(r"below|under|less|lower|fewer|smaller|short of|trail\w*|beneath")
_ROSE = _words(
    r"increas\w*|ris(?:e|es|en|ing)|rose|gr(?:ow|ew|own|ows|owing)|growth|improv\w*|expand\w*|gain(?:ed|s)?|"
    r"climb\w*|jumped|up"
)
_FELL = _words(
    r"decreas\w*|declin\w*|fell|falls?|fallen|falling|drop\w*|shrank|shrunk|worsen\w*|deteriorat\w*|contract(?:ed|ing)"
    r"|reduced|slipped|down"
)
_NEGATION = re.compile(
    r"(?<![\w-])(?:not|never|no|neither|nor|\w+n't|cannot|fail(?:s|ed)? to)(?![\w-])(?:\W+\w+){0,3}\W*\Z"
)
_CLAUSES = re.compile(
    r"[.;:!\n](?=\s|\Z)|,\s|—|(?<=\s)-(?=\s)|\((?=[a-z])|\b(?:and|while|whereas|because|since|but|as)\b"
)
_WORD = re.compile(r"[a-z]+(?:'s)?|(?:19|20)[0-9]{2}")
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\$?([0-9][0-9,]*(?:\.[0-9]+)?)(?![0-9]|[.,][0-9])")
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_PLAIN = word_set(
    "the a an of in at on for to was were is are did do does company its it than that total end year fiscal more "
    "less and "
    "compared with level value amount ratio be been have has had by their they"
)
_MOST_CLAUSES = 40


def supports(reason: str, question: Question) -> int:
    """Returns 1 if a reason affirms the question, -1 if it denies it, 0 if neither is clear.

    Args:
        reason: The text beside the decision, in lower case.
        question: The question.
    """
    compares, asked_at = _first(question.text, _ABOVE, _BELOW)
    moves, _ = _first(question.text, _ROSE, _FELL)
    asked = compares or moves
    if not asked:
        return 0
    signs = set()
    for clause in _CLAUSES.split(reason.replace("vs.", "vs"))[:_MOST_CLAUSES]:
        sign, at = _first(clause, _ABOVE, _BELOW)
        if sign and compares and _is_swapped(clause, at, question.text, asked_at):
            sign = -sign
        if not sign and not compares:
            sign, at = _first(clause, _ROSE, _FELL)
        if sign:
            signs.add(sign * asked * (-1 if _NEGATION.search(clause[: at.start]) else 1))
    measured = _by_threshold(reason, question.text, compares, asked_at)
    signs |= {measured} if measured else set()
    return signs.pop() if len(signs) == 1 else 0


def asks_direction(question: Question) -> bool:
    """Returns whether the question is about a comparison or a movement."""
    words = (_ABOVE, _BELOW, _ROSE, _FELL)
    return any(one.search(question.text) for one in words)


def movement_is_asked(question: Question) -> bool:
    """Returns whether the question is about a movement."""
    return any(one.search(question.text) for one in (_ROSE, _FELL))


def compares_otherwise(text: str, question: Question) -> bool:
    """Returns whether a sentence compares the sides of a question in reverse: `diluted exceeded basic by 0.06`."""
    if not _WITH_SIDES.search(text):
        return False
    comparison = _IN_BRACKETS.sub(" ", question.text)
    verbs = [*_EITHER_WAY.finditer(comparison)]
    if len(verbs) > 1 and (said := _EITHER_WAY.search(text)):  # `exceed or trail`: only the sides are fixed
        return _is_swapped(text, slice(*said.span()), comparison, slice(verbs[0].start(), verbs[-1].end()))
    asked, asked_at = _first(comparison, _ABOVE, _BELOW)
    sign, at = _first(text, _ABOVE, _BELOW)
    swapped = bool(sign and asked) and _is_swapped(text, at, comparison, asked_at)
    return bool(sign and asked) and (sign != asked) != swapped


_IN_BRACKETS = re.compile(r"\([^()]*\)")
_WITH_SIDES = re.compile(r"\bthan\b|exceed|surpass|outpac|outperform|trail|underperform|\blag")
_EITHER_WAY = re.compile(r"\b(?:exceed|surpass|outpac|outperform|trail|underperform|lag)\w*")


def movement(reason: str, question: Question) -> int:
    """Returns 1 if `from 500 to 540` has the direction that the question asks about, -1 for the opposite, else 0."""
    asked = _first(question.text, _ROSE, _FELL)[0] or _compares_years(question.text)
    if not asked:
        return 0
    match = _FROM_TO.search(reason)
    if match and match[2] == match[4]:
        first, last = match[1], match[3]
    else:
        amounts = dict(_by_year(reason))
        years = sorted(amounts)
        if len(years) != 2 or len(_numbers(reason)) != 2:
            return -asked if _BY_LESS.search(reason) else 0
        first, last = (amounts[year] for year in years)
    change = float(last.replace(",", "")[:30]) - float(first.replace(",", "")[:30])
    return 0 if not change else asked * (1 if change > 0 else -1)


def _compares_years(text: str) -> int:
    """Returns 1 if a question asks about a rise, as `in 2020 higher than in 2019`, -1 for a fall, else 0."""
    found = _YEARS_COMPARED.search(text)
    if found is None or found[1] == found[3]:
        return 0
    return (1 if _ABOVE.fullmatch(found[2]) else -1) * (1 if found[1] > found[3] else -1)


_YEARS_COMPARED = re.compile(
    r"\b((?:19|20)[0-9]{2})\b[a-z ,'-]{0,60}\b(higher|greater|more|larger|lower|less|smaller|fewer) than "
    r"[a-z '-]{0,60}\b((?:19|20)[0-9]{2})\b"
)
_BY_LESS = re.compile(r"(?:\b(?:by|change of|change|delta)[:=]?|\() ?-[$]?[0-9]")


def is_comparison(word: str) -> bool:
    """Returns whether a word compares: `below`, `exceeded`."""
    return bool(_ABOVE.fullmatch(word) or _BELOW.fullmatch(word))


def _by_year(reason: str) -> list[tuple[str, str]]:
    """Returns years with their amounts: `36% in 2018 and 38% in 2019`, `2018: 36%, 2019: 38%`."""
    before = [(match[2], match[1]) for match in _AMOUNT_IN_YEAR.finditer(reason)]
    return before or [(match[1], match[2]) for match in _YEAR_WITH_AMOUNT.finditer(reason)]


_AMOUNT = rf"[$]?({NUMERAL})(?![0-9.,]*[0-9])(?: ?%| million| billion|x)?"
_AMOUNT_IN_YEAR = re.compile(rf"(?<![\w.,-]){_AMOUNT} (?:in|for|\() ?((?:19|20)[0-9]{{2}})\b")
_YEAR_WITH_AMOUNT = re.compile(
    r"\b((?:19|20)[0-9]{2})(?:'s)?(?: ?[:=(]| was| of| it was|,? (?:gross|operating|net) margin was)? {0,2}"
    rf"{_AMOUNT}(?!\w)"
)
_FROM_TO = re.compile(
    rf"(?:\bfrom |(?<![\w.,-]))(?!(?:19|20)[0-9]{{2}} )[$]?({NUMERAL})( ?%| million| billion|)"
    rf"(?: in (?:19|20)[0-9]{{2}})? (?:to|→) [$]?({NUMERAL})( ?%| million| billion|)(?![\w%])"
)


def is_false(reason: str) -> bool:
    """Returns whether a reason compares two numbers wrongly: `3,200 exceeds 3,900`."""
    for match in _COMPARED.finditer(reason):
        first, second = (float(match[place].replace(",", "")[:30]) for place in (1, 3))
        if (match[2] in _GREATER and first < second) or (match[2] not in _GREATER and first > second):
            return True
    return False


_COMPARED = re.compile(
    r"(?<![\w.,-])[$]?([0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)%? ?"
    r"(>|<|exceeds|is greater than|is higher than|is more than|is above|is less than|is lower than|is below) ?"
    r"[$]?([0-9][0-9,]{0,20}(?:\.[0-9]{1,9})?)%?(?![\w,]|\.[0-9]| (?:million|billion|thousand))"
)
_GREATER = frozenset((">", "exceeds", "is greater than", "is higher than", "is more than", "is above"))


def _first(text: str, up: re.Pattern[str], down: re.Pattern[str]) -> tuple[int, slice]:
    """Returns the direction of a text, 1 or -1, and the place of its first word; 0 with no direction or both."""
    rises, falls = up.search(text), down.search(text)
    found = rises or falls
    if found is None or (rises and falls):
        return 0, slice(0, 0)
    return 1 if rises else -1, slice(*found.span())


def _contents(text: str) -> set[str]:
    return {word.removesuffix("'s").rstrip("s") for word in _WORD.findall(text) if word not in _PLAIN}


def _is_swapped(clause: str, at: slice, question: str, asked_at: slice) -> bool:
    """Returns whether the sides of the comparison are exchanged in the clause, compared to the question."""
    clause = _COMPARED_WITH.sub(" than ", clause)
    near, than, far = question[asked_at.stop :].partition(" than ")
    left = _contents(f"{question[: asked_at.start]} {near if than else ''}")
    right = _contents(far if than else near)
    left, right = left - right, right - left
    near, than, far = clause[at.stop :].partition(" than ")
    before = _contents(f"{clause[: at.start]} {near if than else ''}")
    after = _contents(far if than else near)
    if than and after & (left | right) and not (after & left and after & right):
        return bool(after & left)
    if not than and _ADJECTIVE.fullmatch(clause[at]):  # what follows is when or where: `it was lower in 2022`
        if after & (left | right):
            return not after & left
        return len(before & left) < len(before & right)
    straight = len(before & left) + len((after & right) - _MONTHS)
    return straight < len(before & right) + len((after & left) - _MONTHS)


_COMPARED_WITH = re.compile(r",? (?:when )?(?:compared (?:with|to)|versus|vs\.?|relative to) ")
_ADJECTIVE = re.compile(r"greater|higher|more|larger|bigger|less|lower|fewer|smaller")
_MONTHS = word_set("january february march april may june july august september october november december")


def _by_threshold(reason: str, question: str, compares: int, asked_at: slice) -> int:
    """Returns what the only number of a reason shows: 1 for `it was 2.4`, if the question is `below 3`; 0: unclear."""
    if not compares:
        return 0
    limits = _numbers(question[asked_at.stop :])
    given = set(_numbers(reason)) - set(limits)
    is_share = {bool(_PERCENT.search(text)) for text in (question[asked_at.stop :], reason)}
    shares = {match[1] for match in _SHARE.finditer(reason)} - set(limits)
    if len(given) > 1 and is_share == {True} and len(shares) == 1:  # `$648 million, or 12.0% of $5,400 million`
        given = shares
    if len(limits) != 1 or len(given) != 1 or "/" in reason or len(is_share) > 1:
        return 0
    limit, number = (float(one.replace(",", "")[:30]) for one in (limits[0], given.pop()))
    if not limit or not 0.02 < abs(number / limit) < 50:
        return 0
    return compares if number > limit else -compares


_SHARE = re.compile(r"(?<![\w.,])([0-9][0-9,]*(?:\.[0-9]+)?) ?(?:%|percent\b)")
_PERCENT = re.compile(r"%|\bpercent\b")


def _numbers(text: str) -> list[str]:
    """Returns the numbers of a text without years; the comma of `December 31, 2019` is not part of a number."""
    found = (match[1].rstrip(",") for match in _NUMBER.finditer(text))
    return [number for number in found if not _YEAR.fullmatch(number)]
