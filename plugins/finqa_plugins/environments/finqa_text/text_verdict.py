"""The verdict of `finqa-text` on a reply as a separate reward, with its tests.

`finqa rewards show|test|score environment` and step 02 of a pipeline use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finqa_cli.contracts import Reward, RewardRequest
from finqa_cli.errors import EnvironmentFault
from finqa_cli.grading.answers import Case
from finqa_cli.grading.program_reply import ReplyVerdict, judge_reply
from finqa_cli.grading.programs import Value
from finqa_cli.grading.programs.execute import number
from finqa_cli.types import Rewards

_PARTS = {
    "correct": "1 when the program gives the truth; without a program, when the stated answer is right",
    "execution": "1 when there is a program and its result, rounded to 5 decimals, is exactly the truth",
    "program": "1 when the program is equivalent to the gold program; left out where the data has none",
    "answer": "1 when the stated answer is right by the grading profile strict, in which 9.4% and 0.094 are the same",
    "format": "1 when the reply is the JSON object that was asked for",
}


class ProgramVerdictReward(Reward):
    """Judges a reply as the environment does; the total is the part `correct`."""

    def __init__(self, config: None = None) -> None:
        del config

    def score(self, request: RewardRequest) -> Rewards:
        """Judge a whole reply as an episode does.

        Raises:
            EnvironmentFault: The truth is neither a number nor yes or no.
        """
        truth = _value(request.truth)
        return as_rewards(judge_reply(request.solution, truth, request.program, request.table))

    def spec(self) -> Mapping[str, Any]:
        """Return a description of the total and its parts."""
        return {"total": "correct", "parts": _PARTS}

    def cases(self) -> Sequence[Case]:
        """Return the tests."""
        return _CASES


def as_rewards(verdict: ReplyVerdict) -> Rewards:
    """Return a verdict as the reward of an episode."""
    return Rewards(total=verdict.parts["correct"], components=verdict.parts, explanation=verdict.explanation)


def _value(truth: str) -> Value:
    word = truth.strip().lower()
    if word == "yes":
        return "yes"
    if word == "no":
        return "no"
    if (found := number(word)) is None:
        raise EnvironmentFault(
            f"The truth {truth[:40]!r} is neither a number nor yes or no.",
            remedy="correct it, or finqa rewards score FILE graded, which compares texts",
        )
    return found


_GROWTH = "subtract(5829, 5735), divide(#0, 5735)"
_TABLE = (("( in millions )", "2009", "2008"), ("net sales", "$ 5829", "$ 5735"))


def _case(name: str, solution: str, *earned: str, truth: str = "0.01639", program: str = _GROWTH) -> Case:
    """Return a test in which the parts `earned` are 1 and all others 0."""
    expected = {part: float(part in earned) for part in _PARTS if program or part != "program"}
    total = expected["correct"]
    return Case(
        name=name,
        expected={**expected, "total": total},
        solution=solution,
        truth=truth,
        program=program,
        table=_TABLE,
    )


_ALL = tuple(_PARTS)

_CASES = (
    _case("right answer and program", f'{{"answer": 0.01639, "program": "{_GROWTH}"}}', *_ALL),
    _case("answer in percent", f'{{"answer": "1.639%", "program": "{_GROWTH}"}}', *_ALL),
    _case("in a fence", f'Here:\n```json\n{{"answer": 0.01639, "program": "{_GROWTH}"}}\n```', *_ALL),
    _case("program counts, not the guess beside it", f'{{"answer": 7, "program": "{_GROWTH}"}}', *_ALL[:3], "format"),
    _case("right guess beside a wrong program", '{"answer": 0.01639, "program": "add(3, 4)"}', "answer", "format"),
    _case("last step forgotten", '{"answer": 94, "program": "subtract(5829, 5735)"}', "format"),
    _case(
        "another way to the truth",
        '{"answer": 0.01639, "program": "divide(5829, 5735), subtract(#0, const_1)"}',
        *("correct", "execution", "answer", "format"),
    ),
    _case("answer without a program", '{"answer": 0.01639}', "correct", "answer", "format"),
    _case("wrong answer without a program", '{"answer": 0.5}', "format"),
    _case(
        "a row of the table",
        '{"answer": 5829, "program": "table_max(net sales, none)"}',
        *_ALL,
        truth="5829",
        program="table_max(net sales, none)",
    ),
    _case(
        "yes",
        '{"answer": "yes", "program": "greater(5829, 5735)"}',
        *_ALL,
        truth="yes",
        program="greater(5829, 5735)",
    ),
    _case("data without programs", '{"answer": 5829}', "correct", "answer", "format", truth="5829", program=""),
    _case("division by zero", '{"answer": 0.01639, "program": "divide(1, 0)"}', "answer", "format"),
    _case("no program of the language", '{"answer": 0.01639, "program": "5829 over 5735"}', "answer", "format"),
    _case("two answers", '{"answer": 7, "answer": 0.01639}'),
    _case("another key", '{"answer": 0.01639, "note": "sure"}'),
    _case("cut off", '{"answer": 0.01639, "program": "subtract(5829'),
    _case("no JSON", "The answer is 0.01639."),
    _case("empty reply", ""),
)
