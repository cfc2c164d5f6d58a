"""The `finqa-text` environment: single-turn FinQA, in this process.

The verdict on a reply follows FinQA's own measures (arXiv 2109.00122, evaluation script of its repository).

| part        | 1 when                                                                                              |
| ----------- | --------------------------------------------------------------------------------------------------- |
| `correct`   | the program's result is the truth; without a program, when the stated answer is right               |
| `execution` | execution accuracy: there is a program, and its result, rounded to 5 decimals, is exactly the truth |
| `program`   | program accuracy: it is equivalent to the gold program (left out where the data has none)           |
| `answer`    | the stated answer is right: grading profile `strict`, in which `9.4%` and 0.094 are the same        |
| `format`    | the reply is the JSON object that was asked for                                                     |

The total is `correct`. A program is judged by its result and not by its text, as in FinQA's main measure, and a wrong
one is not corrected by a right guess beside it. An answer without a program is taken, since it is an answer; to pay for
programs only, train on another reward.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

from finqa_cli.contracts import Environment, EnvironmentContext, Reward, RewardRequest, Sandbox
from finqa_cli.errors import DataError, EnvironmentFault
from finqa_cli.grading import grade
from finqa_cli.grading.answers import parse_reply
from finqa_cli.grading.programs import compare, execution_accuracy
from finqa_cli.types import AssistantTurn, DataInfo, Message, Prompt, Rewards, Task
from finqa_plugins.environments._task_files.single_reply import SingleReplySession
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_generate import generate
from finqa_plugins.environments.finqa_text.text_rows import TextRow, load

SYSTEM = """\
You are a financial analyst. Answer the question about a page of a company's annual report.

Reply with one JSON object and nothing else: {"answer": <number, "yes" or "no">, "program": "<calculation>"}

The program is a list of steps, separated by a comma and a space. Each step is operation(argument, argument):
- add(a, b), subtract(a, b), multiply(a, b), divide(a, b), exp(a, b) for a to the power of b
- greater(a, b): yes when a is greater than b, else no
- table_sum(row, none), table_average(row, none), table_max(row, none), table_min(row, none): over a row of the table, \
given by the text of its first cell
An argument is a number from the page, a constant such as const_2, const_100, const_1000 or const_m1 (minus one), or \
#0, #1, ... for the result of the first, second, ... step. The last step gives the answer.

Give changes and ratios as decimals: 5.2% is 0.052. Example: {"answer": 0.05085, "program": "subtract(1240, 1180), \
divide(#0, 1180)"}"""
_PARTS = ("correct", "execution", "program", "answer", "format")
_STAND_INS = {"dev": "test", "test": "dev"}
_REMEDY = "name another split, or give --data a training file or a folder with a file for each split"


class FinQATextEnvironment(Environment):
    """Demonstrates the gold programs. Nothing that the policy writes is run: programs are only calculated."""

    def __init__(self, config: FinQATextConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
        """
        self._config = config or FinQATextConfig()
        self._reward = context.reward
        self._data = load(context.data, self._config) if context.data is not None else generate(self._config)
        self._tasks = {split: tuple(_task(row, split) for row in rows) for split, rows in self._data.rows.items()}
        self._rows = {row.id: row for rows in self._data.rows.values() for row in rows}

    def data(self) -> DataInfo:
        """Return the name of the file or folder, or `embedded`."""
        return self._data.info

    def splits(self) -> Sequence[str]:
        """Return those of train, dev and test that have rows."""
        return tuple(self._tasks)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all tasks of a split in the order of the file.

        Where data has only one of `dev` and `test`, both names mean it: the rows to evaluate on.

        Raises:
            DataError: There is no such split.
        """
        for name in (split, _STAND_INS.get(split, "")):
            if name in self._tasks:
                return self._tasks[name]
        info = self._data.info
        if split == "train" and info.evaluation_only:
            raise DataError(f"{info.name} is for evaluation only: nothing is trained on it.", remedy=_REMEDY)
        raise DataError(f"{info.name} has no split {split!r}; it has: {', '.join(self._tasks)}.", remedy=_REMEDY)

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> FinQATextSession:
        """Start an episode of exactly this task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return FinQATextSession(self._row(task), task, self._reward)

    def opening(self, task: Task) -> Prompt:
        """Return the prompt of a task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return opening(self._row(task).text)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the gold answer and program for the opening of a task; of equal openings the first task counts."""
        if not messages or messages[-1].role != "user":
            return None
        row = self._by_text.get(messages[-1].content)
        return None if row is None else AssistantTurn(text=gold_reply(row))

    def _row(self, task: Task) -> TextRow:
        row = self._rows.get(task.id)
        if row is None:
            raise EnvironmentFault(f"{self._data.info.name} has no question {task.id!r}.")
        return row

    @cached_property
    def _by_text(self) -> dict[str, TextRow]:
        return {row.text: row for row in reversed(self._rows.values())}


class FinQATextSession(SingleReplySession):
    """One page with its question, and one reply."""

    def __init__(self, row: TextRow, task: Task, reward: Reward | None) -> None:
        super().__init__(opening(row.text))
        self._row = row
        self._task = task
        self._reward = reward

    def judge(self, text: str) -> Rewards:
        """Return the verdict of `judge`."""
        return judge(text, self._row, self._task, self._reward)


def gold_reply(row: TextRow) -> str:
    """Return what a perfect policy replies."""
    program = {"program": row.program} if row.program else {}
    return json.dumps({"answer": row.answer, **program}, ensure_ascii=False)


def _task(row: TextRow, split: str) -> Task:
    return Task(id=row.id, prompt=row.question, split=split, cluster=row.company, kind=row.kind)


def opening(text: str) -> Prompt:
    """Return the prompt of one task; it offers no tools.

    Args:
        text: Page and question, as `question_text` joins them.
    """
    return Prompt(messages=(Message(role="system", content=SYSTEM), Message(role="user", content=text)), tools=())


def judge(text: str, row: TextRow, task: Task, reward: Reward | None) -> Rewards:
    """Judge a whole reply. With a configured reward its total and parts count, and ours stand beside them.

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
    return reward.score_beside(request, own)


def _verdict(text: str, row: TextRow) -> Rewards:
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


def _program_verdict(program: str, row: TextRow) -> tuple[bool, bool, str]:
    """Return execution, equivalence to the gold program, and what is wrong."""
    if row.program:
        verdict = compare(program, row.program, row.table, row.truth)
        return verdict.execution, verdict.program, verdict.reason
    execution = execution_accuracy(program, row.truth, row.table)
    return execution, False, "" if execution else "The program does not give the expected result."


def _rewards(row: TextRow, parts: Mapping[str, float], explanation: str) -> Rewards:
    names = [name for name in _PARTS if name != "program" or row.program]
    components = {name: float(parts.get(name, 0.0)) for name in names}
    return Rewards(total=components["correct"], components=components, explanation=explanation)
