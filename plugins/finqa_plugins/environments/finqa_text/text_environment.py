"""The `finqa-text` environment: single-turn FinQA, in this process.

The verdict on a reply is that of `finqa_cli.grading.program_reply`, and the total is `correct`; to pay for programs
only, train on another reward.
"""

from __future__ import annotations

import json

from finqa_cli.contracts import EnvironmentContext, Reward, RewardRequest, ScoredPredictions
from finqa_cli.grading.program_reply import compare_programs, judge_reply
from finqa_cli.types import Message, Prompt, Rewards, Task
from finqa_plugins.environments._task_files.predicted_programs import score_programs
from finqa_plugins.environments._task_files.report_pages import PROGRAM_INSTRUCTIONS
from finqa_plugins.environments._task_files.row_environment import SingleReplyEnvironment
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_generate import generate
from finqa_plugins.environments.finqa_text.text_rows import TextRow, load


class FinQATextEnvironment(SingleReplyEnvironment[TextRow]):
    """Demonstrates the gold programs. Programs that the policy writes are only calculated."""

    def __init__(self, config: FinQATextConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
        """
        config = config or FinQATextConfig()
        data = load(context.data, config) if context.data is not None else generate(config)
        super().__init__(data, context.reward)

    def task(self, row: TextRow, split: str) -> Task:
        """Return the question as a task."""
        return Task(id=row.id, prompt=row.question, split=split, cluster=row.company, kind=row.kind)

    def prompt(self, row: TextRow) -> Prompt:
        """Return the instructions, the page and its question; it offers no tools."""
        return opening(row.text)

    def solution(self, row: TextRow, attempt: int) -> str:
        """Return the gold answer and program."""
        program = {"program": row.program} if row.program else {}
        return json.dumps({"answer": row.answer, **program}, ensure_ascii=False) if attempt == 1 else ""

    def score_predictions(self, predictions: object) -> ScoredPredictions:
        """Score predicted programs as FinQA's script does; see `score_programs`.

        Raises:
            DataError: The predictions have another form.
        """
        return score_programs(
            predictions,
            self._rows,
            cluster=lambda row: row.company,
            compare=lambda row, program: compare_programs(program, row.program, row.table, row.truth),
        )

    def judge(self, row: TextRow, task: Task, text: str) -> Rewards:
        """Return the verdict of `judge`."""
        return judge(text, row, task, self._reward)


def opening(text: str) -> Prompt:
    """Return the prompt of one task; it offers no tools.

    Args:
        text: Page and question, as `question_text` joins them.
    """
    return Prompt(
        messages=(Message(role="system", content=PROGRAM_INSTRUCTIONS), Message(role="user", content=text)), tools=()
    )


def judge(text: str, row: TextRow, task: Task, reward: Reward | None) -> Rewards:
    """Judge a whole reply. With a configured reward its total and parts count, and ours stand beside them.

    Raises:
        EnvironmentFault: The configured reward failed.
    """
    verdict = judge_reply(text, row.truth, row.program, row.table)
    own = Rewards(total=verdict.parts["correct"], components=verdict.parts, explanation=verdict.explanation)
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
