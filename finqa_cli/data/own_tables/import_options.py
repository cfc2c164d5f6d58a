"""Options of an import of a user's own tables: columns of the questions, companies of the tables, splits."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.dataset import SplitShares
from finqa_cli.data.own_tables.table_cells import CellRules
from finqa_cli.data.own_tables.table_region import MOST_HEADER_ROWS
from finqa_cli.data.own_tables.table_sources import TableRules
from finqa_cli.data.question_files.read_files import read_text
from finqa_cli.documents import parse_toml
from finqa_cli.errors import UsageError

FIELDS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "question_id", "qid", "uid"),
    "question": ("question", "user_query", "query", "prompt", "text", "qa.question"),
    "company": ("company", "company_name", "ticker", "db_id"),
    "table": ("table", "table_name", "tables"),
    "answer": ("exe_ans", "qa.exe_ans", "answer", "gold_answer", "ground_truth", "target_answer", "qa.answer"),
    "sql": ("gold_sql", "sql", "gold_query", "query"),
    "program": ("program", "target_program", "gold_program", "qa.program"),
    "split": ("split",),
    "type": ("question_type", "type", "kind"),
    "explanation": ("explanation",),
}
"""Field of a question -> names of columns that are recognised, the first that exists, unless the user chooses a column.

Upper and lower case are the same. `qa.x` is the key `x` of an object `qa`."""

COMPANY_RULES = ("auto", "folder", "file", "questions", "column:NAME", "prefix:SEPARATOR", "name:NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How a source is read.

    Attributes:
        columns: Column of the questions by field, a key of `FIELDS`.
        header_rows: Lines of each header in CSV and HTML files and workbooks; 0: as the cells show.
        encoding: Encoding of CSV and HTML files; empty: by their bytes.
        tables: What is set for single tables, by `company/table` or name of the table.
        company: The rule that gives each table its company; see `COMPANY_RULES`.
        cells: How cells are read.
        seed: Seed of the split by company, for questions without one.
        shares: Shares of the companies by split.
        with_expert: Keep only questions that the expert can play.
        evaluation_only: Mark the data as for evaluation only.
        source: Where the data comes from, in words; empty for the name of the source.
        licence: Licence of the data.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    header_rows: int = 0
    encoding: str = ""
    tables: Mapping[str, TableRules] = field(default_factory=dict)
    company: str = "auto"
    cells: CellRules = field(default_factory=CellRules)
    seed: int = 0
    shares: SplitShares = field(default_factory=SplitShares)
    with_expert: bool = False
    evaluation_only: bool = False
    source: str = ""
    licence: str = "unknown"


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the settings of a TOML file: `company`, `decimal`, `percent`, ..., and the table `[columns]`.

    Raises:
        ProblemError: It is not a TOML file, or has an unknown key or a wrong value.
    """
    try:
        given = parse_toml(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ProblemError(Problem(file=str(path), reason=f"is not valid TOML: {error}")) from error
    known = {
        "company": str,
        "decimal": str,
        "percent": str,
        "dates": str,
        "dash": str,
        "convert": bool,
        "columns": dict,
    }
    known |= {
        "header_rows": int,
        "encoding": str,
        "tables": dict,
        "seed": int,
        "splits": str,
        "evaluation_only": bool,
        "with_expert": bool,
        "source": str,
        "licence": str,
    }
    for name, value in given.items():
        if name not in known:
            raise ProblemError(Problem(file=str(path), field=name, reason=f"is not known; known: {', '.join(known)}"))
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            what = {str: "a text", bool: "true or false", int: "a whole number", dict: "a table"}[known[name]]
            raise ProblemError(Problem(file=str(path), field=name, reason=f"must be {what}"))
    if not 1 <= given.get("header_rows", 1) <= MOST_HEADER_ROWS:
        reason = f"must be from 1 to {MOST_HEADER_ROWS}"
        raise ProblemError(Problem(file=str(path), field="header_rows", reason=reason))
    for name, rules in given.get("tables", {}).items():
        _check_rules(path, name, rules)
    for name, column in given.get("columns", {}).items():
        if name not in FIELDS:
            reason = f"is not a field of a question; fields: {', '.join(FIELDS)}"
            raise ProblemError(Problem(file=str(path), field=f"columns.{name}", reason=reason))
        if not isinstance(column, str) or not column.strip():
            raise ProblemError(Problem(file=str(path), field=f"columns.{name}", reason="must name a column"))
    return given


def _check_rules(path: Path, table: str, rules: object) -> None:
    known = {"header_rows": int, "skip": int, "encoding": str, "decimal": str, "unit": str}
    for name, value in rules.items() if isinstance(rules, dict) else (("", rules),):
        field = f"tables.{table}.{name}".strip(".")
        if name not in known:
            raise ProblemError(Problem(file=str(path), field=field, reason=f"is not known; known: {', '.join(known)}"))
        if not isinstance(value, known[name]) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
            what = "a whole number from 0" if known[name] is int else "a text"
            raise ProblemError(Problem(file=str(path), field=field, reason=f"must be {what}"))


def make_table_rules(values: Mapping[str, Mapping[str, Any]]) -> dict[str, TableRules]:
    """Returns what a mapping sets for single tables.

    Raises:
        UsageError: A value is not supported.
    """
    for rules in values.values():
        check_encoding(rules.get("encoding", ""))
        make_cell_rules(rules)
    return {name: TableRules(**rules) for name, rules in values.items()}


def parse_columns(texts: list[str]) -> dict[str, str]:
    """Returns field -> column for texts such as `question=Frage`.

    Raises:
        UsageError: A text has another form, or does not begin with a field.
    """
    columns: dict[str, str] = {}
    for text in texts:
        name, mark, column = text.partition("=")
        if name not in FIELDS or not mark or not column:
            raise UsageError(
                f"--column must be FIELD=COLUMN with one of the fields {', '.join(FIELDS)}, but got {text!r}.",
                remedy=f"--column question={column or text}",
            )
        columns[name] = column
    return columns


def make_cell_rules(values: Mapping[str, Any]) -> CellRules:
    """Returns the cell rules among the options of an import.

    Raises:
        UsageError: A rule has an unknown value.
    """
    choices = {
        "decimal": ("auto", ".", ","),
        "percent": ("fraction", "text"),
        "dates": ("auto", "day-first", "month-first"),
        "dash": ("empty", "zero"),
    }
    names = [each.name for each in fields(CellRules)]
    chosen = {name: values[name] for name in names if name in values}
    for name, known in choices.items():
        if name in chosen and chosen[name] not in known:
            raise UsageError(f"{name} is {' or '.join(known)}, not {chosen[name]!r}.", remedy=f"--{name} {known[0]}")
    return CellRules(**chosen)


def check_encoding(name: str) -> str:
    """Returns the name of an encoding of texts.

    Raises:
        UsageError: Python has no such encoding.
    """
    try:
        "".encode(name or "utf-8")
    except LookupError as error:
        raise UsageError(f"There is no encoding {name!r}.", remedy="--encoding latin-1") from error
    return name


def check_company_rule(rule: str) -> tuple[str, str]:
    """Returns name and argument of a company rule.

    Raises:
        UsageError: There is no such rule, its argument is missing, or it takes none.
    """
    name, _, argument = rule.partition(":")
    takes = {known.partition(":")[0]: known.partition(":")[2] for known in COMPANY_RULES}
    if name not in takes or bool(argument) != bool(takes[name]):
        named = "" if name in takes else f" If all tables belong to one company: --company name:{shlex.quote(rule)}"
        raise UsageError(
            f"--company must be one of {', '.join(COMPANY_RULES)}, but got {rule!r}.{named}", remedy="--company auto"
        )
    return name, argument
