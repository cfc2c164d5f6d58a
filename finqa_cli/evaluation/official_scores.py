"""Scores files of predictions as published evaluation scripts do: figures with intervals, a reason per prediction."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import AnswerJudge, Environment, ScoredPrediction, ScoredPredictions
from finqa_cli.data.data_problems import ProblemError, as_data_error
from finqa_cli.data.dataset import Question
from finqa_cli.data.openenv_layout.layout_reader import read_layout
from finqa_cli.data.question_files.read_files import read_json
from finqa_cli.errors import DataError
from finqa_cli.grading import Profile, Verdict, grade
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.statistics.intervals import Interval, clustered_interval

ENVIRONMENTS: Mapping[str, str] = {"finqa": "finqa-text", "convfinqa": "convfinqa", "tatqa": "tatqa"}
"""Metric -> environment that reads the truths and scores predictions; `openenv` needs none."""

METRICS = (*ENVIRONMENTS, "openenv")
_OPENENV = 'the format is {"ID": answer, ...}, or rows with id and answer'


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialScores:
    """The figures of a file of predictions.

    Attributes:
        metric: One of `METRICS`.
        figures: Mean of each measure over the rows, from 0 to 1, with its 95 % interval clustered by company or page.
        scored: The rows.
    """

    metric: str
    figures: Mapping[str, Interval]
    scored: ScoredPredictions


def score_file(
    metric: str,
    predictions: Path,
    truth: Path,
    environment: Environment | None,
    *,
    grader: Profile = "openenv",
    judge: AnswerJudge | None = None,
) -> OfficialScores:
    """Score a file of predictions.

    Args:
        metric: One of `METRICS`.
        predictions: JSON or JSONL file, in the form that the official script of the metric reads.
        truth: File or folder of the data set.
        environment: Environment of the metric, opened on the truth; None for `openenv`.
        grader: Profile that grades answers of `openenv`.
        judge: Judges the answers of `openenv` that the profile cannot read.

    Raises:
        DataError: A file is missing or malformed, or no prediction belongs to a question of the data.
        EnvironmentFault: The judge failed. Its verdicts so far are kept, and the same call continues with them.
    """
    document = _read(predictions)
    if environment is None:
        scored = asyncio.run(_answers(document, truth, grader, judge))
    else:
        scored = environment.score_predictions(document)
    if not scored.known:
        reason = f"No prediction of {predictions} belongs to a question of {truth}."
        raise DataError(reason, remedy="compare their ids, and name another --truth")
    rows = scored.rows
    clusters = [row.cluster for row in rows]
    figures = {name: clustered_interval([row.figures[name] for row in rows], clusters) for name in rows[0].figures}
    return OfficialScores(metric=metric, figures=figures, scored=scored)


def _read(path: Path) -> object:
    try:
        return list(read_jsonl(path)) if path.suffix == ".jsonl" else read_json(path)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy="correct it, or name another file") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.", remedy="name another file") from error


async def _answers(predictions: object, truth: Path, grader: Profile, judge: AnswerJudge | None) -> ScoredPredictions:
    """Score answers by a grader of the `finqa` environment; questions without a prediction are wrong.

    With a judge the figure `accuracy by strict` is that of the profile alone.
    """
    if isinstance(predictions, list) and all(isinstance(row, dict) and "id" in row for row in predictions):
        predictions = {str(row["id"]): row.get("answer") for row in predictions}
    if not isinstance(predictions, dict):
        raise DataError("The predictions are neither an object nor rows.", remedy=_OPENENV)
    answers = {str(identity): answer for identity, answer in predictions.items()}
    questions = read_layout(truth).questions

    async def scored(question: Question) -> ScoredPrediction:
        answer = answers.get(question.id, "")
        verdict = grade(answer, question.answer, grader, question.user_query)
        figures, judged = {"accuracy": verdict.reward}, ""
        if judge is not None:
            figures["accuracy by strict"] = verdict.reward
            if not verdict.readable and (text := str(answer or "").strip()):
                found = await judge.judge(question=question.user_query, truth=question.answer, answer=text)
                word = "right" if found.right else "wrong"
                figures["accuracy"], judged = float(found.right), f"{judge.name} judges it {word}: {found.reason}"
        return ScoredPrediction(
            id=question.id,
            cluster=question.company,
            figures=figures,
            reason=judged or _reason(verdict, given=question.id in answers),
        )

    tasks = [asyncio.create_task(scored(question)) for question in questions]
    try:
        rows = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if judge is not None:
            await judge.close()
    found = len({question.id for question in questions} & answers.keys())
    return ScoredPredictions(
        rows=rows,
        known=found,
        missing=len(questions) - found,
        unknown=len(answers) - found,
    )


def _reason(verdict: Verdict, *, given: bool) -> str:
    if verdict.reward == 1:
        return ""
    return verdict.explanation if given else "There is no prediction."
