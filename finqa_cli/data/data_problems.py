"""What is wrong with a data file, in a form that both errors and counts are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finqa_cli.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One bad row or file.

    Attributes:
        file: Path as the user knows it.
        row: Line of a CSV file (the header is 1), or place in a JSON list from 1; 0 for the file as a whole.
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
        """For JSON; what is not known is null."""
        return {"file": self.file, "row": self.row or None, "field": self.field or None, "reason": self.reason}


class ProblemError(Exception):
    """Carries a problem from where it is found to where it is decided what to do about it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def as_data_error(problems: Sequence[Problem], *, remedy: str = "") -> DataError:
    """The first problem as an error, and how many more there are."""
    more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
    return DataError(f"{problems[0]}{more}", remedy=remedy)
