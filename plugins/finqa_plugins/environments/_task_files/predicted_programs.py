"""Predicted programs as FinQA's and ConvFinQA's scripts read them: `[{"id": ..., "predicted": [token, ...]}, ...]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from finqa_cli.contracts import ScoredPrediction, ScoredPredictions
from finqa_cli.errors import DataError
from finqa_cli.grading.programs import ProgramVerdict
from finqa_cli.grading.programs.program import NUMBER_OPERATIONS, TABLE_OPERATIONS

Question = TypeVar("Question")
_END = "EOF"
_STEP_TOKENS = 4
"""Tokens of one step: `add(`, `1`, `2`, `)`."""
_REMEDY = 'the format is [{"id": "...", "predicted": ["subtract(", "5", "3", ")", "EOF"]}, ...]'


def score_programs(
    predictions: object,
    questions: Mapping[str, Question],
    *,
    cluster: Callable[[Question], str],
    compare: Callable[[Question, str], ProgramVerdict],
) -> ScoredPredictions:
    """Score each prediction by execution and program accuracy; both are shares of the predictions, as in the scripts.

    Args:
        predictions: The JSON value of the file.
        questions: The questions, by the ids that predictions use.
        cluster: Returns the name of the group that a question belongs to, such as its company.
        compare: Judges the text of a program for a question.

    Raises:
        DataError: The predictions have another form, or an id occurs twice.
    """
    if not isinstance(predictions, list) or not predictions:
        raise DataError("The predictions are not a list of objects.", remedy=_REMEDY)
    rows: dict[str, ScoredPrediction] = {}
    unknown = 0
    for number, each in enumerate(predictions, start=1):
        identity, program = _read(each, number)
        question = questions.get(identity)
        if question is None:
            unknown += 1
            continue
        if identity in rows:
            raise DataError(f"Prediction {number}: the id {identity!r} occurs twice.", remedy=_REMEDY)
        verdict = compare(question, program)
        figures = {"execution": float(verdict.execution), "program": float(verdict.program)}
        rows[identity] = ScoredPrediction(
            id=identity, cluster=cluster(question), figures=figures, reason=verdict.reason
        )
    return ScoredPredictions(
        rows=list(rows.values()), known=len(rows), missing=len(questions) - len(rows), unknown=unknown
    )


def _read(value: object, number: int) -> tuple[str, str]:
    identity, predicted = (value.get("id"), value.get("predicted")) if isinstance(value, dict) else (None, None)
    if not isinstance(identity, str):
        raise DataError(f"Prediction {number} has no id.", remedy=_REMEDY)
    if isinstance(predicted, str):
        return identity, predicted
    if not isinstance(predicted, list) or not all(isinstance(token, str) for token in predicted):
        raise DataError(f"Prediction {number} ({identity}): `predicted` is not a list of tokens.", remedy=_REMEDY)
    return identity, program_text(predicted)


def program_text(tokens: Sequence[str]) -> str:
    """Join the tokens of a program: `["add(", "1", "2", ")", "EOF"]` is `add(1, 2)`.

    The last token is never read, as in the scripts, nor is an unfinished last step. An `EOF` before the last token
    makes the result `EOF`, which is not a program.
    """
    read = list(tokens[:-1])
    if _END in read:
        return _END
    unended = len(read) % _STEP_TOKENS
    if unended and read[-unended].rstrip("(") in NUMBER_OPERATIONS | TABLE_OPERATIONS:
        read = read[:-unended]
    text = ""
    for token in read:
        separates = text and token != ")" and not text.endswith("(")
        text += f", {token}" if separates else token
    return text
