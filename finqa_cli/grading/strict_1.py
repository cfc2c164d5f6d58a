"""Grades an answer by profile `strict-1`: an answer has one meaning, and is right or wrong.

Version 1 of `strict`, kept for the runs that were started with it, and for the replies of `finqa-text` and
ConvFinQA. A table of verdicts in the tests must not change. Its rules, in addition to those for written numbers and
units (`numbers.py`) and for the tolerance (`closeness.py`):

- The answer has as many values as the truth. A longer list, a range, `5 or 6`, `~5` or a second boxed value is wrong.
- A list with years or names is matched by these, in any order, if the truth has the same ones; each occurs once.
- A list without them, or with years while the truth has none, is matched by position. Names that the truth does not
  have are wrong: `No: yes` contains two answers.
- A number may have a unit, a currency or `The answer is` around it; other prose is allowed only around a boxed value.
- Texts are compared without case, quotes and full stops. Nothing matches an empty truth, or one such as NaN.
"""

from __future__ import annotations

from finqa_cli.grading.closeness import same_item
from finqa_cli.grading.items import Item, answer_items, bare_text, pair_up, truth_items
from finqa_cli.grading.verdict import Verdict, shown


def grade(answer: str, truth: str) -> Verdict:
    """Compares an answer with the truth. Never raises."""
    if not (text := bare_text(answer)):
        return Verdict(0.0, "The answer is empty, or not a number.")
    if text == bare_text(truth) and "\\boxed" not in text:
        return Verdict(1.0, f"{shown(answer)} matches.")
    submitted, expected = answer_items(answer), truth_items(truth)
    if isinstance(submitted, str):
        return Verdict(0.0, submitted)
    pairs = pair_up(submitted, expected)
    if isinstance(pairs, str):
        return Verdict(0.0, pairs)
    if len(pairs) == 1:
        return _single(answer, *pairs[0])
    wrong = [place for place, (given, wanted) in enumerate(pairs, start=1) if not same_item(given, wanted)]
    if wrong:
        return Verdict(0.0, f"{len(wrong)} of {len(pairs)} values do not match, first the one at place {wrong[0]}.")
    return Verdict(1.0, f"All {len(pairs)} values match.")


def _single(answer: str, given: Item, expected: Item) -> Verdict:
    if same_item(given, expected):
        return Verdict(1.0, f"{shown(answer)} matches.")
    if isinstance(expected.value, str):
        return Verdict(0.0, f"{shown(answer)} is not the expected text.")
    if isinstance(given.value, str):
        return Verdict(0.0, f"{shown(answer)} is not one number.")
    return Verdict(0.0, f"{shown(answer)} is outside the tolerance, or in another unit.")
