"""Reads answers that are lists of names: the names alone, each with an amount, or one sentence about all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import permutations

from finqa_cli.grading.strict_2 import refused_words
from finqa_cli.grading.strict_2.names.names_read import (
    GROWTH,
    core,
    goes_otherwise,
    has_digit,
    is_name,
    name_tokens,
    without_label,
)
from finqa_cli.grading.strict_2.number_words import DOWN, UP
from finqa_cli.grading.strict_2.question import Question


def listed_names(truth: str, question: Question) -> tuple[str, ...]:
    """Returns the names of a truth that is a list of names, `["Films", "Paper"]` or `Films, Paper`; else ()."""
    text = truth.strip()
    if text.startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = _COMMA.split(text[1:-1]) if text.endswith("]") else []
        is_list = isinstance(names, list) and all(isinstance(one, str) and not has_digit(one) for one in names)
        return tuple(names) if is_list and 1 < len(names) <= _MOST_NAMES else ()
    if has_digit(text) or not _SEVERAL.search(question.text):
        return ()
    names = _AND.split(text)
    return tuple(names) if 1 < len(names) <= _MOST_NAMES else ()


def are_names(text: str, names: Sequence[str], question: Question) -> bool:
    """Returns whether the text decides on these names and no others: alone, each with an amount, or in one sentence.

    They may be in any order, unless the question asks for one.
    """
    lowered = text.lower()
    if refused_words.undecided(lowered, question.words) or refused_words.REJECTED.search(lowered):
        return False
    if "loss" in question.words and _GAIN.search(lowered) and "loss" not in lowered:
        return False
    if goes_otherwise(_WORDS.findall(lowered), question) or _goes_against(lowered, question):
        return False
    lines = _without_amounts(text, question)
    lines = _EVERY_AMOUNT.sub("", _BOTH.sub("", lines) if len(names) == 2 else lines)
    text = " ".join(lines.split("\n")).replace(", and ", " and ")
    wanted = [core(name_tokens(name)) for name in names]
    listed = _AND.split(without_label(lines, [], question))
    given = [core(name_tokens(part)) for part in listed if name_tokens(part)]
    is_ordered = bool(_ORDERED.search(question.text))
    if given == wanted or (not is_ordered and sorted(given) == sorted(wanted)):
        return True
    orders = permutations(names) if len(names) < 4 and not is_ordered else [tuple(names)]
    joined = [f"{', '.join(order[:-1])} and {order[-1]}" for order in orders]
    texts = (text, _NOUN.sub("", _ARTICLE.sub("", text)))
    return any(is_name(one, name, question) for one in texts for name in joined if name_tokens(name)[0] in one.lower())


def _goes_against(text: str, question: Question) -> bool:
    """Returns whether an amount in brackets has a plus and the question asks for a decrease, or vice versa."""
    asked = set(question.words)
    is_down, is_up = bool(asked & DOWN), bool(asked & (UP | GROWTH))
    return is_down != is_up and ("(+" if is_down else "(-") in text


def _without_amounts(text: str, question: Question) -> str:
    """Returns the names of lines such as `Retail: 18%` or `Retail - 18%`, unless a sign contradicts the question."""
    parts = [_WITH_AMOUNT.fullmatch(part.strip()) for part in _PARTS.split(text.strip())]
    named = [part for part in parts if part is not None]
    if len(named) < max(2, len(parts)):
        return text
    against = any(_goes_against(f"({part[2]}", question) for part in named)
    return text if against else "\n".join(part[1] for part in named)


_PARTS = re.compile(r"[;\n]|, (?=[A-Z])")
_WITH_AMOUNT = re.compile(
    r"([A-Z][A-Za-z&'. /-]{0,60}?)(?: ?[:=]| [-—]) ([-+]?)[$€£]?[0-9][0-9.,]{0,20}(?: ?%|x|B|M| million| billion)?\.?"
)
_BOTH = re.compile(r"\A\W{0,4}[Bb]oth (?:the )?(?=[A-Z])| (?:both|each)(?= [a-z])")
_WORDS = re.compile(r"[a-z]+")
_COMMA = re.compile(r"[,;] ?")
_NOUN = re.compile(r" (?:segment|division|region|business|unit|category|market|country)(?=,? and |, )")
_ARTICLE = re.compile(r"(?<=and )the |(?<=, )the ")

_GAIN = re.compile(r"\b(?:income|profit)s?\b")
_MOST_NAMES = 8
_AND = re.compile(r",? and |[,;/] |\n|,? & ")
_SEVERAL = re.compile(
    r"\b(?:which|what) (?:are|were|two|three|four|five|(?:[a-z]+ ){0,2}(?!(?:was|is|has|does)\b)[a-z]+[a-rt-z]s\b)"
    r"|\b(?:list|name) (?:the|all|two)\b"
)
_ORDERED = re.compile(
    r"\border\b|\brank|\brespectively\b|\b(?:de|a)scending\b|\bfirst\b|\bto (?:smallest|largest|lowest|highest)\b"
)
_EVERY_AMOUNT = re.compile(
    r"[ ]\((?:loss of |up |down )?[-+]?[$€£]?[0-9][0-9.,]{0,20}(?:%|x|B|M| million| billion| thousand)?\)"
)
