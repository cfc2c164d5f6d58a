"""Numbers as both profiles read them, and the words that `strict` looks for: ours, in lower case."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

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

# The look behind keeps a long run of digits from being tried at each of them.
NUMBER = r"[+-]?(?<![\d.])(?:\d++(?:\.\d++)?|\.\d++)"
DAY = re.compile(r"\bday\s{0,3}(\d{1,4})\b", re.IGNORECASE)


def closeness(value: float, truth: float) -> float:
    """exp(-5 |value - truth| / |truth|); a truth of about 0 is only met by such. From 0 to 1 for finite numbers."""
    if abs(truth) < 1e-6:
        return float(abs(value) < 1e-6)
    return math.exp(-5.0 * (abs(value - truth) / abs(truth)))


def same_sign(value: float, truth: float) -> bool:
    """Both rise, both fall, or both stay."""
    return (value > 0) - (value < 0) == (truth > 0) - (truth < 0)


def first_number(text: str, *, form: str = NUMBER) -> float | None:
    """The first percentage, else the first number, wherever it stands; commas do not count.

    Args:
        text: Any.
        form: Of a number, as a regular expression.
    """
    text = text.replace(",", "")
    found = re.search(rf"({form})\s*+%", text) or re.search(rf"({form})", text)
    value = float(found[1]) if found else math.inf
    return value if math.isfinite(value) else None


def refuses(text: str) -> bool:
    """It declines to answer."""
    lower = _plain(text)
    return any(phrase in lower for phrase in REFUSALS)


def words(text: str) -> list[str]:
    """In lower case, without punctuation."""
    return re.findall(r"[^\W_]+(?:['-][^\W_]+)*", _plain(text))


def classes(text: str, of: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Whose phrases stand in the text as whole words."""
    spaced = f" {' '.join(words(text)).replace('-', ' ')} "
    return {name for name, phrases in of.items() if any(f" {phrase} " in spaced for phrase in phrases)}


def _plain(text: str) -> str:
    """In lower case, with plain apostrophes."""
    return text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
