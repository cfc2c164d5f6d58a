"""Invents questions about a company's statements, with a gold query and an answer computed without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finqa_cli.data.generated.statements import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWriter:
    """Writes SQL queries on one table. Each method returns a query whose result is one value.

    With `text` cells, the queries first convert `$1,234` and `$(6)` to integers.
    """

    table: str
    text: bool = False

    def lookup(self, label: str, year: str) -> str:
        """Returns the query of one cell."""
        return self._select(self._cell(year), label)

    def change(self, label: str, old: str, new: str) -> str:
        """Returns the query of the difference between two years."""
        return self._select(f"{self._cell(new)} - {self._cell(old)}", label)

    def growth(self, label: str, old: str, new: str) -> str:
        """Returns the query of the relative change, as a decimal ratio with four places."""
        previous = self._cell(old)
        return self._select(f"ROUND(({self._cell(new)} - {previous}) * 1.0 / {previous}, 4)", label)

    def ratio(self, numerator: str, denominator: str, year: str) -> str:
        """Returns the query of the quotient of two rows in one year, with four places."""
        parts = [
            f"SUM(CASE WHEN line_item = '{label}' THEN {self._cell(year)} END)" for label in (numerator, denominator)
        ]
        return self._select(f"ROUND({parts[0]} * 1.0 / {parts[1]}, 4)", numerator, denominator)

    def average(self, label: str, years: Sequence[str]) -> str:
        """Returns the query of the mean of one row over several years, with two places."""
        total = " + ".join(self._cell(year) for year in years)
        return self._select(f"ROUND(({total}) / {len(years)}.0, 2)", label)

    def total(self, first: str, second: str, year: str) -> str:
        """Returns the query of the sum of two rows in one year."""
        return self._select(f"SUM({self._cell(year)})", first, second)

    def comparison(self, label: str, old: str, new: str) -> str:
        """Returns the query of whether the value of the later year is higher: Yes or No."""
        return self._select(f"CASE WHEN {self._cell(new)} > {self._cell(old)} THEN 'Yes' ELSE 'No' END", label)

    def several(self, label: str, years: Sequence[str]) -> str:
        """Returns the query of one row in several years, in the form `2022: 1, 2023: 2`."""
        parts = [f"'{', ' if index else ''}{year}: ' || {self._cell(year)}" for index, year in enumerate(years)]
        return self._select(" || ".join(parts), label)

    def _cell(self, year: str) -> str:
        column = f'"{year}"'
        if not self.text:
            return column
        for old, new in (("$", ""), (",", ""), ("(", "-"), (")", "")):
            column = f"REPLACE({column}, '{old}', '{new}')"
        return f"CAST({column} AS INTEGER)"

    def _select(self, expression: str, *labels: str) -> str:
        quoted = [f"'{label}'" for label in labels]
        condition = f"= {quoted[0]}" if len(quoted) == 1 else f"IN ({', '.join(quoted)})"
        return f"SELECT {expression} AS value FROM {self.table} WHERE line_item {condition}"


QUESTION_TYPES = (
    "lookup",
    "change",
    "growth_rate",
    "ratio",
    "margin",
    "average",
    "sum",
    "comparison",
    "multi_value",
)

WORDINGS: Mapping[str, tuple[str, ...]] = {
    "lookup": (
        "What was {label} in {year}?",
        "How much was {label} in fiscal {year}?",
        "What amount of {label} was reported for {year}?",
    ),
    "change": (
        "What was the change in {label} from {old} to {new}?",
        "By how much did {label} change between {old} and {new}?",
    ),
    "growth_rate": (
        "What was the growth rate of {label} from {old} to {new}?",
        "By what percentage did {label} change from {old} to {new}?",
        "What was the percentage change in {label} from {old} to {new}?",
    ),
    "ratio": (
        "What was the ratio of {label} to {other} in {year}?",
        "What was {label} as a proportion of {other} in {year}?",
    ),
    "margin": (
        "What was {label} as a percentage of {other} in {year}?",
        "What percentage margin on {other} was {label} in {year}?",
    ),
    "average": (
        "What was the average {label} from {old} to {new}?",
        "What was {label} on average over {old} to {new}?",
    ),
    "sum": (
        "What was the sum of {label} and {other} in {year}?",
        "What did {label} and {other} add up to in {year}?",
    ),
    "comparison": (
        "Was {label} higher in {new} than in {old}?",
        "Did {label} increase from {old} to {new}?",
    ),
    "multi_value": (
        "What was {label} in each of {old} and {new}?",
        "List {label} for {old} and {new}.",
    ),
}

Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A question before it is checked.

    Attributes:
        truth: The answer computed in Python: a number (rates unrounded), or the text itself.
        decimals: Places to which the query rounds; 0 for integers and texts.
    """

    type: str
    text: str
    statement: Statement
    sql: str
    truth: Number | str
    decimals: int
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    sql: str
    truth: Number | str
    explanation: str
    decimals: int = 0


