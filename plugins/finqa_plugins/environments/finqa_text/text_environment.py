"""The `finqa-text` environment: single-turn FinQA, in this process.

The verdict on a reply is that of `finqa_cli.grading.program_reply`, and the total is `correct`: the program's result or
the stated answer, as `counts` says.
"""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Mapping, Sequence

from finqa_cli.contracts import EnvironmentContext, Reward, RewardRequest, ScoredPredictions
from finqa_cli.grading import STRICT, Profile
from finqa_cli.grading.program_reply import Counted, compare_programs, judge_reply, plain
from finqa_cli.grading.programs import execute, parse
from finqa_cli.types import Message, Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments._task_files.predicted_programs import score_programs
from finqa_plugins.environments._task_files.report_pages import PROGRAM_INSTRUCTIONS
from finqa_plugins.environments._task_files.row_environment import SingleReplyEnvironment
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_generate import generate
from finqa_plugins.environments.finqa_text.text_rows import TextRow, load
from finqa_plugins.environments.finqa_text.text_verdict import as_rewards


class FinQATextEnvironment(SingleReplyEnvironment[TextRow]):
    """Questions about report pages. Programs of the policy are calculated by an interpreter, never executed as code."""

    def __init__(self, config: FinQATextConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            DataError: The data at `context.data` is missing or malformed.
        """
        self._config = config = config or FinQATextConfig()
        self.grader = config.grader
        data = load(context.data, config) if context.data is not None else generate(config)
        super().__init__(data, context.reward)

    def task(self, row: TextRow, split: str) -> Task:
        """Return the question as a task."""
        return Task(id=row.id, prompt=row.question, split=split, cluster=row.company, kind=row.kind)

    def prompt(self, row: TextRow) -> Prompt:
        """Return the instructions, the page and its question; it offers no tools."""
        return opening(row.text)

    def solution(self, row: TextRow, attempt: int) -> str:
        """Return the gold answer and program.

        The share `careless` of the tasks, always the same tasks, is demonstrated with a mistake; see `make_mistake`.
        """
        if attempt > 1:
            return ""
        answer, program = row.answer, row.program
        if program and random.Random(f"careless:{self._config.seed}:{row.id}").random() < self._config.careless:
            program = make_mistake(program)
            answer = plain(execute(parse(program), row.table))
        return json.dumps({"answer": answer, **({"program": program} if program else {})}, ensure_ascii=False)

    def right_answer(self, task: Task) -> str:
        """Return the gold answer."""
        return str(self._row(task).answer)

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
        return judge(text, row, task, self._reward, counts=self._config.counts, profile=self._config.grader)

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Return the shares of replies with a right program and with a right stated answer, whichever counts."""
        verdicts = [each.rewards.components for each in trajectories if each.rewards is not None]
        figures = {"accuracy of programs": "execution", "accuracy of answers": "answer"}
        return {
            name: statistics.fmean(found)
            for name, part in figures.items()
            if (found := [parts[part] for parts in verdicts if part in parts])
        }


def make_mistake(program: str) -> str:
    """Drop the last of several steps, or turn an operation on a row into its average; other programs are unchanged."""
    shorter, more, _ = program.rpartition("), ")
    return f"{shorter})" if more else re.sub(r"\Atable_\w+", "table_average", program)


def opening(text: str) -> Prompt:
    """Return the prompt of one task; it offers no tools.

    Args:
        text: Page and question, as `question_text` joins them.
    """
    return Prompt(
        messages=(Message(role="system", content=PROGRAM_INSTRUCTIONS), Message(role="user", content=text)), tools=()
    )


def judge(
    text: str,
    row: TextRow,
    task: Task,
    reward: Reward | None,
    *,
    counts: Counted = "program",
    profile: Profile = STRICT,
) -> Rewards:
    """Judge a whole reply. A configured reward gives total and parts; the environment's own parts are kept beside them.

    Raises:
        EnvironmentFault: The configured reward failed.
    """
    own = as_rewards(
        judge_reply(text, row.truth, row.program, row.table, question=row.question, profile=profile, counts=counts)
    )
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
