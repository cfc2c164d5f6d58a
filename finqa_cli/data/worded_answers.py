"""Gold answers that are a number with words, which the default grader compares as text."""

from __future__ import annotations

import re

from finqa_cli.grading.openenv import grade

WORDED_ANSWERS = (
    "answers are a number with words or a currency, which the default grader compares as text (write the number "
    "alone, and its unit in the question)"
)
"""Text of the finding, in the plural, with the remedy."""

_NUMBER_AND_WORDS = re.compile(r"(?:[$€£¥][ ]?|[A-Z]{3}[ ])?([-+]?[0-9][0-9,.]{0,30})(?:[ ]?[€£¥%]|[ ])?[^0-9]{0,60}")
_WORDS = re.compile(r"[^\W\d_]|[€£¥]")
_UNSPACED = re.compile(r"[0-9][^\W\d_]")


def is_worded(answer: str) -> bool:
    """Returns whether an answer is a number with words that the grader requires, such as `9875 EUR thousands`.

    The number alone is then graded wrong. Names such as `3M` and `Q3`, and texts with several numbers, are no such
    answers.
    """
    text = answer.strip()
    found = _NUMBER_AND_WORDS.fullmatch(text)
    if found is None or not _WORDS.search(text) or _UNSPACED.search(text):
        return False
    return not grade(found[1], text).reward
