"""Imports original FinQA rows (arXiv 2109.00122) whose gold facts are only in the table."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from finqa_cli.data.data_problems import (
    ImportReport,
    Problem,
    ProblemError,
    as_data_error,
    finish_import,
    for_evaluation,
)
from finqa_cli.data.dataset import LINE_ITEM, Cell, DataSet, Question, SplitShares, Table, split_of
from finqa_cli.data.finqa.finqa_rows import LICENCE, SOURCE, FinqaRow, is_finqa, read_finqa_rows
from finqa_cli.data.own_tables.tables_import import reads_as_questions
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.grading import STRICT
from finqa_cli.types.splits import split_of_name

_CELL = re.compile(
    r"\$?\s*(?P<open>\()?\s*(?P<sign>-?)\s*\$?\s*(?P<number>\d[\d,]*(?:\.\d+)?|\.\d+)\s*(?(open)\)\s*)(?P<percent>%?)"
    r"(?:\s*\(\s*\$?\s*(?P<again>[\d,.]*)\s*%?\s*\))?"
)
_LONGEST_NUMBER = 80
_INTEGER_DIGITS = 18
"""Number of decimal digits that always fit into a signed 64-bit integer, as SQLite has."""

_STEP = re.compile(r"(?P<operation>[a-z_]+)\((?P<arguments>[^()]*)\)")
_HELP = "finqa data import finqa-json --help"
_TABLE_OPERATIONS = {
    "table_average": "average",
    "table_sum": "sum",
    "table_max": "lookup",
    "table_min": "lookup",
    "greater": "comparison",
    "subtract": "change",
    "divide": "ratio",
    "add": "sum",
}


def clean_cell(text: str) -> Cell:
    """Returns the value of a cell.

    It is a number for `$ 2457` or `-0.3 ( 0.3 )`, the text `6.4%` for `6.4% ( 6.4 % )`, and None for an empty cell. The
    data repeats negative numbers and percentages in brackets. Any other text is returned stripped.
    """
    stripped = text.strip()
    collapsed = " ".join(stripped.split())  # matching long runs of blanks would take very long
    match = _CELL.fullmatch(collapsed) if len(collapsed) <= _LONGEST_NUMBER else None
    if not match:
        return stripped or None
    number = match["number"].replace(",", "")
    again = (match["again"] or "").replace(",", "")
    if again and again != number:
        return stripped
    negative = "-" if match["sign"] or match["open"] else ""
    if match["percent"]:
        return f"{negative}{number}%"
    return int(negative + number) if number.isdigit() and len(number) <= _INTEGER_DIGITS else float(negative + number)


def safe_columns(header: Sequence[str]) -> tuple[str, ...]:
    """Returns unique column names of letters, digits and `_`: first `line_item`; `column_<place>` for a blank name."""
    names, taken = [LINE_ITEM], {LINE_ITEM}
    for place, text in enumerate(header[1:], start=2):
        plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or f"column_{place}"
        name, copy = plain, 2
        while name in taken:
            name, copy = f"{plain}_{copy}", copy + 1
        names.append(name)
        taken.add(name)
    return tuple(names)


def safe_name(text: str) -> str:
    """Returns a lower-case name that SQL accepts without quotes and that is a plain file name."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"c_{plain}"


def operations(program: str) -> list[str]:
    """Returns the operation of each step of a program, in order."""
    return [match["operation"] for match in _STEP.finditer(program)]


def question_type(program: str) -> str:
    """Returns the question type that a program suggests; empty for longer calculations."""
    names = operations(program)
    if names in (["subtract", "divide"], ["subtract", "divide", "multiply"]):
        return "growth_rate"
    if names in (["divide"], ["divide", "multiply"]):
        return "ratio"
    if len(names) > 1 and set(names[:-1]) == {"add"}:
        return "average" if names[-1] == "divide" else "sum" if names[-1] == "add" else ""
    return _TABLE_OPERATIONS.get(names[0], "") if len(names) == 1 else ""


def uses_only(program: str, rows: Sequence[Sequence[object]]) -> bool:
    """Returns whether each number of a program, except constants, is in a table; signs are ignored."""
    there = {value for row in rows for cell in row if (value := _magnitude(str(cell))) is not None}
    steps = list(_STEP.finditer(program))
    for match in steps:
        if match["operation"].startswith("table_"):
            continue
        for argument in match["arguments"].split(","):
            literal = argument.strip()
            if not literal.startswith(("#", "const_")) and _magnitude(literal) not in there:
                return False
    return bool(steps)


