r"""Grades an answer by profile `openenv`: the rules of OpenEnv's finqa_env, in linear time.

Numbers match if they differ by at most 1 % of the truth and by at most 1.0. `%` divides by 100; an answer that does not
match is compared once more without that division. `\boxed{}` is unwrapped on both sides. A list in one boxed part is
compared value by value, by year if both sides have the same years, else by position; several boxed parts are compared
by position.
Source of the rules: OpenEnv `envs/finqa_env/server/rewards.py` (2026); nothing of its code is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from finqa_cli.grading.verdict import Verdict, shown

RELATIVE_TOLERANCE = 0.01
ABSOLUTE_TOLERANCE = 1.0
ZERO_TOLERANCE = 0.001

_BOX = "\\boxed{"
_TEXT = "\\text{"
_ARROW = re.compile(r"\\rightarrow|→|->|−>")  # noqa: RUF001  the minus sign is what some answers carry
_YEARS = re.compile(r"20\d{2}(?:\s{0,8}to\s{0,8}20\d{2})?")
_BETWEEN_ANSWERS = re.compile(r"[,;]\s*")
_BETWEEN_VALUES = re.compile(r"[,;]\s*|\\[;,]\s*")
_LATEX_SPACE = re.compile(r"\\[;, ]")


@dataclass(frozen=True, slots=True)
class _Value:
    number: float | None
    text: str


def grade(answer: str, truth: str) -> Verdict:
    """Compares an answer with the truth. Never raises."""
    boxed = _boxed_parts(truth)
    if len(boxed) > 1:
        return _grade_boxed(answer, boxed)
    expected = _value(truth)
    submitted = _value(answer)
    if _equal(submitted, expected) or _equal(_value(answer, percent=False), expected):
        return Verdict(1.0, f"{shown(answer)} matches.")
    if boxed and expected.number is None and (verdict := _grade_list(answer, boxed[0])) is not None:
        return verdict
    if expected.number is None:
        return Verdict(0.0, f"{shown(answer)} is not the expected text.")
    if submitted.number is None:
        return Verdict(0.0, f"{shown(answer)} is not a number.")
    return Verdict(0.0, f"{shown(answer)} is outside the tolerance (1 % and 1.0).")


def _grade_boxed(answer: str, boxed: Sequence[str]) -> Verdict:
    parts = _BETWEEN_ANSWERS.split(answer.strip())
    if len(parts) != len(boxed):
        return Verdict(0.0, f"{len(boxed)} values are expected, got {len(parts)}.")
    for place, (part, truth) in enumerate(zip(parts, boxed, strict=True), start=1):
        expected = _value(truth)
        plain = part.partition(":")[2].lstrip() if ":" in part else part
        if not (_equal(_value(plain), expected) or _equal(_value(part, percent=False), expected)):
            return Verdict(0.0, f"Value {place} of {len(boxed)} does not match.")
    return Verdict(1.0, f"All {len(boxed)} values match.")


def _grade_list(answer: str, boxed: str) -> Verdict | None:
    """Grades the list inside one boxed part; None when the two sides are not lists of the same length."""
    expected, submitted = _keyed_values(boxed), _keyed_values(answer)
    if len(expected) < 2 or len(expected) != len(submitted):
        return None
    truth_by_year, answer_by_year = _by_year(expected), _by_year(submitted)
    if truth_by_year and truth_by_year.keys() == answer_by_year.keys():
        pairs = [(answer_by_year[year], number) for year, number in truth_by_year.items()]
    else:
        pairs = [(given, number) for (_, given), (_, number) in zip(submitted, expected, strict=True)]
    wrong = sum(not _close_in_list(given, number) for given, number in pairs)
    if wrong:
        return Verdict(0.0, f"{wrong} of {len(pairs)} values do not match.")
    return Verdict(1.0, f"All {len(pairs)} values match.")


def _keyed_values(text: str) -> list[tuple[str, float]]:
    values = []
    for raw in _BETWEEN_VALUES.split(text):
        part = _LATEX_SPACE.sub(" ", raw).strip()
        years = _YEARS.search(_ARROW.sub(" to ", part))
        label, colon, rest = part.partition(":")
        number = _number(rest.lstrip().removeprefix("\\").lstrip() if colon else label)
        if number is not None:
            values.append((years.group() if years else "", number))
    return values


def _by_year(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    years = {year: number for year, number in values if year}
    return years if len(years) == len(values) else {}


def _equal(submitted: _Value, expected: _Value) -> bool:
    if submitted.number is None or expected.number is None:
        return submitted.number is expected.number and submitted.text == expected.text
    if expected.number == 0:
        return abs(submitted.number) < ZERO_TOLERANCE
    return _close(submitted.number, expected.number)


def _close_in_list(given: float, expected: float) -> bool:
    return given == 0 if expected == 0 else _close(given, expected)


def _close(given: float, expected: float) -> bool:
    difference = abs(given - expected)
    return difference <= ABSOLUTE_TOLERANCE and difference <= RELATIVE_TOLERANCE * abs(expected)


def _value(text: str, *, percent: bool = True) -> _Value:
    boxed = _boxed_parts(text)
    content = (boxed[0] if boxed else text).strip()
    return _Value(_number(content, percent=percent), content.lower())


def _boxed_parts(text: str) -> list[str]:
    r"""Returns the contents of every `\boxed{...}` up to the first `}`: like upstream, without nested braces."""
    found = []
    start = text.find(_BOX)
    while start >= 0:
        end = text.find("}", start + len(_BOX))
        if end < 0:
            break
        if content := text[start + len(_BOX) : end]:
            found.append(content.strip())
        start = text.find(_BOX, end)
    return found


def _without_text_commands(text: str) -> str:
    kept = []
    position = 0
    while (start := text.find(_TEXT, position)) >= 0 and (end := text.find("}", start)) >= 0:
        kept.append(text[position:start])
        position = end + 1
    return "".join([*kept, text[position:]])


def _number(text: str, *, percent: bool = True) -> float | None:
    text = _without_text_commands(text.strip()).replace("\\$", "").replace("$", "").strip()
    if "%" in text:
        number = _float(text.replace("\\%", "").replace("%", "").strip())
        return number / 100 if percent and number is not None else number
    if text.startswith("(") and text.endswith(")"):
        text = "-" + text[1:-1]
    if "/" in text:
        negative = text.startswith("-")
        return _fraction(text.removeprefix("-"), -1.0 if negative else 1.0)
    return _float(text)


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _fraction(text: str, sign: float) -> float | None:
    try:
        return sign * float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
