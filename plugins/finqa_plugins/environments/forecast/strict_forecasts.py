"""The profile `strict`: an answer must have one meaning, and only its meaning is scored. Pure.

| type                     | the score is 1 if the answer, or part of it, is this; other scores are named           |
| ------------------------ | -------------------------------------------------------------------------------------- |
| `pure_forecast`          | exp(-5 relative error) of the one number that the answer is                            |
| `event_detection`        | the right one of yes and no as the first word, without the other and without a hedge   |
| `multi_signal_reasoning` | as above; or the one day (0.7 and 0.3 for one and two days off); or the one strategy   |
| `macro_fundamental`      | yes or no, or the one direction; reasons are not scored                                |
| `news_sentiment`         | yes or no, or the one sentiment                                                        |
| `analysis`               | the direction in the first sentence; if the truth names none, the score is F1 of words |
| any other                | the same text, apart from case and punctuation                                         |
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping

REFUSALS = (
    "cannot predict",
    "can't predict",
    "unable to predict",
    "impossible to predict",
    "not possible to predict",
    "cannot forecast",
    "can't forecast",
    "unable to forecast",
    "cannot determine",
    "unable to determine",
    "cannot provide",
    "can't provide",
    "unable to provide",
    "not able to provide",
    "insufficient data",
    "insufficient information",
    "not enough information",
    "as an ai",
)
DIRECTIONS: Mapping[str, tuple[str, ...]] = {
    "up": ("up", "upward", "rise", "rises", "rising", "increase", "increases", "higher", "gain", "gains", "bullish"),
    "down": ("down", "downward", "fall", "falls", "falling", "decrease", "decreases", "lower", "decline", "declines",
             "drop", "drops", "bearish"),
    "flat": ("flat", "sideways", "unchanged", "stable"),
}  # fmt: skip
SENTIMENTS: Mapping[str, tuple[str, ...]] = {
    "positive": ("positive", "bullish", "optimistic", "favorable", "favourable"),
    "negative": ("negative", "bearish", "pessimistic", "unfavorable", "unfavourable"),
    "neutral": ("neutral", "mixed", "balanced"),
}
STRATEGIES: Mapping[str, tuple[str, ...]] = {
    "scale in": ("scale in", "scaling in", "buy", "accumulate", "add to the position", "increase exposure"),
    "scale out": ("scale out", "scaling out", "sell", "take profits", "reduce exposure", "trim"),
    "stay flat": ("stay flat", "staying flat", "hold", "wait", "do nothing", "stay out"),
}
HEDGES = ("maybe", "perhaps", "possibly", "unsure", "uncertain", "either", "unclear", "depends")
NEGATIONS = ("not", "no", "never", "neither", "nor", "cannot", "can't", "won't", "isn't", "doesn't", "don't", "without")

# The lookbehind prevents a search from starting at every digit of a long number.
NUMBER = r"[+-]?(?<![\d.])(?:\d++(?:\.\d++)?|\.\d++)"
DAY = re.compile(r"\bday\s{0,3}(\d{1,4})\b", re.IGNORECASE)

_DAYS_OFF = {0: 1.0, 1: 0.7, 2: 0.3}
_ONE_NUMBER = re.compile(r"([+-]?)[ ]?\$?((?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20})(?:\.\d{1,20})?|\.\d{1,20})[ ]?%?\.?")
_MAX_STATEMENT = 2_000
"""Longest answer in characters, except for analyses."""


def score(answer: str, truth: str, question_type: str) -> float:
    """Score an answer from 0 to 1, for any text; arguments as for `versatile.score`."""
    if refuses(answer) or (len(answer) > _MAX_STATEMENT and question_type != "analysis"):
        return 0.0
    return _SCORES.get(question_type, _same)(answer, truth)


def only_number(text: str) -> float | None:
    """Return the number if the text is nothing but a number, with sign, dollar or percent sign; else None."""
    found = _ONE_NUMBER.fullmatch(text.strip().replace("\N{MINUS SIGN}", "-"))
    if found is None:
        return None
    value = float(found[1] + found[2].replace(",", ""))
    return value if math.isfinite(value) else None


def yes_or_no(text: str) -> str | None:
    """Return yes or no if the text begins with that word and has neither the other word nor a hedge; else None."""
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
    """Return 1 if the answer names only the class of the truth, or equals a truth without one class; else 0."""
    wanted = _meant(truth, of)
    return float(_meant(answer, of) == wanted) if wanted else _same(answer, truth)


def _meant(text: str, of: Mapping[str, tuple[str, ...]]) -> str:
    """Return the class that the text names; "" if it names none or several, or has a hedge or a negation."""
    found = classes(text, of)
    return found.pop() if len(found) == 1 and not {*HEDGES, *NEGATIONS} & set(words(text)) else ""


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0][:_MAX_STATEMENT]


def _f1(answer: list[str], truth: list[str]) -> float:
    """Return F1 of the words with their counts, as in SQuAD (arXiv 1606.05250): each surplus word costs precision."""
    common = (Counter(answer) & Counter(truth)).total()
    return 2.0 * common / (len(answer) + len(truth)) if common else 0.0


def closeness(value: float, truth: float) -> float:
    """Return exp(-5 |value - truth| / |truth|), in [0, 1]; for |truth| < 1e-6, 1 if |value| < 1e-6 and else 0."""
    if abs(truth) < 1e-6:
        return float(abs(value) < 1e-6)
    return math.exp(-5.0 * (abs(value - truth) / abs(truth)))


def same_sign(value: float, truth: float) -> bool:
    """Whether both numbers are positive, both negative, or both 0."""
    return (value > 0) - (value < 0) == (truth > 0) - (truth < 0)


def first_number(text: str, *, form: str = NUMBER) -> float | None:
    """Return the first percentage, else the first number, anywhere in a text, without commas; None if there is none.

    Args:
        text: Any text.
        form: Form of a number, as a regular expression.
    """
    text = text.replace(",", "")
    found = re.search(rf"({form})\s*+%", text) or re.search(rf"({form})", text)
    value = float(found[1]) if found else math.inf
    return value if math.isfinite(value) else None


def refuses(text: str) -> bool:
    """Whether the text declines to answer."""
    lower = _lower(text)
    return any(phrase in lower for phrase in REFUSALS)


def words(text: str) -> list[str]:
    """Return the words of a text, in lower case and without punctuation."""
    return re.findall(r"[^\W_]+(?:['-][^\W_]+)*", _lower(text))


def classes(text: str, of: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the classes whose phrases occur in the text as whole words."""
    spaced = f" {' '.join(words(text)).replace('-', ' ')} "
    return {name for name, phrases in of.items() if any(f" {phrase} " in spaced for phrase in phrases)}


def _lower(text: str) -> str:
    """Return the text in lower case, with plain apostrophes."""
    return text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


_SCORES: Mapping[str, Callable[[str, str], float]] = {
    "pure_forecast": _pure_forecast,
    "event_detection": _event_detection,
    "multi_signal_reasoning": _multi_signal,
    "macro_fundamental": _macro_fundamental,
    "news_sentiment": _news_sentiment,
    "analysis": _analysis,
}
