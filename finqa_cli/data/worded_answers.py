"""Gold answers that OpenEnv's rules compare as text although they contain a number. Pure."""

from __future__ import annotations

import re

from finqa_cli.data.own_tables.cell_numbers import read_number
from finqa_cli.grading.openenv import grade

WORDED_ANSWERS = (
    "answers are a number with words or a currency, so that the number alone can be graded wrong (write the number "
    "alone, and its unit in the question)"
)
"""Text of the finding, in the plural, with the remedy."""

ODD_ANSWERS = "answers with digits that are no single number"

_BETWEEN_VALUES = re.compile(r"[,;] ")
_LABEL = re.compile(r"\A[^:]{1,40}: ?")
_NUMBER_AND_WORDS = re.compile(r"(?:[$€£¥][ ]?|[A-Z]{3}[ ])?([-+]?[0-9][0-9,.]{0,30})(?:[ ]?[€£¥%]|[ ])?[^0-9]{0,60}")
_WORDS = re.compile(r"[^\W\d_]|[€£¥]")
_NAME = re.compile(r"[0-9]+[^\W\d_].*", re.DOTALL)
"""A name that begins with digits, such as `3M`; `$3M` and `3.5M` are amounts."""


def is_worded(answer: str) -> bool:
    """Returns whether an answer is a number with a unit or other words, such as `9875 EUR thousands` and `$210.0m`.

    The number alone is then graded wrong. Names such as `3M` and `Q3`, and texts with several numbers, are no such
    answers.
    """
    text = answer.strip()
    found = _NUMBER_AND_WORDS.fullmatch(text)
    if found is None or not _WORDS.search(text) or _NAME.fullmatch(text):
        return False
    return not grade(found[1], text).reward


def is_odd(answer: str) -> bool:
    """Returns whether an answer consists mostly of digits, but is no number, such as `540.100.5`.

    Boxed answers and lists, such as `2023: 59, 2024: 58`, are texts on purpose.
    """
    text = answer.strip()
    digits = sum(character.isdigit() for character in text)
    if 2 * digits <= len(text) or "\\boxed" in text:
        return False
    return any(read_number(_LABEL.sub("", part)) is None for part in _BETWEEN_VALUES.split(text))
