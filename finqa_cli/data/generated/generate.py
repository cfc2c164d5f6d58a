"""Generates a data set of 10-K-like companies. Every gold answer is computed twice: in Python and by its gold query."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Literal

from finqa_cli.data.dataset import DataSet, Question, SplitShares, Table
from finqa_cli.data.generated.questions import QUESTION_TYPES, Draft, draft_question
from finqa_cli.data.generated.statements import Statement, as_table, invent_name, invent_statements
from finqa_cli.errors import DataError

Cells = Literal["numbers", "text"]
LICENCE = "CC0-1.0"
_MAX_COMPANIES = 20_000
_MAX_QUESTIONS = 100
_TRIES_PER_QUESTION = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSpec:
    """Parameters of a generated data set. The same parameters always give the same data set.

    Attributes:
        companies: Number of companies, 1 to 20000. The first N companies of a seed do not depend on this number;
            their splits do.
        questions: Questions per company, 1 to 100.
        cells: `numbers`, or `text` as filings write them (`$1,234`, `$(6)`).

    Raises:
        DataError: A number is out of range.
    """

    companies: int = 60
    questions: int = 14
    seed: int = 7
    cells: Cells = "numbers"
    shares: SplitShares = field(default_factory=SplitShares)

    def __post_init__(self) -> None:
        limits = (("companies", self.companies, _MAX_COMPANIES), ("questions", self.questions, _MAX_QUESTIONS))
        for name, value, most in limits:
            if not 1 <= value <= most:
                nearest = min(max(value, 1), most)
                reason = f"{name} must be between 1 and {most}, but is {value}."
                raise DataError(reason, remedy=f"--{name} {nearest}")


def generate(spec: GenerateSpec) -> DataSet:
    """Generates the data set of a spec.

    Raises:
        AssertionError: A gold query does not yield the answer that Python computed, which is a bug of the generator.
    """
    tables: list[Table] = []
    questions: list[Question] = []
    names: set[str] = set()
    splits = _company_splits(spec)
    for index in range(spec.companies):
        rng = random.Random(f"finqa:{spec.seed}:{index}")
        name, ticker = _new_name(rng, names)
        names.add(name)
        statements = invent_statements(rng, ticker)
        own = [as_table(name, statement, text=spec.cells == "text") for statement in statements]
        tables += own
        questions += _questions(rng, spec, statements, own, splits[index])
    source = f"finqa data generate --companies {spec.companies} --questions {spec.questions} --seed {spec.seed}"
    return DataSet(tables=tuple(tables), questions=tuple(questions), source=source, licence=LICENCE)


def run_query(table: Table, query: str) -> object:
    """Returns the single cell that a query on one table yields, from a fresh SQLite that contains this table alone.

    Raises:
        AssertionError: The result is not one row of one column.
    """
    with closing(_database(table)) as database:
        return _query_cell(database, query)


def _database(table: Table) -> sqlite3.Connection:
    """Return a fresh SQLite in memory that contains this table alone."""
    database = sqlite3.connect(":memory:")
    columns = ", ".join(f'"{column}"' for column in table.columns)
    database.execute(f'CREATE TABLE "{table.name}" ({columns})')
    marks = ", ".join("?" for _ in table.columns)
    database.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', table.rows)
    return database


def _query_cell(database: sqlite3.Connection, query: str) -> object:
    rows = database.execute(query).fetchall()
    assert len(rows) == 1 and len(rows[0]) == 1, f"{query} yields {rows!r}"
    result: object = rows[0][0]
    return result


def _new_name(rng: random.Random, taken: set[str]) -> tuple[str, str]:
    while True:
        name, ticker = invent_name(rng)
        if name not in taken:
            return name, ticker


def _company_splits(spec: GenerateSpec) -> list[str]:
    order = list(range(spec.companies))
    random.Random(f"finqa:{spec.seed}:splits").shuffle(order)
    splits = [split for split, count in spec.shares.counts(spec.companies).items() for _ in range(count)]
    by_company = dict(zip(order, splits, strict=True))
    return [by_company[index] for index in range(spec.companies)]


def _questions(
    rng: random.Random, spec: GenerateSpec, statements: Sequence[Statement], tables: Sequence[Table], split: str
) -> Iterator[Question]:
    with ExitStack() as opened:
        databases = {table.name: opened.enter_context(closing(_database(table))) for table in tables}
        for number, draft in enumerate(_drafts(rng, spec, statements)):
            name = draft.statement.table_name
            yield Question(
                id=f"{tables[0].company}_{number:03d}",
                company=tables[0].company,
                question=draft.text,
                user_query=draft.text,
                answer=_verified_answer(draft, databases[name]),
                split=split,
                type=draft.type,
                explanation=draft.explanation,
                table_name=name,
                gold_sql=draft.sql,
            )


def _drafts(rng: random.Random, spec: GenerateSpec, statements: Sequence[Statement]) -> Iterator[Draft]:
    """Yields distinct questions. Each type occurs once before any type repeats; an exhausted type is skipped."""
    seen: set[tuple[str, str]] = set()
    queue: list[str] = []
    produced = 0
    while produced < spec.questions:
        queue = queue or rng.sample(QUESTION_TYPES, len(QUESTION_TYPES))
        kind = queue.pop()
        for _ in range(_TRIES_PER_QUESTION):
            draft = draft_question(rng, kind, statements, text=spec.cells == "text")
            if draft is not None and (draft.sql, draft.text) not in seen:
                seen.add((draft.sql, draft.text))
                produced += 1
                yield draft
                break


def _verified_answer(draft: Draft, database: sqlite3.Connection) -> str:
    result = _query_cell(database, draft.sql)
    if isinstance(draft.truth, str):
        agree = result == draft.truth
    else:
        assert isinstance(result, int | float), f"{draft.sql} yields {result!r}"
        agree = abs(result - draft.truth) <= 0.5000001 * 10.0**-draft.decimals * bool(draft.decimals)
    assert agree, f"{draft.sql} yields {result!r}, but the answer is {draft.truth!r}"
    return result if isinstance(result, str) else json.dumps(result)
