"""Is a submitted answer right? Pure, standard library only; reads text that an opponent may have written.

Profiles:
    openenv: The rules of OpenEnv's finqa_env, faults included, for results that compare with published ones.
    strict-1: The same task without the faults and without the ways to be paid for several answers; few honest forms.
    strict-2: As strict-1, with every honest form in which exactly one decision is visible; for training.
    strict: The newest version of `strict`, today strict-2. What records a profile records its version (`versioned`).

Any answer is graded in time linear in its length, and none of more than 4096 bytes is read.
"""

from __future__ import annotations

from typing import Literal, get_args

from finqa_cli.grading.verdict import MAX_ANSWER_BYTES, Verdict, answer_text

Profile = Literal["openenv", "strict", "strict-1", "strict-2"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
STRICT: Profile = "strict-2"
"""What `strict` means."""
STRICT_BEFORE_VERSIONS: Profile = "strict-1"
"""What `strict` means in the record of a run: since versions are recorded, no run records the bare name."""

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
    """Return the profile with its version: `strict-2` for `strict`, others as they are."""
    return STRICT if profile == "strict" else profile


def grade(answer: object, truth: str, profile: str = "openenv", question: str = "") -> Verdict:
    """Compares an answer with the truth.

    Args:
        answer: A JSON value; anything but text and finite numbers is worth 0.
        truth: The truth as the data set writes it.
        profile: One of `PROFILES`.
        question: The question alone, without tables. strict-2 reads in it which scale, year and measure is asked for;
            the others do not read it. Empty where it is not known.

    Raises:
        ValueError: There is no such profile. No answer, no truth and no question raises anything.
    """
    if profile not in PROFILES:
        raise ValueError(f"There is no grader {profile!r}; there are: {', '.join(PROFILES)}.")
    text = answer_text(answer)
    if isinstance(text, Verdict):
        return text
    # Imported when they are used: the rules of strict-2 are a fifth of the start of a command that grades nothing.
    if profile == "openenv":
        from finqa_cli.grading.openenv import grade as grade_like_openenv

        return grade_like_openenv(text, truth)
    if profile == "strict-1":
        from finqa_cli.grading.strict_1 import grade as grade_by_strict_1

        return grade_by_strict_1(text, truth)
    from finqa_cli.grading.strict_2.strict_verdict import grade as grade_by_strict_2

    return grade_by_strict_2(text, truth, question)
