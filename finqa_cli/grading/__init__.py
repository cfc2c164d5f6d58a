"""Grades submitted answers. Pure and standard library only; an answer may be adversarial.

Profiles:
    openenv: The rules of OpenEnv's finqa_env, including its faults, for results that are comparable to published ones.
    strict-1: The same task without these faults, and without rewards for several answers; accepts few honest forms.
    strict-3: Exactly one value in a common notation; other texts are unreadable, which is not the same as wrong.
    strict: The newest version of `strict`, now strict-3. Records contain the version instead (see `versioned`).

The grader `judge`, now judge-1, is no profile: it grades by strict-3, and a model judges what is unreadable.

Version 2 read prose with lists of words and was removed (`REMOVED`); its results in files are still shown and compared.

Any answer is graded in time linear in its length; an answer of more than 4096 bytes is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar, cast, get_args

from finqa_cli.grading.verdict import MAX_ANSWER_BYTES, Verdict, answer_text

Profile = Literal["openenv", "strict", "strict-1", "strict-3"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
STRICT: Profile = "strict-3"
"""Profile that `strict` refers to."""
JUDGE = "judge"
Grader = Literal["openenv", "strict", "strict-1", "strict-3", "judge", "judge-1"]
"""A profile, or a version of the judge."""
JUDGES: dict[str, Profile] = {"judge-1": "strict-3"}
"""Version of the grader `judge` -> profile that grades first. Another rubric or profile is another version."""
REMOVED = frozenset({"strict-2"})
"""Profiles that records of earlier versions name, and by which nothing can be graded any more."""
STRICT_BEFORE_VERSIONS: Profile = "strict-1"
"""Profile that `strict` refers to in the record of a run: later runs record the version instead."""

__all__ = [
    "JUDGE",
    "JUDGES",
    "MAX_ANSWER_BYTES",
    "PROFILES",
    "REMOVED",
    "STRICT",
    "STRICT_BEFORE_VERSIONS",
    "Grader",
    "Profile",
    "Verdict",
    "grade",
    "profile_of",
    "versioned",
]


_Name = TypeVar("_Name", bound=str)


def versioned(name: _Name) -> _Name:
    """Return a profile or judge with its version: `strict-3` for `strict`, `judge-1` for `judge`, others unchanged."""
    newest: Mapping[str, str] = {"strict": STRICT, JUDGE: next(reversed(JUDGES))}
    return cast(_Name, newest.get(name, name))


def profile_of(grader: Grader) -> Profile:
    """Return the profile by which a grader reads an answer: `strict-3` for `judge-1`, a profile itself."""
    return JUDGES.get(versioned(grader)) or cast(Profile, grader)


def grade(answer: object, truth: str, profile: str = "openenv", question: str = "") -> Verdict:
    """Compares an answer with the truth.

    Args:
        answer: A JSON value; anything other than a text or a finite number gets 0.
        truth: The truth as the data set writes it.
        profile: One of `PROFILES`.
        question: The question alone, without tables. strict-3 takes from it the scale, years and labels that are
            asked for; the other profiles ignore it. Empty if it is unknown.

    Raises:
        ValueError: There is no such profile. Answer, truth and question never cause an error.
    """
    if profile not in PROFILES:
        raise ValueError(f"There is no grader {profile!r}; there are: {', '.join(PROFILES)}.")
    text = answer_text(answer)
    if isinstance(text, Verdict):
        return text
    # imported here, because commands that grade nothing need no rules
    if profile == "openenv":
        from finqa_cli.grading.openenv import grade as grade_like_openenv

        return grade_like_openenv(text, truth)
    if profile == "strict-1":
        from finqa_cli.grading.strict_1 import grade as grade_by_strict_1

        return grade_by_strict_1(text, truth)
    from finqa_cli.grading.strict_3.value_verdict import grade as grade_by_strict_3

    return grade_by_strict_3(text, truth, question)
