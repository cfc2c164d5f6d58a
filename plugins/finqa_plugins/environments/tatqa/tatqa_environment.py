"""The `tatqa` environment: questions about a table and its paragraphs in a single turn, in this process.

The verdict is that of TAT-QA's evaluation script (see `finqa_cli.grading.tatqa`).

| part     | what it is                                                                     |
| -------- | ------------------------------------------------------------------------------ |
| `em`     | exact match of answer and scale together; this is the total                    |
| `f1`     | numeracy-focused F1; that of calculations and counts is `em`                   |
| `scale`  | whether the scale is right                                                     |
| `format` | whether the reply is the JSON object that was asked for                        |
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from finqa_cli.contracts import EnvironmentContext, RewardRequest, ScoredPrediction, ScoredPredictions
from finqa_cli.errors import DataError
from finqa_cli.grading.answers import MalformedReplyError, parse_object
from finqa_cli.grading.tatqa import SCALES, Answer, TatQAScore, score
from finqa_cli.types import Message, Prompt, Rewards, Task, Trajectory
from finqa_plugins.environments._task_files.row_environment import SingleReplyEnvironment
from finqa_plugins.environments.tatqa.config import TatQAConfig
from finqa_plugins.environments.tatqa.tatqa_rows import TatQARow, load

SYSTEM = """\
You are a financial analyst. Answer the question about a table and its paragraphs from a company's annual report.

Reply with one JSON object and nothing else: {"answer": <answer>, "scale": "<scale>"}

