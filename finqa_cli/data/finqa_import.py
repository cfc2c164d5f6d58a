"""Imports original FinQA rows (arXiv 2109.00122) whose gold facts lie only in the table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finqa_cli.data.dataset import DataSet, Question, SplitShares, Table
from finqa_cli.data.finqa_cells import clean_cell, question_type, safe_columns, safe_name, uses_only
from finqa_cli.data.problems import Problem, ProblemError, as_data_error
from finqa_cli.data.reader import split_of
from finqa_cli.data.table_files import read_json
from finqa_cli.errors import DataError

_LICENCE = "MIT, Copyright (c) 2021 Zhiyu Chen"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of the rows.

    Attributes:
        rows: How many there were.
        kept: How many became questions.
        skipped: How many did not qualify, by reason.
        problems: Malformed rows that were left out.
    """

    dataset: DataSet
    rows: int
    kept: int
    skipped: Mapping[str, int]
    problems: tuple[Problem, ...]


def import_finqa_json(
    files: Sequence[Path],
    *,
    skip_bad: bool = False,
    evaluation_only: bool | None = None,
    seed: int = 0,
    shares: SplitShares | None = None,
) -> ImportReport:
    """Turns FinQA files into a data set: the company is the ticker, each filing page is one table.

    The truth is `exe_ans`. Splits are by company.

    Args:
        files: `train.json`, `dev.json`, `test.json` of FinQA.
        skip_bad: Leave out malformed rows instead of failing.
        evaluation_only: Mark the data as not for training, and put all of it into the split `test`; by default exactly
            when a file is called `test.json`.
        seed: Of the split.
        shares: Of the companies by split.

    Raises:
        DataError: A file or row is missing or malformed (file, row, field, reason), or no row qualifies.
    """
    if evaluation_only is None:
        evaluation_only = any(path.name == "test.json" for path in files)
    everything_test = SplitShares(train=0.0, dev=0.0, test=1.0)
    importer = _Importer(seed, everything_test if evaluation_only else shares or SplitShares())
    problems: list[Problem] = []
    for path in files:
        try:
            for number, row in enumerate(_rows(path), start=1):
                importer.rows += 1
                try:
                    importer.add(str(path), number, row)
                except ProblemError as error:
                    problems.append(error.problem)
        except ProblemError as error:
            raise as_data_error([error.problem], remedy="finqa data import finqa-json FILE... --out DIR") from error
    if problems and not skip_bad:
        raise as_data_error(problems, remedy="--skip-bad leaves such rows out")
    if not importer.questions:
        names = ", ".join(map(str, files))
        raise DataError(f"None of the {importer.rows} rows of {names} can be answered from its table alone.")
    dataset = DataSet(
        tables=tuple(importer.tables.values()),
        questions=tuple(importer.questions),
        source=f"FinQA (arXiv 2109.00122): {', '.join(path.name for path in files)}",
        licence=_LICENCE,
        evaluation_only=evaluation_only,
    )
    return ImportReport(
        dataset=dataset,
        rows=importer.rows,
        kept=len(importer.questions),
        skipped=dict(sorted(importer.skipped.items())),
        problems=tuple(problems),
    )


class _Importer:
    def __init__(self, seed: int, shares: SplitShares) -> None:
        self.rows = 0
        self.tables: dict[tuple[str, str], Table] = {}
        self.questions: list[Question] = []
        self.skipped: Counter[str] = Counter()
        self._ids: set[str] = set()
        self._seed = seed
        self._shares = shares

    def add(self, file: str, number: int, row: object) -> None:
        """Keeps the row, counts it as skipped, or raises its problem."""
        reader = _RowReader(file, number, row)
        identity = reader.text("id")
        if identity in self._ids:
            raise reader.problem("id", f"{identity!r} comes twice")
        self._ids.add(identity)
        question, program, answer = reader.text("qa.question"), reader.text("qa.program"), reader.answer()
        cells = reader.table()
        if reason := self._disqualified(reader, program, cells):
            self.skipped[reason] += 1
            return
        parts = [safe_name(part) for part in reader.text("filename").removesuffix(".pdf").split("/")]
        company = parts[0]
        table = self._table(company, f"{company}_{'_'.join(part.removeprefix('c_') for part in parts[1:])}", cells)
        self.questions.append(
            Question(
                id=identity,
                company=company,
                question=question,
                user_query=question,
                answer=answer,
                split=split_of(company, self._seed, self._shares),
                type=question_type(program),
                explanation=program,
                table_name=table.name,
            )
        )

    def _disqualified(self, reader: _RowReader, program: str, cells: list[list[str]]) -> str:
        facts = reader.facts()
        if len(cells) < 2:
            return "the table has a header only"
        if reader.get("filename") is None:
            return "no filename, so no company"
        if facts and not all(fact.startswith("table_") for fact in facts):
            return "needs facts from the text"
        if not facts and not uses_only(program, [[clean_cell(cell) for cell in row] for row in cells]):
            return "gold facts unknown, and the program uses numbers that are not in the table"
        return ""

    def _table(self, company: str, name: str, cells: list[list[str]]) -> Table:
        """The page's table; should a page come with different tables, each further one gets a number."""
        columns = safe_columns(cells[0])
        rows = tuple((row[0].strip(), *map(clean_cell, row[1:])) for row in cells[1:])
        metadata = {"title": " ".join(cells[0][0].split()), "columns": [" ".join(cell.split()) for cell in cells[0]]}
        table = Table(company=company, name=name, columns=columns, rows=rows, metadata=metadata)
        copy = 2
        while (known := self.tables.setdefault((company, table.name), table)) != table:
            table, copy = replace(known, name=f"{name}_{copy}", columns=columns, rows=rows, metadata=metadata), copy + 1
        return table


class _RowReader:
    """Takes fields out of one row; whatever is wrong is a problem with file, row and field."""

    def __init__(self, file: str, number: int, row: object) -> None:
        self._file = file
        self._number = number
        if not isinstance(row, dict):
            raise self.problem("", "must be an object")
        self._row: dict[str, object] = row

    def problem(self, field: str, reason: str) -> ProblemError:
        return ProblemError(Problem(file=self._file, row=self._number, field=field, reason=reason))

    def get(self, field: str) -> object:
        value: object = self._row
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(self, field: str) -> str:
        value = self.get(field)
        if field == "filename" and value is None:
            return ""
        if not isinstance(value, str) or not value.strip():
            raise self.problem(field, "must be a text that is not empty")
        return value.strip()

    def answer(self) -> str:
        value = self.get("qa.exe_ans")
        if isinstance(value, str) and value.lower() in ("yes", "no"):
            return value.capitalize()
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.problem("qa.exe_ans", "must be a number, yes or no")
        return str(int(value)) if float(value).is_integer() else repr(value)

    def facts(self) -> list[str]:
        value = self.get("qa.gold_inds")
        if value is None or isinstance(value, dict):
            return list(value or ())
        raise self.problem("qa.gold_inds", "must be an object")

    def table(self) -> list[list[str]]:
        value = self.get("table")
        if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
            raise self.problem("table", "must be a list of rows that are not empty")
        for place, row in enumerate(value, start=1):
            if len(row) != len(value[0]):
                raise self.problem("table", f"ragged: row {place} has {len(row)} cells, the header has {len(value[0])}")
            if not all(isinstance(cell, str) for cell in row):
                raise self.problem("table", f"row {place} holds a cell that is not a text")
        return value


def _rows(path: Path) -> Iterable[object]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise ProblemError(Problem(file=str(path), reason="must be a list of rows"))
    return rows
