"""The measures of TAT-QA: exact match, numeracy-focused F1 and the scale, as its evaluation script computes them.

Source: arXiv 2105.07624, section 4.2, and the rules of `tatqa_metric.py` in its repository. Answer and truth each
become one text: parts are sorted, numbers are multiplied by their scale and written with four decimals, and other parts
get the scale as a word. Case, punctuation and articles are ignored. Exact match compares the texts, F1 their sets of
words.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

Scale = str
SCALES: tuple[Scale, ...] = ("", "thousand", "million", "billion", "percent")
_FACTORS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "percent": 0.01}
_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)|[+-]?\.\d+")
_IN_PARENTHESES = re.compile(r"\([\d.\s]+\)")
_WITH_PERCENT = re.compile(r"[\d.\s]%")  # one character before is enough; a longer match would take quadratic time
_WITH_WORD = re.compile(r"[\d.]\s?[a-zA-Z]+")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_AROUND_NUMBERS = str.maketrans("", "", "'\"\\$€£¥%(),[]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MOST_DIGITS = 200  # Python converts no integer of more than 4300 digits, and no float reaches 309
_EXACT_TYPES = ("arithmetic", "count")

Answer = str | int | float
"""One part of an answer; spans have several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TatQAScore:
    """The measures of one answer.

    Attributes:
        exact: Exact match, 0 or 1.
        f1: Numeracy-focused F1, rounded to two decimals; equal to `exact` for the kinds arithmetic and count.
        scale: Whether the scale is right, 0 or 1; 0 without an answer.
    """

    exact: float
    f1: float
    scale: float


def score(
    answer: Answer | Sequence[Answer] | None,
    scale: Scale,
    *,
    truth: Answer | Sequence[Answer],
    kind: str,
    truth_scale: Scale,
) -> TatQAScore:
    """Compare an answer with the truth.

    Args:
        answer: The answer; None, an empty text, 0 or an empty list counts as no answer.
        scale: The scale of the answer.
        truth: The truth; several parts for the kinds `span` and `multi-span`.
        kind: `span`, `multi-span`, `arithmetic` or `count`.
        truth_scale: The scale of the truth.
    """
    truths = _parts(truth) if kind in ("span", "multi-span") else [_plain(truth, kind)]
    if not answer or not truths:
        return TatQAScore(exact=0.0, f1=0.0, scale=0.0)
    parts = _parts(answer)
    said = [_joined(parts, scale)]
    if len(parts) == 1 and not scale and "%" not in str(parts[0]) and (value := _value(str(parts[0]))) is not None:
        said.append(f"{value:.4f}")  # 0.2342 where 23.42 percent is right
    gold = _normalized(_joined(truths, truth_scale))
    exact, f1 = max((float(text == gold), _f1(text, gold)) for text in map(_normalized, said))
    return TatQAScore(exact=exact, f1=exact if kind in _EXACT_TYPES else f1, scale=float(scale == truth_scale))


def _parts(answer: Answer | Sequence[Answer]) -> list[Answer]:
    return list(answer) if isinstance(answer, list | tuple) else [answer]  # type: ignore[list-item]


def _plain(truth: Answer | Sequence[Answer], kind: str) -> str:
    return str(int(truth)) if kind == "count" else str(truth)  # type: ignore[arg-type]


def _joined(parts: Sequence[Answer], scale: Scale) -> str:
    numeric = all(isinstance(part, int | float) for part in parts)
    return " ".join(_written(str(part), scale) for part in sorted(parts, key=None if numeric else str))


def _written(part: str, scale: Scale) -> str:
    value = _value(part)
    if value is None:
        return f"{part} {scale}" if scale else part
    return f"{value:.4f}" if "%" in part else f"{round(value, 2) * _factor(scale):.4f}"


def _factor(text: str) -> float:
    return next((factor for word, factor in _FACTORS.items() if word in text.lower()), 1)


def _is_number(text: str) -> bool:
    words = text.translate(_AROUND_NUMBERS).split()
    try:
        return bool(words) and not math.isnan(float(words[0])) and (len(words) < 2 or _factor(words[1]) != 1)
    except ValueError:
        return False


def _value(text: str) -> float | None:
    """Return the number in a text, with its sign, percent sign and scale word applied; None if it is not a number."""
    found = _NUMBER.search(text.translate(_AROUND_NUMBERS)) if _is_number(text) else None
    if found is None or found[1] is None:
        return None
    word = _WITH_WORD.search(text)
    sign = -1 if _IN_PARENTHESES.search(text.strip()) else 1
    percent = 0.01 if _WITH_PERCENT.search(text.strip()) else 1
    number = float(found[1]) if "." in found[1] or len(found[1]) > _MOST_DIGITS else int(found[1])
    return round(number * (_factor(word[0]) if word else 1) * sign * percent, 4)


def _normalized(text: str) -> str:
    return " ".join(word for token in text.split(" ") if (word := _normalized_word(token.lower())))


def _normalized_word(word: str) -> str:
    plain = str(_value(word)) if _is_number(word) else word.translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def _f1(text: str, gold: str) -> float:
    words, expected = set(text.split()), set(gold.split())
    common = len(words & expected)
    precision = common / len(words) if words else 1.0
    recall = common / len(expected) if expected else 1.0
    return round(2 * precision * recall / (precision + recall), 2) if precision + recall else 0.0
