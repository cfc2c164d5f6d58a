"""The verdict on a reply, by FinQA's own measures (arXiv 2109.00122, evaluation script of its repository).

| part        | 1 when                                                                                              |
| ----------- | --------------------------------------------------------------------------------------------------- |
| `correct`   | the program's result is the truth; without a program, when the stated answer is right               |
| `execution` | execution accuracy: there is a program, and its result, rounded to 5 decimals, is exactly the truth |
| `program`   | program accuracy: it is equivalent to the gold program (left out where the data has none)           |
| `answer`    | the stated answer is right: grading profile `strict`, in which `9.4%` and 0.094 are the same        |
| `format`    | the reply is the JSON object that was asked for                                                     |

The total is `correct`. A program is judged by its result and not by its text, as in FinQA's main measure, and a wrong
one is not mended by a right guess beside it. An answer without a program is taken, since it is an answer; to pay for
programs only, train on another reward.
"""

from __future__ import annotations

from collections.abc import Mapping

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.grading import grade
from finqa_cli.grading.answers import parse_reply
from finqa_cli.grading.programs import compare, execution_accuracy
from finqa_cli.types import Rewards, Task
from finqa_plugins.environments.finqa_text.text_rows import Row

OWN = "environment_"
"""Stands before the name of a part of ours that the configured reward has, too."""

_PARTS = ("correct", "execution", "program", "answer", "format")


def judge(text: str, row: Row, task: Task, reward: Reward | None) -> Rewards:
    """The verdict on a whole reply. With a configured reward its total and parts count, and ours stand beside them.

    Raises:
        EnvironmentFault: The configured reward failed.
    """
    own = _verdict(text, row)
    if reward is None:
        return own
    request = RewardRequest(
        task=task,
        solution=text,
        truth=str(row.answer),
        program=row.program,
        table=row.table,
        extra_info={"question_type": row.kind, "question": row.question, "company": row.company, **row.extra},
    )
    given = reward.score(request)
    clashing = given.components.keys() - {"correct"}  # accuracy follows this part, so it stays ours
    beside = {f"{OWN}{name}" if name in clashing else name: value for name, value in own.components.items()}
    return Rewards(
        total=given.total,
        components={**given.components, **beside},
        explanation=given.explanation or own.explanation,
    )


def _verdict(text: str, row: Row) -> Rewards:
    reply = parse_reply(text)
    if not reply.ok:
        return _rewards(row, {}, f"No answer: {reply.error}.")
    stated = grade(reply.answer, str(row.answer), "strict")
    parts = {"answer": stated.reward, "format": 1.0}
    if not reply.program:
        return _rewards(row, {**parts, "correct": stated.reward}, f"No program. {stated.explanation}")
    execution, equivalent, reason = _program_verdict(reply.program, row)
    parts |= {"correct": execution, "execution": execution, "program": equivalent}
    explanation = f"The program gives the expected result. {reason}".rstrip() if execution else reason
    return _rewards(row, parts, explanation)


def _program_verdict(program: str, row: Row) -> tuple[bool, bool, str]:
    """Execution, equivalence to the gold program, and what is wrong."""
    if row.program:
        verdict = compare(program, row.program, row.table, row.truth)
        return verdict.execution, verdict.program, verdict.reason
    execution = execution_accuracy(program, row.truth, row.table)
    return execution, False, "" if execution else "The program does not give the expected result."


def _rewards(row: Row, parts: Mapping[str, float], explanation: str) -> Rewards:
    names = [name for name in _PARTS if name != "program" or row.program]
    components = {name: float(parts.get(name, 0.0)) for name in names}
    return Rewards(total=components["correct"], components=components, explanation=explanation)