def draft_question(rng: random.Random, kind: str, statements: Sequence[Statement], *, text: bool) -> Draft | None:
    """Returns a question of a type; None if the drawn values give no sensible answer, as a rate near 0 would."""
    income_only = kind == "margin"
    statement = statements[0] if income_only else rng.choice(statements)
    labels = rng.sample(list(statement.values), 2)
    if income_only:
        labels[1] = next(label for label, concept in statement.concepts.items() if concept == "revenue")
        labels[0] = rng.choice([label for label, concept in statement.concepts.items() if concept in _MARGINS])
    old, new = _two_years(rng, kind, statement.years)
    sql = QueryWriter(table=statement.table_name, text=text)
    result = _SOLVERS[kind](statement, sql, (labels[0], labels[1]), (old, new))
    if result is None:
        return None
    phrases = [label.replace("_", " ") for label in labels]
    wording = rng.choice(WORDINGS[kind]).format(label=phrases[0], other=phrases[1], year=new, old=old, new=new)
    return Draft(
        type=kind,
        text=wording,
        statement=statement,
        sql=result.sql,
        truth=result.truth,
        decimals=result.decimals,
        explanation=result.explanation,
    )


_MARGINS = ("gross", "operating", "net")
_SMALLEST_RATE = 0.02
"""Smallest rate of a question. Rates are rounded to four places: from this rate on, by less than the graders' 1 %."""

Labels = tuple[str, str]
Years = tuple[str, str]


def _two_years(rng: random.Random, kind: str, years: tuple[str, ...]) -> Years:
    if kind == "average":
        start = rng.randrange(len(years) - 2)
        return years[start], years[start + 2]
    start = rng.randrange(len(years) - 1)
    return years[start], years[start + 1]


def _lookup(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result:
    value = statement.amount(labels[0], years[1])
    return _Result(sql=sql.lookup(labels[0], years[1]), truth=value, explanation=f"{labels[0]} {years[1]} = {value}")


def _change(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result:
    old, new = (statement.amount(labels[0], year) for year in years)
    return _Result(sql=sql.change(labels[0], *years), truth=new - old, explanation=f"{new} - {old}")


def _growth(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result | None:
    old, new = (statement.amount(labels[0], year) for year in years)
    if old < 10 or new <= 0 or abs(new - old) < _SMALLEST_RATE * old:
        return None
    explanation = f"({new} - {old}) / {old}"
    return _Result(sql=sql.growth(labels[0], *years), truth=(new - old) / old, decimals=4, explanation=explanation)


def _ratio(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result | None:
    part, whole = (statement.amount(label, years[1]) for label in labels)
    if part <= 0 or whole < 10 or not _SMALLEST_RATE <= part / whole <= 20:
        return None
    explanation = f"{part} / {whole}"
    return _Result(sql=sql.ratio(*labels, years[1]), truth=part / whole, decimals=4, explanation=explanation)


def _average(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result:
    first, last = (statement.years.index(year) for year in years)
    span = statement.years[first : last + 1]
    values = [statement.amount(labels[0], year) for year in span]
    explanation = f"({' + '.join(map(str, values))}) / {len(values)}"
    truth = sum(values) / len(values)
    return _Result(sql=sql.average(labels[0], span), truth=truth, decimals=2, explanation=explanation)


def _sum(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result:
    first, second = (statement.amount(label, years[1]) for label in labels)
    return _Result(sql=sql.total(*labels, years[1]), truth=first + second, explanation=f"{first} + {second}")


def _comparison(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result:
    old, new = (statement.amount(labels[0], year) for year in years)
    truth = "Yes" if new > old else "No"
    return _Result(sql=sql.comparison(labels[0], *years), truth=truth, explanation=f"{new} against {old}")


def _several(statement: Statement, sql: QueryWriter, labels: Labels, years: Years) -> _Result:
    truth = ", ".join(f"{year}: {statement.amount(labels[0], year)}" for year in years)
    return _Result(sql=sql.several(labels[0], years), truth=truth, explanation=f"{labels[0]} by year")


_Solver = Callable[[Statement, QueryWriter, Labels, Years], _Result | None]
_SOLVERS: Mapping[str, _Solver] = {
    "lookup": _lookup,
    "change": _change,
    "growth_rate": _growth,
    "ratio": _ratio,
    "margin": _ratio,
    "average": _average,
    "sum": _sum,
    "comparison": _comparison,
    "multi_value": _several,
}
