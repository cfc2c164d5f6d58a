"""The profile `versatile`: the published scores, with their holes. Pure.

Source: the reward function `reward_versatile` of the StockR1 experiments, whose word lists are in no public file. Known
holes: lengths and key words are paid for whatever they say, one word of the truth anywhere earns 0.5, "notable" and
"not sure" are read as no, and a percentage counts before an earlier plain number. `strict` closes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from finqa_plugins.forecast.words import (
    DAY,
    DIRECTIONS,
    DRIVERS,
    FINANCE,
    OPPORTUNITIES,
    RISKS,
    SENTIMENTS,
    STRATEGIES,
    VOLATILITY,
    classes,
    closeness,
    first_number,
    refuses,
    words,
)

_DAYS_OFF = {0: 1.0, 1: 0.7, 2: 0.3}


def score(answer: str, truth: str, question_type: str) -> float:
    """From 0 to 1, for any text.

    Args:
        answer: What stands in the tags, or without tags the whole reply.
        truth: The right answer.
        question_type: One that is unknown is scored by equal text, or a common word.
    """
    return _SCORES.get(question_type, _fallback)(answer, truth)


def yes_or_no(text: str) -> str | None:
    """What the text begins with: "not sure" is a no."""
    start = text.strip().lower()
    return "yes" if start.startswith("yes") else "no" if start.startswith("no") else None


def _pure_forecast(answer: str, truth: str) -> float:
    value, wanted = first_number(answer), first_number(truth)
    if refuses(answer) or value is None or wanted is None:
        return 0.0
    return closeness(value, wanted)


def _event_detection(answer: str, truth: str) -> float:
    wanted = yes_or_no(truth)
    return float(wanted is not None and yes_or_no(answer) == wanted)


def _multi_signal(answer: str, truth: str) -> float:
    if wanted := yes_or_no(truth):
        return float(yes_or_no(answer) == wanted)
    if day := DAY.search(truth):
        stated = DAY.search(answer)
        return _DAYS_OFF.get(abs(int(stated[1]) - int(day[1])), 0.0) if stated else 0.0
    strategies = classes(truth, STRATEGIES)
    return 1.0 if strategies & classes(answer, STRATEGIES) else _any_word(answer, truth)


def _macro_fundamental(answer: str, truth: str) -> float:
    lower = answer.lower()
    wanted = yes_or_no(truth)
    if wanted is not None:
        right = yes_or_no(answer) == wanted
    else:
        right = any(word in truth.lower() and word in lower for word in ("up", "down"))
    length, terms = len(lower.split()), _count(lower, FINANCE)
    reasons = 0.3 if length >= 20 and terms >= 2 else 0.15 if length >= 10 and terms >= 1 else 0.0
    return 0.7 * right + reasons


def _news_sentiment(answer: str, truth: str) -> float:
    wanted = yes_or_no(truth)
    if wanted is not None and yes_or_no(answer) == wanted:
        return 1.0
    if wanted == "yes" and _count(answer.lower(), VOLATILITY):
        return 0.5
    return 0.5 if classes(truth, SENTIMENTS) & classes(answer, SENTIMENTS) else 0.0


def _analysis(answer: str, truth: str) -> float:
    lower = answer.lower()
    named = [phrase for phrases in DIRECTIONS.values() for phrase in phrases]
    parts = [_count(lower, lists) > 0 for lists in (named, DRIVERS, RISKS, OPPORTUNITIES)]
    return (sum(parts) + (len(lower.split()) >= 200)) / 5


def _fallback(answer: str, truth: str) -> float:
    return 1.0 if answer.strip().lower() == truth.strip().lower() else _any_word(answer, truth)


def _any_word(answer: str, truth: str) -> float:
    lower = answer.lower()
    return 0.5 if any(word in lower for word in words(truth)) else 0.0


def _count(lower: str, phrases: tuple[str, ...] | list[str]) -> int:
    return sum(phrase in lower for phrase in phrases)


_SCORES: Mapping[str, Callable[[str, str], float]] = {
    "pure_forecast": _pure_forecast,
    "event_detection": _event_detection,
    "multi_signal_reasoning": _multi_signal,
    "macro_fundamental": _macro_fundamental,
    "news_sentiment": _news_sentiment,
    "analysis": _analysis,
}
