"""Imports a user's own tables and questions: `finqa data import tables`."""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import (
    ImportReport,
    Problem,
    ProblemError,
    as_data_error,
    finish_import,
    for_evaluation,
)
from finqa_cli.data.dataset import DataSet, Question, Table, named_tables, split_companies
from finqa_cli.data.own_tables.assign_companies import BadTable, Key, Tables, build_tables
from finqa_cli.data.own_tables.cell_numbers import Mark, proven_marks, read_number
from finqa_cli.data.own_tables.gold_queries import (
    GoldQueryError,
    answer_text,
    as_program_table,
    find_missing_column,
    program_query,
    run_gold_query,
    tables_of_query,
)
from finqa_cli.data.own_tables.import_options import FIELDS, ImportOptions
from finqa_cli.data.own_tables.table_cells import DecimalMark
from finqa_cli.data.own_tables.table_sources import Reading, find_tables, is_table_name
from finqa_cli.data.own_tables.text_tables import decode, separator_of
from finqa_cli.data.question_files.field_values import clean_name
from finqa_cli.data.question_files.question_rows import csv_rows, read_rows
from finqa_cli.data.question_files.read_files import read_bytes
from finqa_cli.data.table_findings import TableFinding, table_findings
from finqa_cli.data.worded_answers import ODD_ANSWERS, WORDED_ANSWERS, is_odd, is_worded
from finqa_cli.grading import STRICT
from finqa_cli.grading.openenv import grade
from finqa_cli.grading.programs import ProgramError, execute, parse
from finqa_cli.types.splits import SPLIT_NAMES

_HELP = "finqa data import tables --help"
_MISSPELLED = 0.82
"""Similarity (difflib) from which a column is a misspelled name: `awnser` has 0.83, but `answer_id` 0.80."""

