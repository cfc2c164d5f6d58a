"""Is a submitted answer right? Pure, standard library only; reads text that an opponent may have written.

Profiles:
    openenv: The rules of OpenEnv's finqa_env, faults included, for results that compare with published ones.
    strict: The same task without the faults and without the ways to be paid for several answers; for training.

Any answer is graded in time linear in its length, and none of more than 4096 bytes is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from finqa_cli.grading.openenv import grade as grade_like_openenv
from finqa_cli.grading.strict import grade as grade_strictly
from finqa_cli.grading.verdict import MAX_ANSWER_BYTES, Verdict, answer_text

GRADERS: Mapping[str, Callable[[str, str], Verdict]] = {"openenv": grade_like_openenv, "strict": grade_strictly}
PROFILES = tuple(GRADERS)

__all__ = ["GRADERS", "MAX_ANSWER_BYTES", "PROFILES", "Verdict", "grade"]


def grade(answer: object, truth: str, profile: str = "openenv") -> Verdict:
    """Compares an answer with the truth.

    Args:
        answer: A JSON value; anything but text and finite numbers is worth 0.
        truth: The truth as the data set writes it.
        profile: One of `PROFILES`.

    Raises:
        ValueError: There is no such profile. No answer and no truth raises anything.
    """
    if profile not in GRADERS:
        raise ValueError(f"There is no grader {profile!r}; there are: {', '.join(PROFILES)}.")
    text = answer_text(answer)
    return text if isinstance(text, Verdict) else GRADERS[profile](text, truth)
