"""The verdict of a grader, and the check of which answers are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_ANSWER_BYTES = 4096
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Verdict:
    """1.0 or 0.0, and the reason in one line that does not reveal the truth.

    Attributes:
        reward: 1.0 or 0.0.
        explanation: The reason.
        readable: Whether the answer has a form that the profile reads. It does not depend on the truth's value.
        again: Why another form should be asked for, in one line; empty if not. An answer that is not readable has a
            reason, and a readable one may have one too. It does not depend on the truth's value.
    """

    reward: float
    explanation: str
    readable: bool = True
    again: str = ""


def answer_text(answer: object) -> str | Verdict:
    """Returns a submitted JSON value as text, or the verdict that refuses it.

    Numbers are accepted because models often send them; `true` is refused, because it is neither a number nor a text.
    """
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return Verdict(0.0, f"The answer must be text or a number, not {type(answer).__name__[:40]}.")
    if isinstance(answer, float):
        if not math.isfinite(answer):
            return Verdict(0.0, "The answer is not a finite number.")
        return repr(answer)
    too_long = Verdict(0.0, f"The answer is longer than {MAX_ANSWER_BYTES} bytes.")
    if isinstance(answer, int):
        # Compared before it is printed: Python refuses to print integers of more than 4300 digits.
        return too_long if abs(answer) >= 10**MAX_ANSWER_BYTES else str(answer)
    return too_long if len(answer.encode("utf-8", "replace")) > MAX_ANSWER_BYTES else answer


def shown(answer: str) -> str:
    """Returns an answer in quotes on one line, truncated, with unprintable characters escaped."""
    line = " ".join(answer[:200].split())
    return repr(line if len(line) <= _LONGEST_SHOWN else line[: _LONGEST_SHOWN - 3] + "...")
