"""The `convfinqa` environment: one episode is a dialogue, in which each turn is answered and judged.

Each reply is judged as in `finqa_cli.grading.program_reply`, where a bare number is also a program. The parts of the
reward are means over the turns of the dialogue, in which turns without a reply count as 0. The total is the part
`correct`. The part `dialogue` is 1 if all turns are right.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import Any

from finqa_cli.contracts import EnvironmentContext, Sandbox, ScoredPredictions, TextSession
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.grading.program_reply import PARTS, ReplyVerdict, compare_programs, judge_reply, plain
from finqa_cli.types import AssistantTurn, Message, Observation, Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments._task_files.predicted_programs import score_programs
from finqa_plugins.environments._task_files.report_pages import PROGRAM_INSTRUCTIONS
from finqa_plugins.environments._task_files.row_environment import RowEnvironment
from finqa_plugins.environments.convfinqa.config import ConvFinQAConfig
from finqa_plugins.environments.convfinqa.convfinqa_rows import Dialogue, load

SYSTEM = (
    PROGRAM_INSTRUCTIONS
    + """

Questions follow each other and may refer to earlier ones; reply to each in this form. Where the answer is a number \
that stands on the page, the program is that number alone: {"answer": 60.94, "program": "60.94"}"""
)


class ConvFinQAEnvironment(RowEnvironment[Dialogue]):
    """Dialogues from files. Programs of the policy are calculated by an interpreter, never executed as code."""

    def __init__(self, config: ConvFinQAConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            ConfigError: A reward is configured: rewards judge single answers, not dialogues.
            DataError: There is no data, or it is malformed.
        """
        self._config = config or ConvFinQAConfig()
        self.grader = self.profile = self._config.grader
        if context.reward is not None:
            raise ConfigError("The environment convfinqa grades whole dialogues itself.", remedy="leave --reward out")
        if context.data is None:
            raise DataError(
                "The environment convfinqa includes no dialogues.",
                remedy="--data FILE, one of the dialogues of https://github.com/czyssrs/ConvFinQA",
            )
        super().__init__(load(context.data, self._config))

    def task(self, row: Dialogue, split: str) -> Task:
        """Return the dialogue as a task; its prompt lists the questions."""
        questions = "\n".join(turn.question for turn in row.turns)
        return Task(id=row.id, prompt=questions, split=split, cluster=row.company, kind=row.kind)

    def prompt(self, row: Dialogue) -> Prompt:
        """Return the instructions, the page and the first question; it offers no tools."""
        user = f"Context:\n{row.page}\n\nQuestion: {row.turns[0].question}"
        return Prompt(messages=(Message(role="system", content=SYSTEM), Message(role="user", content=user)), tools=())

    def solution(self, row: Dialogue, attempt: int) -> str:
        """Return the gold answer and program of a turn, counted from 1."""
        if attempt > len(row.turns):
            return ""
        turn = row.turns[attempt - 1]
        return json.dumps({"answer": plain(turn.truth), "program": turn.program}, ensure_ascii=False)

    def right_answer(self, task: Task) -> str:
        """Return the right answers to the questions of the dialogue, one per line."""
        return "\n".join(str(plain(turn.truth)) for turn in self._row(task).turns)

    def demonstrate(self, messages: Sequence[Message]) -> AssistantTurn | None:
        """Return the gold reply to the last question of a dialogue; if several begin equally, of the first one."""
        if not messages or messages[-1].role != "user":
            return None
        first, *later = [message.content for message in messages if message.role == "user"]
        for row in self._by_opening.get(first, ()):
            if later == [self.question(row, place) for place in range(1, len(later) + 1)]:
                text = self.solution(row, len(later) + 1)
                return AssistantTurn(text=text) if text else None
        return None

    @cached_property
    def _by_opening(self) -> dict[str, list[Dialogue]]:
        found: dict[str, list[Dialogue]] = defaultdict(list)
        for row in self._rows.values():
            found[self.prompt(row).messages[-1].content].append(row)
        return found

    def question(self, row: Dialogue, place: int) -> str:
        """Return the message after a reply: question number `place` (from 0), with the right answer if configured."""
        if place >= len(row.turns):
            return ""
        question = f"Question: {row.turns[place].question}"
        if self._config.history == "own":
            return question
        return f"The right answer was {plain(row.turns[place - 1].truth)}.\n\n{question}"

    async def open(self, task: Task, *, seed: int, sandbox: Sandbox | None) -> ConvFinQASession:
        """Start an episode of exactly this task.

        Raises:
            EnvironmentFault: The task is not of this data.
        """
        return ConvFinQASession(self, self._row(task))

    def score_predictions(self, predictions: object) -> ScoredPredictions:
        """Score predicted programs of single turns, where `DIALOGUE_0` is the id of a dialogue's first turn.

        Raises:
            DataError: The predictions have another form.
        """
        rows = self._rows.values()
        turns = {f"{row.id}_{place}": (row, turn) for row in rows for place, turn in enumerate(row.turns)}
        return score_programs(
            predictions,
            turns,
            cluster=lambda found: found[0].company,
            compare=lambda found, program: compare_programs(
                program, found[1].program, found[0].table, found[1].truth, selects=True
            ),
        )

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Compute accuracies in percent, of turns and of dialogues, in total and by kind of dialogue.

        A dialogue is right if all its turns are. The official measures of ConvFinQA, execution and program accuracy,
        are those of turns.
        """
        found: dict[str, Any] = {}
        by_kind: dict[str, list[Trajectory]] = defaultdict(list)
        for each in trajectories:
            if each.rewards is not None and each.task.id in self._rows:
                by_kind[each.task.kind].append(each)
        graded = [each for part in by_kind.values() for each in part]
        if graded:
            found = self._accuracies(graded)
        return found | {kind: self._accuracies(part) for kind, part in sorted(by_kind.items())}

    def _accuracies(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        weights = [len(self._rows[each.task.id].turns) for each in trajectories]
        parts = [each.rewards.components if each.rewards else {} for each in trajectories]
        accuracies = {
            f"turn_{name}": 100 * fmean((part.get(name, 0.0) for part in parts), weights) for name in PARTS[:4]
        }
        return accuracies | {"dialogue_correct": 100 * fmean(part.get("dialogue", 0.0) for part in parts)}


class ConvFinQASession(TextSession):
    """An episode of one dialogue."""

    def __init__(self, environment: ConvFinQAEnvironment, row: Dialogue) -> None:
        self._environment = environment
        self._row = row
        self._verdicts: list[ReplyVerdict] = []

    def prompt(self) -> Prompt:
        """Return the messages that the episode opens with."""
        return self._environment.prompt(self._row)

    async def reply(self, text: str) -> Observation:
        """Judge the reply to the question that was asked last, and ask the next one."""
        place = len(self._verdicts)
        if place == len(self._row.turns):
            return Observation(text="Error: all questions are answered already.", done=True, is_error=True)
        turn = self._row.turns[place]
        verdict = judge_reply(
            text,
            turn.truth,
            turn.program,
            self._row.table,
            question=turn.question,
            profile=self._environment.profile,
            selects=True,
        )
        self._verdicts.append(verdict)
        question = self._environment.question(self._row, place + 1)
        return Observation(text=question or "All questions are answered.", done=not question)

    async def grade(self) -> Rewards:
        """Return the means over all turns of the dialogue."""
        count = len(self._row.turns)
        means = {name: sum(verdict.parts[name] for verdict in self._verdicts) / count for name in PARTS}
        reasons = [
            f"Turn {number}: {verdict.explanation}"
            for number, verdict in enumerate(self._verdicts, start=1)
            if not verdict.parts["correct"]
        ]
        if len(self._verdicts) < count:
            reasons.append(f"{count - len(self._verdicts)} of {count} questions were not answered.")
        return Rewards(
            total=means["correct"],
            components={**means, "dialogue": float(means["correct"] == 1.0)},
            explanation=" ".join(reasons) or f"All {count} turns are right.",
        )
