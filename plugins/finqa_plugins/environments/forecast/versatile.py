"""The profile `versatile`: the published scores, including their errors. Pure.

Source: `launchers/fin_text_qa/reward_versatile.py` of asFeng/finqa at f0df4f0 (its header: Apache-2.0); it is
reimplemented here with its phrases, because they determine the scores. Known errors: length and key words score for any
meaning, one word of the truth anywhere scores 0.5, "notable", "not sure" and "I know" are read as no, a percentage is
used before an earlier plain number, and ".5" is read as 5. `strict` does not have them.

One difference: a number too large for a float counts as no number, where the source would compute with infinity.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence

from finqa_plugins.environments.forecast.strict_forecasts import closeness, first_number

END = "<|endoftext|>"
"""Token that is removed from a reply, wherever it occurs."""

_REFUSALS = (
    *(f"{start} {verb}" for start in ("cannot", "can't", "unable to") for verb in ("predict", "determine", "provide")),
    *("cannot forecast", "can't forecast", "unable to forecast", "not able to predict"),
    *(f"{start} to {verb}" for start in ("impossible", "no way") for verb in ("predict", "determine")),
    *(f"{start} be {verb}" for start in ("cannot", "can't") for verb in ("predicted", "determined")),
    *(f"{start} {what}" for start in ("insufficient", "not enough") for what in ("information", "data")),
    *(f"{start} more {what}" for start in ("need", "require") for what in ("information", "data")),
    *("without more information", "without additional data", "information provided does not", "does not include"),
    *("no indication", "no prediction", "unpredictable", "decline to predict", "refuse to predict"),
)
_DOUBTS = ("i don't know", "i do not know", "it's unclear", "it is unclear", "uncertain", "not sure", "hard to say",
           "difficult to say")  # fmt: skip
"""Phrases that are refusals if the text has no number."""

_STRATEGIES = {
    "scale in": ("scalein", "buymore", "increaseposition"),
    "scale out": ("scaleout", "sell", "reduceposition", "decreaseposition"),
    "stay flat": ("stayflat", "hold", "maintain", "nochange", "neutral"),
}
"""In order of precedence, without spaces."""

_TERMS = ("cpi", "volatility", "cash flow", "sales", "baseline", "investing", "fundamental", "macro", "inflation",
          "earnings", "revenue", "profit", "margin", "growth", "decline")  # fmt: skip
_POSITIVE = ("increase", "rise", "improve", "bullish", "positive", "recovery", "higher", "grow")
_NEGATIVE = ("decrease", "fall", "decline", "bearish", "negative", "lower", "drop")
_VOLATILE = ("volatility", "volatile", "fluctuation", "uncertainty")
_DIRECTIONS = ("bullish", "upward", "positive", "rise", "increase", "up", "higher", "bearish", "downward", "negative",
               "fall", "decrease", "down", "lower", "neutral", "sideways", "consolidate", "range", "flat")  # fmt: skip
_INDICATORS = ("revenue", "profit", "margin", "growth", "earnings", "pe ratio", "debt", "cash flow", "eps", "ebitda",
               "volume", "technical", "fundamental", "macro")  # fmt: skip
_RISKS = ("risk", "concern", "challenge", "threat", "weakness", "downside", "volatility", "uncertainty")
_CHANCES = ("opportunity", "potential", "upside", "strength", "advantage", "growth", "catalyst", "positive")

_DAYS_OFF = {0: 1.0, 1: 0.7, 2: 0.3}
_DAY = re.compile(r"day\s*+(\d{1,18})", re.IGNORECASE)
_NUMBER = r"-?(?<!\d)\d++\.?\d*+"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(answer: str, truth: str, question_type: str) -> float:
    """Score an answer from 0 to 1, for any text.

    Args:
        answer: The text between the tags, or without tags the whole reply.
        truth: The right answer.
        question_type: Type of the question; an unknown type is scored by equal text, or a common word.
    """
    return _SCORES.get(question_type, _fallback)(answer, truth)


def yes_or_no(text: str) -> str | None:
    """Return the word that the text begins with, else the only one of both that occurs in it, even inside a word."""
    plain = _normalized(text)
    for word in ("yes", "no"):
        if plain.startswith(word):
            return word
    found = [word for word in ("yes", "no") if word in plain]
    return found[0] if len(found) == 1 else None


def number(text: str) -> float | None:
    """Return the first percentage, else the first number; commas are ignored."""
    return first_number(text, form=_NUMBER)


def refuses(text: str) -> bool:
    """Whether the text declines to forecast."""
    lower = text.lower()
    return _names(lower, _REFUSALS) or (_names(lower, _DOUBTS) and number(text) is None)


def _pure_forecast(answer: str, truth: str) -> float:
    value, wanted = number(answer), number(truth)
    if refuses(answer) or value is None or wanted is None:
        return 0.0
    return closeness(value, wanted)


def _event_detection(answer: str, truth: str) -> float:
    wanted = yes_or_no(truth)
    return float(wanted is not None and yes_or_no(answer) == wanted)


def _multi_signal(answer: str, truth: str) -> float:
    stated, wanted = yes_or_no(answer), yes_or_no(truth)
    if stated and wanted:
        return float(stated == wanted)
    day, wanted_day = _DAY.search(answer), _DAY.search(truth)
    if day and wanted_day:
        return _DAYS_OFF.get(abs(int(day[1]) - int(wanted_day[1])), 0.0)
    if _normalized(answer) == _normalized(truth):
        return 1.0
    strategy, wanted_strategy = _strategy(answer), _strategy(truth)
    if strategy and wanted_strategy:
        return float(strategy == wanted_strategy)
    return _any_word(answer, truth)


def _macro_fundamental(answer: str, truth: str) -> float:
    wanted = yes_or_no(truth)
    if wanted is not None:
        right = yes_or_no(answer) == wanted
    else:
        direction = _normalized(truth)
        right = direction in ("up", "down") and direction in _normalized(answer)
    if not right:
        return 0.0
    length, terms = len(answer.split()), _count(answer.lower(), _TERMS)
    return 0.7 + (0.3 if length >= 20 and terms >= 2 else 0.15 if length >= 10 and terms >= 1 else 0.0)


def _news_sentiment(answer: str, truth: str) -> float:
    if _event_detection(answer, truth):
        return 1.0
    if _names(answer.lower(), _VOLATILE) and yes_or_no(truth) == "yes":
        return 0.5
    sentiment = _sentiment(truth)
    return 0.5 if sentiment and _sentiment(answer) == sentiment else 0.0


def _analysis(answer: str, truth: str) -> float:
    del truth  # the source ignores the truth
    lower = answer.lower()
    indicators, length = _count(lower, _INDICATORS), len(answer.split())
    twentieths = 4 * sum(_names(lower, phrases) for phrases in (_DIRECTIONS, _RISKS, _CHANCES))
    twentieths += 4 if indicators >= 3 else 2 if indicators == 2 else 0
    twentieths += 4 if length >= 200 else 2 if length >= 100 else 1 if length >= 50 else 0
    return twentieths / 20


def _fallback(answer: str, truth: str) -> float:
    return 1.0 if _normalized(answer) == _normalized(truth) else _any_word(answer, truth)


def _normalized(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation, articles and repeated spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _any_word(answer: str, truth: str) -> float:
    return 0.5 if _names(_normalized(answer), _normalized(truth).split()) else 0.0


def _strategy(text: str) -> str:
    """Return the first strategy in the order of `_STRATEGIES` that the text names; empty if it names none."""
    joined = _normalized(text).replace(" ", "")
    return next((name for name, phrases in _STRATEGIES.items() if _names(joined, phrases)), "")


def _sentiment(text: str) -> str:
    """Return the sentiment that the text names, negative before positive; empty if it names none."""
    lower = text.lower()
    return "negative" if _names(lower, _NEGATIVE) else "positive" if _names(lower, _POSITIVE) else ""


def _names(text: str, phrases: Sequence[str]) -> bool:
    return any(phrase in text for phrase in phrases)


def _count(text: str, phrases: Sequence[str]) -> int:
    return sum(phrase in text for phrase in phrases)


_SCORES: Mapping[str, Callable[[str, str], float]] = {
    "pure_forecast": _pure_forecast,
    "event_detection": _event_detection,
    "multi_signal_reasoning": _multi_signal,
    "macro_fundamental": _macro_fundamental,
    "news_sentiment": _news_sentiment,
    "analysis": _analysis,
}