GOLD = "gold"
"""Value of `DataSet.expert` if gold SQL, and nothing else, demonstrates the questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedSolution:
    """Gold SQL or a program that does not demonstrate its question. The question is kept without it.

    Attributes:
        id: Id of the question.
        row: Row of the file of questions.
        reason: Why the expert cannot play it.
    """

    id: str
    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesReport:
    """Outcome of an import of own tables.

    Attributes:
        report: The data set, with counts of rows and problems.
        rule: The company rule that was applied.
        conversions: What the import changed: kind, count, example.
        columns: Field -> column of the questions that it was read from.
        findings: What looks wrong in the tables.
        left_out: Tables that cannot be used and that no question needs.
        experts: Number of questions that the expert can solve.
        unused: Gold SQL and programs that are not used.
        not_read: Files of other kinds, and files of tables that no question names (rule `questions`).
    """

    report: ImportReport
    rule: str
    conversions: Sequence[Mapping[str, object]]
    columns: Mapping[str, str]
    findings: tuple[TableFinding, ...]
    left_out: tuple[Problem, ...]
    experts: int
    unused: tuple[UnusedSolution, ...]
    not_read: tuple[str, ...]


def import_tables(
    source: Path,
    questions: Path,
    options: ImportOptions,
    *,
    skip_bad: bool = False,
    strict: bool = False,
    leave_out: Sequence[Path] = (),
) -> TablesReport:
    """Converts a user's own tables and questions to a data set.

    Args:
        source: A folder of tables, the file of one table, or a SQLite or DuckDB file.
        questions: A CSV, JSON, JSONL or Parquet file.
        options: Columns of the questions, and where companies and splits come from.
        skip_bad: Leave out malformed tables and questions instead of failing.
        strict: Fail for findings, too, and for bad tables that no question needs.
        leave_out: Further files in the folder that are not tables.

    Raises:
        DataError: Something is missing or malformed (file, row, column, reason), or no question is left.
        UsageError: The company rule is unknown.
    """
    try:
        reading = Reading(options.header_rows, options.encoding, options.tables)
        found = find_tables(source, [questions, *leave_out], reading)
        asked = _Asked(questions, options.columns)
        keys = [asked.key(fields) for _, fields in asked.rows]
        tables = build_tables(found.tables, found.unread, keys, options)
    except ProblemError as error:
        raise as_data_error([error.problem], remedy=error.remedy or _HELP) from error
    importer = _Importer(asked, tables, options.cells.decimal)
    waiting = 0
    for number, fields in asked.rows:
        try:
            importer.add(number, fields)
        except _NeedsBadTableError as error:
            waiting += 1
            for bad in error.tables:
                bad.needed.append(number)
        except ProblemError as error:
            importer.problems.append(error.problem)
    needed = [_with_questions(bad) for bad in tables.bad if bad.needed]
    left_out = tuple(bad.problem for bad in tables.bad if not bad.needed)
    questions_kept = [question for question in importer.questions if question.gold_sql or not options.with_expert]
    skipped = Counter({"no gold SQL and no program that can be played": len(importer.questions) - len(questions_kept)})
    skipped["about tables that cannot be used"] = waiting
    dataset = DataSet(
        tables=tuple(tables.by_key.values()),
        questions=tuple(_with_splits(questions_kept, options)),
        source=options.source or source.resolve().name,
        licence=options.licence,
        expert=GOLD,
        grader=STRICT,
    )
    report = finish_import(
        for_evaluation(dataset) if options.evaluation_only else dataset,
        rows=len(asked.rows) + len(asked.problems),
        problems=[*needed, *(left_out if strict else ()), *asked.problems, *importer.problems],
        skipped=+skipped,
        skip_bad=skip_bad,
        nothing=f"There is no valid question in {questions}.",
        remedy=_HELP,
    )
    findings = tuple(table_findings(report.dataset.tables))
    if strict and findings:
        problems = [Problem(file=each.table, field=each.column, reason=f"{each.code}: {each}") for each in findings]
        raise as_data_error(problems, remedy="correct the tables, or import without --strict, which only warns")
    return TablesReport(
        report=report,
        rule=tables.rule,
        conversions=tables.found.document(),
        columns=asked.columns,
        findings=findings,
        left_out=left_out,
        experts=sum(bool(question.gold_sql) for question in importer.questions),
        unused=tuple(importer.unused),
        not_read=(*found.ignored, *tables.unused),
    )


class _NeedsBadTableError(Exception):
    """A question needs a table that cannot be used."""

    def __init__(self, tables: Sequence[BadTable]) -> None:
        super().__init__(", ".join(str(table.problem) for table in tables))
        self.tables = tables


def _with_questions(bad: BadTable) -> Problem:
    rows = bad.needed
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return replace(bad.problem, reason=f"{bad.problem.reason} (needed by the question in row {rows[0]}{more})")


def reads_as_questions(path: Path) -> bool:
    """Returns whether a file can be given as the questions: every row is readable, and the columns are known."""
    try:
        return not _Asked(path, {}).problems
    except ProblemError:
        return False


class _Asked:
    """The rows of a file of questions, and the column of each field.

    Raises:
        ProblemError: The file is unreadable or contains no question, or a column does not exist or is missing.
    """

    def __init__(self, path: Path, chosen: Mapping[str, str]) -> None:
        self.path = path
        self.rows: list[tuple[int, dict[str, object]]] = []
        self.problems: list[Problem] = []
        for item in _rows(path):
            if isinstance(item, Problem):
                self.problems.append(item)
            else:
                self.rows.append(item)
        names = {name for _, fields in self.rows for name in _flat(fields)}
        if not self.rows and not self.problems:
            raise ProblemError(Problem(file=str(path), reason="it contains no question"))
        self.columns: dict[str, str] = {}
        for field, column in chosen.items():
            if column not in names:
                near = difflib.get_close_matches(column, sorted(names), n=1)
                hint = f"; near it: {near[0]}" if near else f"; the columns are {', '.join(sorted(names))[:300]}"
                reason = f"this column does not exist, for `{field}`{hint}"
                raise ProblemError(Problem(file=str(path), field=column, reason=reason))
            self.columns[field] = column
        folded = {name.casefold(): name for name in sorted(names, reverse=True)}
        for field, known in FIELDS.items():
            shown = next((name if name in names else folded[name] for name in known if name in folded), "")
            if field not in self.columns and shown and shown != self.columns.get("question"):
                self.columns[field] = shown  # `query` is the SQL, as in Spider, or the question if there is no other
        for field in ("question", "answer"):
            misspelled = self._near(field, names) if field not in self.columns else ""
            if misspelled or (self.rows and field == "question" and field not in self.columns):
                hint = f"near it: {misspelled}" if misspelled else f"the columns are {', '.join(sorted(names))[:300]}"
                reason = f"no column for the {field} was found; {hint}"
                remedy = f"--column {field}={shlex.quote(misspelled) if misspelled else 'NAME'}"
                raise ProblemError(Problem(file=str(path), reason=reason), remedy=remedy)
        if self.rows and not {"answer", "sql", "program"} & set(self.columns):
            reason = (
                f"there is no column of answers, gold SQL or programs; the columns are {', '.join(sorted(names))[:300]}"
            )
            raise ProblemError(Problem(file=str(path), reason=reason), remedy="--column answer=NAME")

    def _near(self, field: str, names: Set[str]) -> str:
        """Returns the column that may be a misspelled name of a field; empty if there is none."""
        free = sorted(names - set(self.columns.values()))
        near = (difflib.get_close_matches(known, free, n=1, cutoff=_MISSPELLED) for known in FIELDS[field])
        return next((found[0] for found in near if found), "")

    def key(self, fields: Mapping[str, object]) -> Key:
        """Returns company and first table as a row names them; each is empty if the row does not name it."""
        return self.text(fields, "company"), next(iter(self.tables(fields)), "")

    def text(self, fields: Mapping[str, object], field: str) -> str:
        """Returns a field as a text without blanks around it; empty where it is missing."""
        value = _value(fields, self.columns.get(field, ""))
        if isinstance(value, bool):
            return "Yes" if value else "No"
        if isinstance(value, list | dict):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, int | float):
            return answer_text(value) if math.isfinite(value) else ""  # NaN is an empty cell of a data frame
        return "" if value is None else str(value).strip()

    def tables(self, fields: Mapping[str, object]) -> tuple[str, ...]:
        """Returns the tables that a row names: one, or a list."""
        return named_tables(self.text(fields, "table"))

    def problem(self, number: int, field: str, reason: str) -> ProblemError:
        """Returns the error for a field of a row."""
        return ProblemError(
            Problem(file=str(self.path), row=number, field=self.columns.get(field, field), reason=reason)
        )


def _rows(path: Path) -> Iterator[tuple[int, dict[str, object]] | Problem]:
    if path.suffix.lower() not in (".csv", ".tsv"):
        yield from read_rows(path)
        return
    separator = separator_of(decode(path, read_bytes(path))[0].removeprefix("\ufeff"))
    for item in csv_rows(path, separator=separator):
        yield item if isinstance(item, Problem) else (item[0], dict(item[1]))


def _flat(fields: Mapping[str, object]) -> list[str]:
    inner = [f"{name}.{key}" for name, value in fields.items() if isinstance(value, dict) for key in value]
    return [*fields, *inner]


def _value(fields: Mapping[str, object], column: str) -> Any:
    if column in fields:
        return fields[column]
    name, _, key = column.partition(".")
    inner = fields.get(name)
    return inner.get(key) if isinstance(inner, dict) else None


class _Importer:
    """Turns rows into questions."""

    def __init__(self, asked: _Asked, tables: Tables, decimal: DecimalMark) -> None:
        self._decimal = _answer_mark(asked, tables) if decimal == "auto" else decimal
        self.questions: list[Question] = []
        self.problems: list[Problem] = []
        self.unused: list[UnusedSolution] = []
        self._asked = asked
        self._tables = tables
        self._ids: set[str] = set()
        self._companies: dict[str, dict[str, Table]] = {}
        for (company, name), table in tables.by_key.items():
            self._companies.setdefault(company, {})[name] = table

    def add(self, number: int, fields: Mapping[str, object]) -> None:
        """Adds the question of a row.

        Raises:
            ProblemError: A field is missing or malformed, or its gold SQL or program has no result.
        """
        asked = self._asked
        text = asked.text(fields, "question")
        if not text:
            raise asked.problem(number, "question", "must not be empty")
        identity = asked.text(fields, "id") or f"q{number:05d}"
        if identity in self._ids:
            raise asked.problem(number, "id", f"{identity!r} occurs twice")
        company = self._company(number, fields)
        split = asked.text(fields, "split").lower()
        if split and split not in SPLIT_NAMES:
            raise asked.problem(number, "split", f"{split!r} is not one of train, dev, test")
        names = [self._table(number, company, name) for name in asked.tables(fields)]
        if not names and not asked.text(fields, "sql"):
            self._refuse_if_bad(company)
        answer, names, query, unused = self._solution(number, fields, company, names)
        if unused:
            self.unused.append(UnusedSolution(id=identity, row=number, reason=unused))
        if is_worded(answer):
            self._tables.found.add(WORDED_ANSWERS, f"{asked.path} row {number}", answer)
        elif is_odd(answer):
            self._tables.found.add(ODD_ANSWERS, f"{asked.path} row {number}", answer)
        self._ids.add(identity)
        self.questions.append(
            Question(
                id=identity,
                company=company,
                question=text,
                user_query=text,
                answer=answer,
                split=SPLIT_NAMES[split] if split else "",
                type=asked.text(fields, "type"),
                explanation=asked.text(fields, "explanation"),
                table_name=names[0] if len(names) == 1 else json.dumps(names) if names else "",
                gold_sql=query,
            )
        )

    def _company(self, number: int, fields: Mapping[str, object]) -> str:
        given = self._asked.text(fields, "company")
        if not given:
            owners = {
                company
                for company, tables in self._companies.items()
                for name in self._asked.tables(fields)
                if name in tables
            }
            known = owners or set(self._companies)
            if len(known) == 1:
                return known.pop()
            raise self._asked.problem(number, "company", "must not be empty: there are tables of several companies")
        if given in self._companies:
            return given
        folded = {given.casefold(), clean_name(given).casefold()}
        same = [company for company in self._companies if company.casefold() in folded]
        if len(same) == 1:
            return same[0]
        if not same:
            self._refuse_if_bad(given)
        near = difflib.get_close_matches(given, sorted(self._companies), n=1)
        hint = f"; near it: {near[0]!r}" if near else ""
        raise self._asked.problem(number, "company", f"there are no tables of {given!r}{hint}")

    def _table(self, number: int, company: str, given: str) -> str:
        tables = self._companies[company]
        if (company, given.casefold()) in self._tables.ambiguous:
            reason = f"several tables of {company!r} have the name {given!r}; rename their files or sheets"
            raise self._asked.problem(number, "table", reason)
        if given in tables:
            return given
        plain = Path(given).stem if is_table_name(given) else given
        folded = {given.casefold(), plain.casefold(), clean_name(given).casefold()}
        for known in (lambda name: (name,), lambda name: self._tables.inner[company, name]):
            same = [name for name in tables if folded & {each.casefold() for each in known(name)}]
            if len(same) == 1:
                return same[0]
        self._refuse_if_bad(company, given)
        near = difflib.get_close_matches(given, sorted(tables), n=1)
        names = [*near, *sorted(tables.keys() - set(near))]
        reason = f"{company!r} has no table {given!r}; it has: {', '.join(names)[:300]}"
        raise self._asked.problem(number, "table", reason)

    def _refuse_if_bad(self, company: str, name: str = "", query: str = "") -> None:
        """Raises a _NeedsBadTableError if a question about this company and table, or with this SQL, needs one."""
        bad = [table for table in self._tables.bad if table.may_be(company, name)]
        if query:
            bad = [table for table in bad if not table.name or table.name.casefold() in query.casefold()]
        if bad:
            raise _NeedsBadTableError(bad)

    def _solution(
        self, number: int, fields: Mapping[str, object], company: str, names: list[str]
    ) -> tuple[str, list[str], str, str]:
        """Returns answer, tables, gold query (each empty if unknown), and why the gold SQL or program is not used."""
        asked, found = self._asked, self._tables.found
        answer, query, program = (asked.text(fields, field) for field in ("answer", "sql", "program"))
        if self._decimal == "," and read_number(answer, ","):
            answer = answer.translate({ord("."): None, ord(","): "."})  # graders read numbers with a point
        result = unused = ""
        if query:
            names, result = self._run(number, company, names, query, answer)
        elif program:
            result, query = self._of_program(number, program, company, names)
            unused = "" if query else "the program cannot be executed on the tables"
        if not answer and not result:
            missing = "must not be empty" if "answer" in asked.columns else "no column for the answer was found"
            raise asked.problem(number, "answer", f"{missing}: there is neither an answer nor gold SQL nor a program")
        if answer and result and not grade(result, answer).reward:
            kind = "gold SQL" if asked.text(fields, "sql") else "programs"
            place = f"{asked.path} row {number}"
            hint = " (SQLite divides whole numbers without a fraction: use 1.0 * a / b)" if "/" in query else ""
            found.add(f"{kind} whose value is not the answer, skipped", place, answer, f"{result}{hint}")
            written = "gold SQL" if asked.text(fields, "sql") else "program"
            unused = f"the {written} returns {result!r}{hint}, but the answer is {answer!r}"
            query = ""
        return answer or result, names, query, unused

    def _run(self, number: int, company: str, names: list[str], query: str, answer: str) -> tuple[list[str], str]:
        """Runs gold SQL on the tables of the row. If there are none, tries each table in the query, then all of them.

        A name that is no column, which SQLite reads as a text, is an error unless the query returns the answer.

        Returns:
            The tables that the query ran on, and its result.

        Raises:
            ProblemError: The query has no result on any of them.
        """
        tables = self._companies[company]
        written = tables_of_query(query, tables)
        tries = [names] if names else [*([name] for name in written), *([written] if len(written) > 1 else [])]
        reason = f"names no table of {company!r}: {', '.join(sorted(tables))[:200]}"
        for chosen in tries:
            try:
                result = answer_text(run_gold_query([tables[name] for name in chosen], query))
            except GoldQueryError as error:
                reason = str(error)
                continue
            right = bool(answer) and grade(result, answer).reward > 0
            if right or not (reason := find_missing_column([tables[name] for name in chosen], query)):
                return chosen, result
        self._refuse_if_bad(company, query=query)
        raise self._asked.problem(number, "sql", reason)

    def _of_program(self, number: int, text: str, company: str, names: list[str]) -> tuple[str, str]:
        """Returns the result of a FinQA program, and the query that computes it where it can be written."""
        try:
            program = parse(text)
            tables = [self._companies[company][name] for name in names]
            if len(tables) != 1 and any(step.reads_table for step in program.steps):
                raise self._asked.problem(number, "table", "must name the one table that the program reads")
            result = answer_text(execute(program, as_program_table(tables[0]) if tables else []))
        except ProgramError as error:
            raise self._asked.problem(number, "program", f"has no result: {error}") from error
        for table in tables or self._companies[company].values():
            try:
                query = program_query(program, table)
                if grade(answer_text(run_gold_query([table], query)), result).reward:
                    if not names:
                        names.append(table.name)
                    return result, query
            except GoldQueryError:
                continue
        self._tables.found.add(
            "programs that cannot be executed on the tables, so there is no expert",
            f"{self._asked.path} row {number}",
            text,
        )
        return result, ""


def _answer_mark(asked: _Asked, tables: Tables) -> Mark:
    """Returns the comma if answers prove it as their decimal mark, none the point, and tables have it as well."""
    answers = {asked.text(fields, "answer") for _, fields in asked.rows}
    return "," if proven_marks(answers) == {","} and "decimal commas" in tables.found.counts else "."


def _with_splits(questions: Sequence[Question], options: ImportOptions) -> list[Question]:
    """Returns the questions, each with the split that it names, else with the split of its company."""
    named = {question.company: question.split for question in questions if question.split}
    unknown = [question.company for question in questions if question.company not in named]
    by_company = {**split_companies(list(dict.fromkeys(unknown)), options.seed, options.shares), **named}
    return [replace(question, split=question.split or by_company[question.company]) for question in questions]
