"""Rewrites words around a number in simpler ones: losses, cash used, abbreviations of returns, labelled sums.

Each rewriting takes a text in lower case, and returns it unchanged if it does not fit the question.
"""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.number_words import word_set
from finqa_cli.grading.strict_2.question import Question

_LOSS_OF = re.compile(
    r"\b(loss(?:es)?) attributable to((?: [a-z']{2,20}){1,5}?)(?= (?:of|was|is|were|totall?ed|amounted to|came to) |: )"
)
_CASH_USED = re.compile(
    r"\b(?:net )?cash used(?: (?:in|for|by))?(?: (?:the )?(investing|operating|financing)(?: activities)?)?"
    r"(?= (?:was|of|is|totall?ed|amounted to|came to) [$]?[0-9]|: ?[$]?[0-9]| ?[$][0-9])"
)
_ASKS_USED = re.compile(r"\(used (?:in|for|by)\)|\bor used\b|\(?used\)? (?:in|for|by)")
_ACTIVITIES = re.compile(r"\b(investing|operating|financing)\b")
_RETURNS = {
    "roe": re.compile(r"\breturn on (?:average )?(?:[a-z']+ ){0,2}equity\b"),
    "roae": re.compile(r"\breturn on average (?:[a-z']+ ){0,2}equity\b"),
    "roa": re.compile(r"\breturn on (?:average )?(?:total )?assets\b"),
    "roaa": re.compile(r"\breturn on average (?:total )?assets\b"),
    "roic": re.compile(r"\breturn on (?:average )?invested capital\b"),
}
_RETURN = re.compile(rf"(?<![\w/])(?:{'|'.join(_RETURNS)})(?![\w/])")
_DASH = re.compile(
    r"(?<=[0-9a-z%)]) - (?=(?:this|that|which|it) (?:is|was|are|were) |(?:as )?(?:reported|disclosed|stated|calculated|"
    r"computed|based) )"
)
_COST = re.compile(
    r"(?<=shares)(?: of (?:its )?common stock)?,? (?:at|for) an? (?:total |aggregate )?(?:cost|price) of "
    r"[$][0-9][0-9.,]{0,20}(?: million| billion)?(?![0-9])"
)
"""The price of shares, in an answer about their number."""
_SUM = re.compile(
    r"(?<![\w.,$-])[$]?[0-9][0-9.,]{0,12}(?: [a-z]{2,20}){1,2}"
    r"(?: [-+] [$]?[0-9][0-9.,]{0,12}(?: [a-z]{2,20}){1,2}){1,6}"
    r"(?= ?=)"
)
_LABELS = re.compile(r" [a-z]{2,20}")
_SCALES = word_set("million billion thousand percent hundred trillion")


def in_plain_words(text: str, question: Question) -> str:
    """Rewrites `loss attributable to X of`, cash used as `outflow`, the dash before an explanation, labelled sums."""
    text = _DASH.sub(" — ", _SUM.sub(_without_labels, text))
    if question.counts and "shares" in question.measures:
        text = _COST.sub("", text)
    text = _LOSS_OF.sub(lambda loss: _loss(loss, question), text)
    if _ASKS_USED.search(question.text) and not question.is_about_decline:
        text = _CASH_USED.sub(lambda used: _outflow(used, question), text)
    return _RETURN.sub(lambda short: _return(short[0], question), text)


def _without_labels(found: re.Match[str]) -> str:
    """Returns `1,251 opening + 62 opened - 29 closed` without its words; unchanged if one of them is a scale."""
    words = {label.strip() for label in _LABELS.findall(found[0])}
    return found[0] if words & _SCALES else _LABELS.sub("", found[0])


def _loss(found: re.Match[str], question: Question) -> str:
    """Returns `loss` for `loss attributable to common shareholders`, if the question names these."""
    return found[1] if set(found[2].split()) <= set(question.words) else found[0]


def _outflow(found: re.Match[str], question: Question) -> str:
    asked = _ACTIVITIES.findall(question.text)
    return "outflow" if found[1] is None or found[1] in asked else found[0]


def _return(short: str, question: Question) -> str:
    asked = _RETURNS[short].search(question.text)
    return asked[0] if asked else short
