"""Grades a reply with an answer and a program, by the measures of FinQA (arXiv 2109.00122) and ConvFinQA.

| part        | 1 if                                                                                                |
| ----------- | --------------------------------------------------------------------------------------------------- |
| `correct`   | what counts is right: the program's result, without a program the stated answer; or always that     |
| `execution` | execution accuracy: there is a program, and its result, rounded to 5 decimals, is exactly the truth |
| `program`   | program accuracy: it is equivalent to the gold program (left out where the data has none)           |
| `answer`    | the stated answer is right by a grading profile, `strict` by default: `9.4%` is 0.094               |
| `format`    | the reply is the JSON object that was asked for                                                     |

A program is graded by its result and not by its text, as in FinQA's main measure. A right answer beside a wrong program
does not make the reply correct. The stated answer is a separate field, and its figures stay comparable to those of
earlier versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from finqa_cli.grading import STRICT, Profile, grade
from finqa_cli.grading.answers import parse_reply
from finqa_cli.grading.programs import ProgramError, ProgramTable, ProgramVerdict, Value, compare, execute, parse
from finqa_cli.grading.programs.execute import DECIMALS, number

Counted = Literal["program", "answer"]
"""What makes a reply correct; `program` means the stated answer where there is no program."""
PARTS = ("correct", "execution", "program", "answer", "format")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyVerdict:
    """The parts of the verdict, each 0 or 1, and its reason."""

    parts: Mapping[str, float]
    explanation: str


def judge_reply(
    text: str,
    truth: Value,
    gold: str,
    table: ProgramTable,
    *,
    question: str = "",
    profile: Profile = STRICT,
    selects: bool = False,
    counts: Counted = "program",
) -> ReplyVerdict:
    """Grade a reply; no reply causes an error.

    Args:
        text: The whole reply.
        truth: Result of the gold program.
        gold: The gold program; empty if the data has none.
        table: Table that `table_*` steps read.
        question: The question alone, which says in which scale the stated answer is; see `grade`.
        profile: Grades the stated answer.
        selects: Whether a program may be a bare number, as in turns of ConvFinQA that select one.
        counts: What makes the reply correct.

    Raises:
        ProgramError: The gold program cannot be read.
    """
    reply = parse_reply(text)
    if not reply.ok:
        return _verdict(gold, {}, f"No answer: {reply.error}.")
    stated = grade(reply.answer, str(plain(truth)), profile, question)
    parts = {"answer": stated.reward, "format": 1.0}
    if not reply.program:
        return _verdict(gold, {**parts, "correct": stated.reward}, f"No program. {stated.explanation}")
    found = compare_programs(reply.program, gold, table, truth, selects=selects)
    parts |= {"execution": found.execution, "program": found.program}
    if counts == "answer":
        return _verdict(gold, {**parts, "correct": stated.reward}, f"{stated.explanation} {found.reason}".rstrip())
    parts["correct"] = found.execution
    explanation = f"The program gives the expected result. {found.reason}".rstrip() if found.execution else found.reason
    return _verdict(gold, parts, explanation)


def compare_programs(
    predicted: str, gold: str, table: ProgramTable, truth: Value, *, selects: bool = False
) -> ProgramVerdict:
    """Return both official metrics of a program; without a gold program, program accuracy is False.

    With `selects`, a bare number is a program: its result is itself, and it is equivalent only to the same text
    (ConvFinQA, arXiv 2210.03849, and `eval_program` and `equal_program` of its repository).

    Raises:
        ProgramError: The gold program cannot be read.
    """
    value = number(predicted.strip()) if selects else None
    expects_number = selects and number(gold.strip()) is not None
    if value is not None:
        executed = round(value, DECIMALS)
        right, same = executed == truth, expects_number and predicted.strip() == gold.strip()
        reason = "" if right else f"The number {predicted.strip()[:40]} is not the expected one."
        return ProgramVerdict(executed, right, same, reason)
    if gold and not expects_number:
        return compare(predicted, gold, table, truth)
    try:
        result = execute(parse(predicted), table)
    except ProgramError as error:
        return ProgramVerdict(None, False, False, f"No result. {error}.")
    right = result == truth
    return ProgramVerdict(result, right, False, "" if right else "The program does not give the expected result.")


def plain(truth: Value) -> int | float | str:
    """Return the truth as people write it: 688, not 688.0."""
    return int(truth) if isinstance(truth, float) and truth.is_integer() else truth


def _verdict(gold: str, parts: Mapping[str, float], explanation: str) -> ReplyVerdict:
    names = [name for name in PARTS if name != "program" or gold]
    return ReplyVerdict(parts={name: float(parts.get(name, 0.0)) for name in names}, explanation=explanation)
