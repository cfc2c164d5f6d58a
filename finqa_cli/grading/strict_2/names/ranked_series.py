"""Checks a series of names with amounts against its conclusion: `X $842M, Y $611M. The highest is X`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finqa_cli.grading.strict_2.labels import contradicts, quantities, unaccounted
from finqa_cli.grading.strict_2.number_words import NUMERAL
from finqa_cli.grading.strict_2.question import Question

HIGH = re.compile(
    r"(?<![\w'-])(?:highest|largest|greatest|biggest|most|maximum|peaked|higher|larger|greater|bigger|more|"
    r"top)(?![\w'])"
)
LOW = re.compile(r"(?<![\w'-])(?:lowest|smallest|least|minimum|lower|smaller|less|fewer|fewest)(?![\w'])")
_SENTENCE = re.compile(r"(?:(?<=[.;])[ ]|\n)\s{0,8}")
_ITEMS = re.compile(r"(?:[,;\n] ?(?:and )?| and (?=[A-Z]))(?![0-9])")
_ITEM = re.compile(
    r"(?:(?P<head>[A-Za-z][^:\n]{2,80}): ?)?(?P<name>[A-Z][A-Za-z&'. /-]{0,40}?|(?:first|second|third|fourth) quarter)"
    r"(?: segment)?(?: ?[:=—]| -(?= )| had| was| at)? "
    rf"?(?P<open>\()?(?P<sign>-?)[$€£]?(?P<amount>{NUMERAL})(?P<unit> ?%| million| billion|M|B|x|)(?(open)\))[.;]?"
)
_MOST_CHARACTERS = 600
_SO = re.compile(r"\A(?:so|thus|therefore|hence),? ", re.IGNORECASE)
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_WORDS = re.compile(r"[a-z][a-z'&-]*")


def concluded(text: str, name: Sequence[str], question: Question) -> str:
    """Returns the last sentence of a text if the amounts of the series before it confirm it; else the text.

    Args:
        text: The text in its original case.
        name: The words of the name that is expected, in lower case.
        question: The question; it asks for the highest or for the lowest.
    """
    asks_low, asks_high = bool(LOW.search(question.text)), bool(HIGH.search(question.text))
    sentences = _SENTENCE.split(text.strip()) if len(text) <= _MOST_CHARACTERS else []
    if len(sentences) < 2 or asks_low == asks_high:
        return text
    last = sentences[-1]
    ranks = (LOW if asks_low else HIGH).search(last.lower())
    if not ranks or set(re.findall(r"[0-9]+", last)) - question.years:
        return text
    items = [_ITEM.fullmatch(item.strip()) for part in sentences[:-1] for item in _ITEMS.split(part.rstrip(".;"))]
    pairs = [item for item in items if item is not None]
    if not 2 <= len(items) == len(pairs) or any(item["head"] for item in pairs[1:]):
        return text
    if (head := pairs[0]["head"]) and not _is_asked(head.lower(), question):
        return text
    if len({(item["unit"], item["open"] is None) for item in pairs}) > 1:
        return text
    amounts = [float(f"{item['sign']}{item['amount'].replace(',', '')[:20]}") for item in pairs]
    own = [at for at, item in enumerate(pairs) if _words(item["name"]) == list(name)]
    names = {tuple(_words(item["name"])) for item in pairs}
    best = min(amounts) if asks_low else max(amounts)
    agrees = len(own) == 1 and len(names) == len(pairs) and amounts[own[0]] == best and amounts.count(best) == 1
    return _SO.sub("", last) if agrees else text


def _words(name: str) -> list[str]:
    return ["and" if word == "&" else word for word in re.findall(r"[a-z0-9'.]+|&", name.lower().removeprefix("the "))]


def _is_asked(head: str, question: Question) -> bool:
    """Returns whether the heading of a series names the measure and the year of the question."""
    years, named = set(_YEAR.findall(head)), quantities(head)
    if (years and question.years and not years <= question.years) or contradicts(head, question.text):
        return False
    if named and question.quantities and not named & question.quantities:
        return False
    words = _WORDS.findall(head)
    of_loss = any(word.startswith("loss") for word in words)
    return not unaccounted(words, question.words) and of_loss == ("loss" in question.text)
