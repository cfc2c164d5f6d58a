"""The profile `strict`: every answer has one meaning, and only its meaning counts. Pure.

| type                     | 1 when                                                                                 |
| ------------------------ | -------------------------------------------------------------------------------------- |
| `pure_forecast`          | exp(-5 relative error) of the one number that the answer is                            |
| `event_detection`        | it begins with the word yes or no, is the right one, and hedges nowhere                |
| `multi_signal_reasoning` | as above; or the one day (0.7 and 0.3 for one and two days off); or the one strategy   |
| `macro_fundamental`      | yes or no, or the one direction; counting the words of reasons says nothing about them |
| `news_sentiment`         | yes or no, or the one sentiment                                                        |
| `analysis`               | the direction that its first sentence names; where the truth names none, F1 of words   |
| any other                | the same text, apart from case and punctuation                                         |
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping

from finqa_plugins.environments.forecast.words import (
    DAY,
    DIRECTIONS,
    HEDGES,
    NEGATIONS,
    SENTIMENTS,
    STRATEGIES,
    classes,
    closeness,
    first_number,
    refuses,
    words,
)

_DAYS_OFF = {0: 1.0, 1: 0.7, 2: 0.3}
_ONE_NUMBER = re.compile(r"([+-]?)[ ]?\$?((?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20})(?:\.\d{1,20})?|\.\d{1,20})[ ]?%?\.?")
_MAX_STATEMENT = 2_000
"""Characters of an answer that is no analysis."""


def score(answer: str, truth: str, question_type: str) -> float:
    """From 0 to 1, for any text; arguments as for `versatile.score`."""
    if refuses(answer) or (len(answer) > _MAX_STATEMENT and question_type != "analysis"):
        return 0.0
    return _SCORES.get(question_type, _same)(answer, truth)


def only_number(text: str) -> float | None:
    """The number that the text is, with sign, currency or percent sign, and nothing else beside it."""
    found = _ONE_NUMBER.fullmatch(text.strip().replace("\N{MINUS SIGN}", "-"))
    if found is None:
        return None
    value = float(found[1] + found[2].replace(",", ""))
    return value if math.isfinite(value) else None


def yes_or_no(text: str) -> str | None:
    """The whole word that the text begins with, unless the other one or a hedge stands anywhere in it."""
    found = words(text)
    if not found or found[0] not in ("yes", "no"):
        return None
    other = "no" if found[0] == "yes" else "yes"
    return None if other in found or any(hedge in found for hedge in HEDGES) else found[0]


def _pure_forecast(answer: str, truth: str) -> float:
    value, wanted = only_number(answer), first_number(truth)
    return 0.0 if value is None or wanted is None else closeness(value, wanted)


def _event_detection(answer: str, truth: str) -> float:
    wanted = yes_or_no(truth)
    return _same(answer, truth) if wanted is None else float(yes_or_no(answer) == wanted)


def _multi_signal(answer: str, truth: str) -> float:
    if yes_or_no(truth):
        return _event_detection(answer, truth)
    if day := DAY.search(truth):
        stated = DAY.findall(answer)
        alone = len(stated) == 1 and len(re.findall(r"\d+", answer)) == 1
        return _DAYS_OFF.get(abs(int(stated[0]) - int(day[1])), 0.0) if alone else 0.0
    return _one_class(answer, truth, STRATEGIES)


def _macro_fundamental(answer: str, truth: str) -> float:
    return _event_detection(answer, truth) if yes_or_no(truth) else _one_class(answer, truth, DIRECTIONS)


def _news_sentiment(answer: str, truth: str) -> float:
    return _event_detection(answer, truth) if yes_or_no(truth) else _one_class(answer, truth, SENTIMENTS)


def _analysis(answer: str, truth: str) -> float:
    if wanted := _meant(_first_sentence(truth), DIRECTIONS):
        return float(_meant(_first_sentence(answer), DIRECTIONS) == wanted)
    return _f1(words(answer), words(truth))


def _same(answer: str, truth: str) -> float:
    return float(words(answer) == words(truth) and (bool(words(truth)) or answer.strip() == truth.strip()))


def _one_class(answer: str, truth: str, of: Mapping[str, tuple[str, ...]]) -> float:
    """The answer names just the class of the truth; of a truth that names none or several, the same text."""
    wanted = _meant(truth, of)
    return float(_meant(answer, of) == wanted) if wanted else _same(answer, truth)


def _meant(text: str, of: Mapping[str, tuple[str, ...]]) -> str:
    """The one class that the text names; nothing for several, and where a hedge or a negation leaves it open."""
    found = classes(text, of)
    return found.pop() if len(found) == 1 and not {*HEDGES, *NEGATIONS} & set(words(text)) else ""


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0][:_MAX_STATEMENT]


def _f1(answer: list[str], truth: list[str]) -> float:
    """Of the words with their counts, as SQuAD has it (arXiv 1606.05250): every word too many costs precision."""
    common = (Counter(answer) & Counter(truth)).total()
    return 2.0 * common / (len(answer) + len(truth)) if common else 0.0


_SCORES: Mapping[str, Callable[[str, str], float]] = {
    "pure_forecast": _pure_forecast,
    "event_detection": _event_detection,
    "multi_signal_reasoning": _multi_signal,
    "macro_fundamental": _macro_fundamental,
    "news_sentiment": _news_sentiment,
    "analysis": _analysis,
}
