"""FinQA's two official metrics for the text of one prediction, with a reason if it is wrong.

A predicted text never causes an error: a text that is not a program, or has no result, is wrong. A gold program that
cannot be read raises `ProgramError`, so that malformed data is never scored as a wrong prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from finqa_cli.grading.programs.equivalence import difference, overlap
from finqa_cli.grading.programs.execute import ProgramTable, Value, execute
from finqa_cli.grading.programs.parse import parse
from finqa_cli.grading.programs.program import ProgramError


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """Both metrics of one predicted program.

    Attributes:
        executed: Result of the program; None if it has none.
        execution: Execution accuracy: whether the result is exactly the gold answer.
        program: Program accuracy: whether the program is equivalent to the gold program.
        reason: Why one or both are False, without revealing the truth; empty if both are True.
    """

    executed: Value | None
    execution: bool
    program: bool
    reason: str


def compare(predicted: str, gold: str, table: ProgramTable, gold_answer: Value) -> ProgramVerdict:
    """Returns both metrics of a prediction.

    Args:
        predicted: Text that a model wrote.
        gold: Program of the data set.
        table: Table of the question, as the data set writes it.
        gold_answer: `exe_ans` of the data set.

    Raises:
        ProgramError: The gold program cannot be read.
    """
    expected = parse(gold)
    try:
        program = parse(predicted)
    except ProgramError as error:
        return ProgramVerdict(None, False, False, f"Not a program. {error}.")
    executed, miss = None, ""
    try:
        executed = execute(program, table)
    except ProgramError as error:
        miss = f"No result. {error}"
    different = difference(program, expected)
    is_right = executed == gold_answer
    if not is_right and not miss:
        miss = f"The result {executed} is not the expected one"
    misses = [reason for reason in (miss, different and f"Not equivalent: {different}") if reason]
    return ProgramVerdict(executed, is_right, not different, " ".join(f"{reason}." for reason in misses))


def execution_accuracy(predicted: str, gold_answer: Value, table: ProgramTable) -> bool:
    """Returns whether the program's result, rounded to 5 decimals, is exactly the gold answer; 0.5 is not 50."""
    try:
        return execute(parse(predicted), table) == gold_answer
    except ProgramError:
        return False


def program_accuracy(predicted: str, gold: str) -> bool:
    """Returns whether the program is equivalent to the gold program; it is not executed.

    Raises:
        ProgramError: The gold program cannot be read.
    """
    expected = parse(gold)
    try:
        return not difference(parse(predicted), expected)
    except ProgramError:
        return False


def step_overlap(predicted: str, gold: str) -> float:
    """Returns the share of the gold program's steps that the prediction computes too, from 0 to 1; 0 for no program.

    Raises:
        ProgramError: The gold program cannot be read.
    """
    expected = parse(gold)
    try:
        return overlap(parse(predicted), expected)
    except ProgramError:
        return 0.0
