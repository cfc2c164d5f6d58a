"""What an import of foreign data gives: the data set, and what became of every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from finqa_cli.data.data_problems import Problem, as_data_error
from finqa_cli.data.dataset import DataSet
from finqa_cli.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of the rows.

    Attributes:
        rows: How many there were.
        kept: How many became questions.
        skipped: What did not qualify, by reason.
        problems: What was malformed and left out.
    """

    dataset: DataSet
    rows: int
    kept: int
    skipped: Mapping[str, int]
    problems: tuple[Problem, ...]


def finished(
    dataset: DataSet,
    *,
    rows: int,
    problems: Sequence[Problem],
    skipped: Mapping[str, int],
    skip_bad: bool,
    nothing: str,
) -> ImportReport:
    """The report of an import.

    Raises:
        DataError: Something was malformed and `skip_bad` is not set, or no question is left (`nothing` says why).
    """
    if problems and not skip_bad:
        raise as_data_error(problems, remedy="--skip-bad leaves such rows out")
    if not dataset.questions:
        raise DataError(nothing, remedy="finqa data check PATH")
    return ImportReport(
        dataset=dataset,
        rows=rows,
        kept=len(dataset.questions),
        skipped=dict(sorted(skipped.items())),
        problems=tuple(problems),
    )


def for_evaluation(dataset: DataSet) -> DataSet:
    """The data set marked as not for training, with every question in the split `test`."""
    questions = tuple(replace(question, split="test") for question in dataset.questions)
    return replace(dataset, questions=questions, evaluation_only=True)