The answer is a text copied from table or paragraphs, a list of such texts where there are several, or a number that \
you calculated or counted, rounded to two decimals. The scale is that of the numbers in it: "thousand", "million", \
"billion", "percent", or "" for none. Example: {"answer": 14.2, "scale": "percent"}"""
_PREDICTIONS = 'the format is {"UID": [answer, scale], ...}, an answer being a text, a number or a list of texts'
_PARTS = ("em", "f1", "scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class TatQAReply:
    """A parsed reply; numbers are texts, because the published script treats the number 0 as no answer."""

    answer: list[str] | str
    scale: str


class TatQAEnvironment(SingleReplyEnvironment[TatQARow]):
    """Questions about tables and paragraphs, with one reply each."""

    grader = "tatqa"

    def __init__(self, config: TatQAConfig | None, context: EnvironmentContext) -> None:
        """Read the data at once, so that a bad file fails before anything is started.

        Raises:
            DataError: There is no data, or it is malformed.
        """
        if context.data is None:
            raise DataError(
                "The environment tatqa includes no questions.", remedy="finqa data fetch tatqa, then --data FOLDER"
            )
        super().__init__(load(context.data, config or TatQAConfig()), context.reward)

    def task(self, row: TatQARow, split: str) -> Task:
        """Return the question as a task; its cluster is its page."""
        return Task(id=row.id, prompt=row.question, split=split, cluster=row.page, kind=row.kind)

    def prompt(self, row: TatQARow) -> Prompt:
        """Return the instructions, the page and its question; it offers no tools."""
        return Prompt(
            messages=(Message(role="system", content=SYSTEM), Message(role="user", content=row.text)), tools=()
        )

    def solution(self, row: TatQARow, attempt: int) -> str:
        """Return the gold answer with its scale."""
        reply = {"answer": row.answer, "scale": row.scale}
        return json.dumps(reply, ensure_ascii=False) if attempt == 1 else ""

    def right_answer(self, task: Task) -> str:
        """Return the gold answer, or several with semicolons between them, and its scale."""
        row = self._row(task)
        answers = row.answer if isinstance(row.answer, tuple) else (row.answer,)
        return " ".join(filter(None, ("; ".join(map(str, answers)), row.scale)))

    def judge(self, row: TatQARow, task: Task, text: str) -> Rewards:
        """Return the measures of a reply; a configured reward replaces the total, and the measures are kept beside it.

        Raises:
            EnvironmentFault: The configured reward failed.
        """
        own = _verdict(text, row)
        if self._reward is None:
            return own
        truth = json.dumps({"answer": row.answer, "scale": row.scale}, ensure_ascii=False)
        extra = {"question_type": row.kind, "question": row.question, "company": row.page, "answer_from": row.source}
        return self._reward.score_beside(RewardRequest(task=task, solution=text, truth=truth, extra_info=extra), own)

    def score_predictions(self, predictions: object) -> ScoredPredictions:
        """Score `{uid: [answer, scale]}` as TAT-QA's script does: questions without a prediction count as wrong.

        Raises:
            DataError: The predictions have another form.
        """
        if not isinstance(predictions, dict):
            raise DataError("The predictions are not an object.", remedy=_PREDICTIONS)
        known = {uid: _predicted(uid, value) for uid, value in predictions.items() if uid in self._rows}
        rows = [
            ScoredPrediction(
                id=row.id,
                cluster=row.page,
                figures={"em": found.exact, "f1": found.f1, "scale": found.scale},
                reason=_reason(found) if row.id in known else "There is no prediction.",
            )
            for row in self._rows.values()
            for found in [_score(row, *known.get(row.id, (None, "")))]
        ]
        missing, unknown = len(self._rows) - len(known), len(predictions) - len(known)
        return ScoredPredictions(rows=rows, known=len(known), missing=missing, unknown=unknown)

    def measure(self, trajectories: Sequence[Trajectory]) -> Mapping[str, Any]:
        """Compute exact match, F1 and scale score over all graded episodes and by kind of question, from 0 to 100."""
        graded = [each for each in trajectories if each.rewards is not None]
        by_kind: dict[str, list[Trajectory]] = defaultdict(list)
        for each in graded:
            by_kind[each.task.kind].append(each)
        found: dict[str, Any] = _means(graded)
        return found | {kind: _means(part) for kind, part in sorted(by_kind.items())}


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    components = [each.rewards.components for each in trajectories if each.rewards is not None]
    return {name: 100 * fmean(part.get(name, 0.0) for part in components) for name in _PARTS} if components else {}


def parse(text: str) -> TatQAReply:
    """Read a reply.

    Raises:
        MalformedReplyError: The reply is not the JSON object that the prompt asks for.
    """
    reply = parse_object(text)
    if unknown := [name for name in reply if name not in ("answer", "scale")]:
        raise MalformedReplyError(f"unknown key {unknown[0][:40]!r}; the keys are answer, scale")
    if "answer" not in reply:
        raise MalformedReplyError("the key 'answer' is missing")
    answer, scale = reply["answer"], reply.get("scale", "")
    if answer is None or not _is_answer(answer):
        raise MalformedReplyError("'answer' is not a text, a number or a list of these")
    if scale not in SCALES:
        raise MalformedReplyError(f"'scale' is not one of {', '.join(SCALES[1:])} or empty")
    return TatQAReply(answer=[*map(str, answer)] if isinstance(answer, list) else str(answer), scale=scale)


def _verdict(text: str, row: TatQARow) -> Rewards:
    try:
        reply = parse(text)
    except MalformedReplyError as error:
        parts = {**dict.fromkeys(_PARTS, 0.0), "format": 0.0}
        return Rewards(total=0.0, components=parts, explanation=f"No answer: {error}.")
    found = _score(row, reply.answer, reply.scale)
    parts = {"em": found.exact, "f1": found.f1, "scale": found.scale, "format": 1.0}
    return Rewards(total=found.exact, components=parts, explanation=_reason(found) or "Right.")


def _score(row: TatQARow, answer: Answer | Sequence[Answer] | None, scale: str) -> TatQAScore:
    truth = list(row.answer) if isinstance(row.answer, tuple) else row.answer
    return score(answer, scale, truth=truth, kind=row.kind, truth_scale=row.scale)


def _reason(found: TatQAScore) -> str:
    return "" if found.exact else f"Wrong: {'the answer' if found.scale else 'the scale'}."


def _predicted(uid: str, value: object) -> tuple[Any, str]:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], str | None) and _is_answer(value[0]):
        return value[0], value[1] or ""
    raise DataError(f"The prediction of {uid} is not [answer, scale].", remedy=_PREDICTIONS)


def _is_answer(value: object) -> bool:
    """Whether a value is a text, a number, None or a list of texts and numbers."""
    parts = value if isinstance(value, list) else [value] if value is not None else []
    return all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts)
