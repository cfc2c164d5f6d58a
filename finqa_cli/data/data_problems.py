"""Problems of data files, and the report of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finqa_cli.data.dataset import DataSet
from finqa_cli.errors import DataError

_LISTED = 20
"""Problems that an error message lists below the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One bad row or file.

    Attributes:
        file: Path as the user knows it.
        row: Line of a CSV file (the header is 1), or place in a list, counted from 1; 0 for the file as a whole.
        field: Column or key; may be empty.
    """

    file: str
    reason: str
    row: int = 0
    field: str = ""

    def __str__(self) -> str:
        row = f", row {self.row}" if self.row else ""
        field = f", field {self.field!r}" if self.field else ""
        return f"{self.file}{row}{field}: {self.reason}"

    def document(self) -> dict[str, Any]:
        """Returns a JSON object; an unknown row or field is null."""
        return {"file": self.file, "row": self.row or None, "field": self.field or None, "reason": self.reason}


class ProblemError(Exception):
    """Carries a problem, and its remedy if it has a specific one, to the caller that decides how to handle it."""

    def __init__(self, problem: Problem, *, remedy: str = "") -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.remedy = remedy


def as_data_error(problems: Sequence[Problem], *, remedy: str = "") -> DataError:
    """Returns the problems as an error: the first one with the number of the others, which are listed below it."""
    rest = problems[1:]
    more = f" ({len(rest)} more problem{'s' * (len(rest) != 1)})" if rest else ""
    lines = [f"{problems[0]}{more}", *(f"  {problem}" for problem in rest[:_LISTED])]
    lines += [f"  and {len(rest) - _LISTED} more: --json lists all"] if len(rest) > _LISTED else []
    error = DataError("\n".join(lines), remedy=remedy)
    error.problems = [problem.document() for problem in problems]
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Outcome of the rows of an import.

    Attributes:
        rows: Number of rows that were read.
        kept: Number of rows that became questions.
        skipped: Number of rows that did not qualify, by reason.
        problems: Malformed rows that were left out.
    """

    dataset: DataSet
    rows: int
    kept: int
    skipped: Mapping[str, int]
    problems: tuple[Problem, ...]


def finish_import(
    dataset: DataSet,
    *,
    rows: int,
    problems: Sequence[Problem],
    skipped: Mapping[str, int],
    skip_bad: bool,
    nothing: str,
    remedy: str,
) -> ImportReport:
    """Returns the report of an import.

    Raises:
        DataError: Something was malformed and `skip_bad` is not set, or no question is left: `nothing` gives the
            reason, and `remedy` what to do about it.
    """
    if problems and not skip_bad:
        raise as_data_error(
            problems, remedy="correct them, or --skip-bad, which skips them" if dataset.questions else remedy
        )
    if not dataset.questions:
        raise DataError(nothing, remedy=remedy)
    return ImportReport(
        dataset=dataset,
        rows=rows,
        kept=len(dataset.questions),
        skipped=dict(sorted(skipped.items())),
        problems=tuple(problems),
    )


def for_evaluation(dataset: DataSet) -> DataSet:
    """Returns the data set marked as not for training, with every question in the split `test`."""
    questions = tuple(replace(question, split="test") for question in dataset.questions)
    return replace(dataset, questions=questions, evaluation_only=True)