def _magnitude(text: str) -> float | None:
    try:
        return abs(float(text.strip().rstrip("%").replace(",", "")))
    except ValueError:
        return None


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
        files: `train.json`, `dev.json`, `test.json` of FinQA; JSONL and Parquet with the same fields are read too.
        skip_bad: Leave out malformed rows instead of failing.
        evaluation_only: Mark the data as not for training, and put all of it into the split `test`. None: only if a
            file is named like FinQA's test split.
        seed: Seed of the split.
        shares: Shares of the companies by split.

    Raises:
        DataError: A file or row is missing or malformed (file, row, field, reason), or no row qualifies.
    """
    importer = _Importer(seed, shares or SplitShares())
    problems: list[Problem] = []
    for path in files:
        try:
            for row in read_finqa_rows(path):
                importer.rows += 1
                if isinstance(row, Problem):
                    problems.append(row)
                elif row.id in importer.ids:
                    reason = f"{row.id!r} is in an earlier file too"
                    problems.append(Problem(file=str(path), row=row.number, field="id", reason=reason))
                else:
                    importer.add(row)
        except ProblemError as error:
            raise as_data_error([error.problem], remedy=_HELP) from error
    dataset = DataSet(
        tables=tuple(importer.tables.values()),
        questions=tuple(importer.questions),
        source=f"{SOURCE}: {', '.join(path.name for path in files)}",
        licence=LICENCE,
        grader=STRICT,
    )
    if evaluation_only is None:
        evaluation_only = any(split_of_name(path) == "test" for path in files)
    names = ", ".join(map(str, files))
    return finish_import(
        for_evaluation(dataset) if evaluation_only else dataset,
        rows=importer.rows,
        problems=problems,
        skipped=importer.skipped,
        skip_bad=skip_bad,
        nothing=f"None of the {importer.rows} rows of {names} can be answered from its table alone.",
        remedy=_remedy(files, importer.ids, problems),
    )


def _remedy(files: Sequence[Path], good: Collection[str], problems: Sequence[Problem]) -> str:
    """Returns the remedy for files none of whose rows becomes a question."""
    path = shlex.quote(str(problems[0].file if problems else files[0]))
    if good and not problems:
        return f"finqa data check {path} --for finqa-text"
    if not good and reads_as_questions(files[0]) and not _looks_like_finqa(files[0]):
        return f"finqa data import tables SOURCE --questions {path} --out DIR"
    return f"finqa data check {path}" if problems else _HELP


def _looks_like_finqa(path: Path) -> bool:
    return any(is_finqa(row[1]) for row in read_rows(path) if not isinstance(row, Problem))


class _Importer:
    def __init__(self, seed: int, shares: SplitShares) -> None:
        self.rows = 0
        self.ids: set[str] = set()
        self.tables: dict[tuple[str, str], Table] = {}
        self.questions: list[Question] = []
        self.skipped: Counter[str] = Counter()
        self._seed = seed
        self._shares = shares

    def add(self, row: FinqaRow) -> None:
        """Keeps the row, or counts it as skipped."""
        self.ids.add(row.id)
        if reason := _disqualified(row):
            self.skipped[reason] += 1
            return
        parts = [safe_name(part) for part in row.filename.removesuffix(".pdf").split("/")]
        company = parts[0]
        name = f"{company}_{'_'.join(part.removeprefix('c_') for part in parts[1:])}"
        self.questions.append(
            Question(
                id=row.id,
                company=company,
                question=row.question,
                user_query=row.question,
                answer=row.truth,
                split=split_of(company, self._seed, self._shares),
                type=question_type(row.program),
                explanation=row.program,
                table_name=self._table(company, name, row.table).name,
            )
        )

    def _table(self, company: str, name: str, cells: Sequence[Sequence[str]]) -> Table:
        """Returns the table of a page. If rows of a page have different tables, further ones get a number."""
        table = page_table(company, name, cells)
        copy = 2
        while (known := self.tables.setdefault((company, table.name), table)) != table:
            columns, rows, metadata = table.columns, table.rows, table.metadata
            table, copy = replace(known, name=f"{name}_{copy}", columns=columns, rows=rows, metadata=metadata), copy + 1
        return table


def page_table(company: str, name: str, cells: Sequence[Sequence[str]]) -> Table:
    """Returns the table of a page, whose header is the first row of `cells` [R][C]; numeric cells become numbers."""
    rows = tuple((row[0].strip(), *map(clean_cell, row[1:])) for row in cells[1:])
    metadata = {"title": " ".join(cells[0][0].split()), "columns": [" ".join(cell.split()) for cell in cells[0]]}
    return Table(company=company, name=name, columns=safe_columns(cells[0]), rows=rows, metadata=metadata)


def _disqualified(row: FinqaRow) -> str:
    if len(row.table) < 2:
        return "the table has a header only"
    if not row.filename:
        return "no filename, so no company"
    if row.facts and not all(fact.startswith("table_") for fact in row.facts):
        return "needs facts from the text"
    if not row.facts and not uses_only(row.program, [[clean_cell(cell) for cell in cells] for cells in row.table]):
        return "gold facts unknown, and the program uses numbers that are not in the table"
    return ""
