"""Ratios the other way round, `equity was 0.64 times debt` for debt to equity, and levels where a change is asked."""

from __future__ import annotations

import re

from finqa_cli.grading.strict_2.question import Question
from finqa_cli.grading.strict_2.wordlists import word_set

_RATIO_OF = re.compile(
    r"\bratio (?:of|between) ([^?]{1,120}?) (?:to|and) ([^?]{1,120}?)(?= (?:in|at|for|as of|during)\b|\?|\Z)"
)
_GROWS = re.compile(r"\bfrom (?:fy ?|fiscal )?((?:19|20)[0-9]{2}) to (?:fy ?|fiscal )?((?:19|20)[0-9]{2})\b")
_TIMES = re.compile(r"(?:[0-9]|[a-z]) ?(?:times|x) ")
_TO = re.compile(r"(?<![a-z])([a-z]{1,30})(?: to | over |-to-|/)([a-z]{1,30})(?=[ ]?(?::|=|is|was|ratio))")
_LEVEL = re.compile(r"% of (?:[a-z'-]+ ){0,4}levels?\b|% of (?:[a-z'-]+ ){0,3}(?:size|base)\b")
_WORD = re.compile(r"[a-z]+|[0-9]{4}")
_COMMON = word_set("the a an of its total company s to in at and average net year")


def is_inverted(text: str, question: Question) -> bool:
    """Whether a text in lower case gives the ratio of what the question divides by."""
    ratio, grows = _RATIO_OF.search(question.text), _GROWS.search(question.text)
    if ratio:
        top, bottom = _contents(ratio[1]), _contents(ratio[2])
    elif grows:
        top, bottom = {grows[2]}, {grows[1]}
    else:
        return False
    top, bottom = top - bottom, bottom - top
    if any(match[1] in bottom and match[2] in top for match in _TO.finditer(text)):
        return True
    times = _TIMES.search(text)
    if times is None:
        return False
    before, after = _contents(text[: times.start()]), _contents(text[times.end() :])
    before, after = before - after, after - before
    straight = before & top or after & bottom
    return not straight and bool(before & bottom or after & top)


def is_level(text: str, question: Question) -> bool:
    """Whether a text in lower case gives what is left, `fell to 9.5% of its level`, where a change is asked for."""
    return question.known and bool(_LEVEL.search(text)) and "level" not in question.text


def _contents(text: str) -> set[str]:
    return {word for word in _WORD.findall(text) if word not in _COMMON}
