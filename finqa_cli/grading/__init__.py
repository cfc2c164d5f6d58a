"""Grades submitted answers. Pure and standard library only; an answer may be adversarial.

Profiles:
    openenv: The rules of OpenEnv's finqa_env, including its faults, for results that are comparable to published ones.
    strict-1: The same task without these faults, and without rewards for several answers; accepts few honest forms.
    strict-2: Like strict-1, but accepts every honest form with exactly one decision; for training.
    strict-3: Exactly one value in a common notation; other texts are unreadable, which is not the same as wrong.
    strict: The newest version of `strict`, now strict-2. Records contain the version instead (see `versioned`).

Any answer is graded in time linear in its length; an answer of more than 4096 bytes is not read.
"""

from __future__ import annotations

from typing import Literal, get_args

from finqa_cli.grading.verdict import MAX_ANSWER_BYTES, Verdict, answer_text

Profile = Literal["openenv", "strict", "strict-1", "strict-2", "strict-3"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
STRICT: Profile = "strict-2"
"""Profile that `strict` refers to."""
STRICT_BEFORE_VERSIONS: Profile = "strict-1"
"""Profile that `strict` refers to in the record of a run: later runs record the version instead."""

__all__ = [
    "MAX_ANSWER_BYTES",
    "PROFILES",
    "STRICT",
    "STRICT_BEFORE_VERSIONS",
    "Profile",
    "Verdict",
    "grade",
    "versioned",
]


def versioned(profile: Profile) -> Profile:
    """Return the profile with its version: `strict-2` for `strict`, others unchanged."""
    return STRICT if profile == "strict" else profile


def grade(answer: object, truth: str, profile: str = "openenv", question: str = "") -> Verdict:
    """Compares an answer with the truth.

    Args:
        answer: A JSON value; anything other than a text or a finite number gets 0.
        truth: The truth as the data set writes it.
        profile: One of `PROFILES`.
        question: The question alone, without tables. strict-2 and strict-3 take from it the scale, year and measure
            that are asked for; the other profiles ignore it. Empty if it is unknown.

    Raises:
        ValueError: There is no such profile. Answer, truth and question never cause an error.
    """
    if profile not in PROFILES:
        raise ValueError(f"There is no grader {profile!r}; there are: {', '.join(PROFILES)}.")
    text = answer_text(answer)
    if isinstance(text, Verdict):
        return text
    # imported here, because the rules of strict-2 are a fifth of the start-up time of commands that grade nothing
    if profile == "openenv":
        from finqa_cli.grading.openenv import grade as grade_like_openenv

        return grade_like_openenv(text, truth)
    if profile == "strict-1":
        from finqa_cli.grading.strict_1 import grade as grade_by_strict_1

        return grade_by_strict_1(text, truth)
    if profile == "strict-3":
        from finqa_cli.grading.strict_3.value_verdict import grade as grade_by_strict_3

        return grade_by_strict_3(text, truth, question)
    from finqa_cli.grading.strict_2.strict_verdict import grade as grade_by_strict_2

    return grade_by_strict_2(text, truth, question)
