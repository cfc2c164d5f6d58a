"""How the scripted expert reads the descriptions of tables, and the SQL that it writes for a question."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

_HINTS: tuple[tuple[str, str], ...] = (
    ("SegmentRevenue", "americas europe asia africa licensing services other segment"),
    ("IncomeTax", "federal state foreign deferred credits tax"),
    ("Borrowings", "notes loans leases lease obligations commercial paper facility borrowings"),
    (
        "CashFlow",
        "flow operating cash depreciation stock compensation share based pay capital expenditures equipment purchases"
        " acquisitions business dividends repurchases buybacks issuance proceeds movement change net",
    ),
    (
        "BalanceSheet",
        "cash balance equivalents accounts receivable trade receivables inventories finished goods fixed assets"
        " property plant goodwill acquired intangibles payable payables long term debt noncurrent liabilities"
        " equity combined",
    ),
    (
        "IncomeStatement",
        "sales revenue revenues cost sold gross profit earnings research product development expense selling"
        " administrative overhead operating income interest provision taxes net",
    ),
)
_HINT_WORDS = tuple((name, frozenset(words.split())) for name, words in _HINTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """The needed part of a reply of get_table_info.

    Attributes:
        labels: Values of the first column.
        dtypes: Type name by column, in order.
    """

    labels: tuple[str, ...]
    dtypes: dict[str, str]

    @property
    def label_column(self) -> str:
        """The column that contains the line items."""
        return next(iter(self.dtypes), "line_item")

    def is_text(self, column: str) -> bool:
        """Whether the column contains text, so that numbers in it must be cast."""
        return not self.dtypes.get(column, "int64").startswith(("int", "float"))

    def column_for(self, year: str) -> str | None:
        """The column of a year: of that name, or the first whose name contains it."""
        if year in self.dtypes:
            return year
        return next((column for column in list(self.dtypes)[1:] if year in column), None)


def rank_tables(tables: Sequence[str], phrases: Sequence[str], years: Sequence[str]) -> list[str]:
    """Tables in the order in which to try them: most hint words in the phrases first, special statements on ties.

    Among tables without any hint, those whose names contain a year of the question come first.
    """
    words = {word for phrase in phrases for word in re.findall(r"[a-z]+", phrase.lower())}

    def rank(table: str) -> tuple[int, int]:
        for place, (name, hints) in enumerate(_HINT_WORDS):
            if name.lower() in table.lower():
                return -len(words & hints), place
        return 0, len(_HINT_WORDS) + (not any(year in table for year in years))

    return sorted(tables, key=rank)


def parse_tables(text: str) -> list[str] | None:
    """The table names in a reply of get_descriptions, or None if it is not such a reply."""
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else None


def parse_info(text: str) -> TableInfo | None:
    """The columns and labels in a reply of get_table_info, or None if it is not such a reply."""
    try:
        info = json.loads(text)
        dtypes = {str(column): str(dtype) for column, dtype in info["column_dtypes"].items()}
        labels = info["unique_vals_per_col"][next(iter(dtypes))]
        return TableInfo(labels=tuple(str(label) for label in labels), dtypes=dtypes)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def find_labels(info: TableInfo, phrases: Sequence[str]) -> tuple[str, ...] | None:
    """The labels with the words of the phrases, or None if the table lacks one of them."""
    by_words = {_words(label): label for label in reversed(info.labels)}
    found = [by_words.get(_words(phrase)) for phrase in phrases]
    labels = tuple(label for label in found if label is not None)
    return labels if phrases and len(labels) == len(phrases) else None


def guess_label(info: TableInfo, question: str) -> tuple[str, float]:
    """The label that shares most words with a question, and the share of its words that the question contains."""
    asked = set(_words(question).split())

    def score(label: str) -> tuple[float, int]:
        own = _words(label).split()
        return (len([word for word in own if word in asked]) / len(own) if own else 0.0), len(own)

    best = max(info.labels, key=score, default="")
    return best, score(best)[0] if best else 0.0


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a question asks.

    Attributes:
        kind: A question type of the generator; `lookup` when nothing else was recognised.
        phrases: Line items in words, one or two; empty when none was recognised.
        years: The years in the order in which they occur.
    """

    kind: str
    phrases: tuple[str, ...]
    years: tuple[str, ...]

    @property
    def is_percentage(self) -> bool:
        """Whether the question asks for a rate, which is often written times 100."""
        return self.kind in ("growth_rate", "margin")


_YEAR = r"(?:19|20)\d\d"
_FROM_TO = rf"from (?P<old>{_YEAR}) to (?P<new>{_YEAR})"
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("growth_rate", rf"what was the growth rate of (?P<a>.+) {_FROM_TO}\?"),
    ("growth_rate", rf"by what percentage did (?P<a>.+) change {_FROM_TO}\?"),
    ("growth_rate", rf"what was the percentage change in (?P<a>.+) {_FROM_TO}\?"),
    ("change", rf"what was the change in (?P<a>.+) {_FROM_TO}\?"),
    ("change", rf"by how much did (?P<a>.+) change between (?P<old>{_YEAR}) and (?P<new>{_YEAR})\?"),
    ("ratio", rf"what was the ratio of (?P<a>.+) to (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("ratio", rf"what was (?P<a>.+) as a proportion of (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("margin", rf"what was (?P<a>.+) as a percentage of (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("margin", rf"what percentage margin on (?P<b>.+) was (?P<a>.+) in (?P<new>{_YEAR})\?"),
    ("average", rf"what was the average (?P<a>.+) {_FROM_TO}\?"),
    ("average", rf"what was (?P<a>.+) on average over (?P<old>{_YEAR}) to (?P<new>{_YEAR})\?"),
    ("sum", rf"what was the sum of (?P<a>.+) and (?P<b>.+) in (?P<new>{_YEAR})\?"),
    ("sum", rf"what did (?P<a>.+) and (?P<b>.+) add up to in (?P<new>{_YEAR})\?"),
    ("comparison", rf"was (?P<a>.+) higher in (?P<new>{_YEAR}) than in (?P<old>{_YEAR})\?"),
    ("comparison", rf"did (?P<a>.+) increase {_FROM_TO}\?"),
    ("multi_value", rf"what was (?P<a>.+) in each of (?P<old>{_YEAR}) and (?P<new>{_YEAR})\?"),
    ("multi_value", rf"list (?P<a>.+) for (?P<old>{_YEAR}) and (?P<new>{_YEAR})\."),
    ("lookup", rf"how much was (?P<a>.+) in fiscal (?P<new>{_YEAR})\?"),
    ("lookup", rf"what amount of (?P<a>.+) was reported for (?P<new>{_YEAR})\?"),
    ("lookup", rf"what was (?P<a>.+) in (?P<new>{_YEAR})\?"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
_GUESSES: tuple[tuple[str, str], ...] = (
    ("growth_rate", r"growth|percent\w* (?:change|increase|decrease|decline)|by what percent"),
    ("average", r"\baverage\b|\bmean\b"),
    ("change", r"\bchange\b|\bincrease\b|\bdecrease\b|\bdifference\b"),
)


def parse_question(question: str) -> Intent:
    """The intent of a question; any text gives one."""
    text = " ".join(question.split())
    for kind, pattern in _COMPILED:
        if match := pattern.fullmatch(text):
            found = match.groupdict()
            phrases = tuple(found[name] for name in ("a", "b") if found.get(name))
            years = tuple(found[name] for name in ("old", "new") if found.get(name))
            return Intent(kind=kind, phrases=phrases, years=years)
    years = tuple(sorted(set(re.findall(rf"\b{_YEAR}\b", text))))
    guesses = (kind for kind, pattern in _GUESSES if re.search(pattern, text, re.IGNORECASE))
    kind = next(guesses, "lookup") if len(years) > 1 else "lookup"
    return Intent(kind=kind, phrases=(), years=years[:1] + years[1:][-1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Careless habits of the analyst in one episode.

    Attributes:
        unquoted_years: Leaves year columns unquoted; SQLite then reads them as numbers.
        undivided_percentages: Computes growth rates and margins times 100.
    """

    unquoted_years: bool = False
    undivided_percentages: bool = False


def write_query(intent: Intent, table: str, info: TableInfo, labels: tuple[str, ...], habits: Habits) -> str | None:
    """The query, or None when the table lacks a column for a year that is needed."""
    columns = [info.column_for(year) for year in _years(intent, info)]
    known = [column for column in columns if column is not None]
    if not known or len(known) < len(columns) or not labels:
        return None
    cells = [_cell(column, info, habits) for column in known]
    key = info.label_column if info.label_column.isidentifier() else _quote(info.label_column, '"')
    scale = "100.0" if habits.undivided_percentages and intent.is_percentage else "1.0"
    expression = _expression(intent, known, cells, labels, key, scale)
    quoted = [_quote(label, "'") for label in labels]
    condition = f"= {quoted[0]}" if len(quoted) == 1 else f"IN ({', '.join(quoted)})"
    name = table if table.isidentifier() else _quote(table, '"')
    return f"SELECT {expression} AS value FROM {name} WHERE {key} {condition}"


def _expression(
    intent: Intent, columns: list[str], cells: list[str], labels: tuple[str, ...], key: str, scale: str
) -> str:
    old, new = cells[0], cells[-1]
    if len(labels) == 2 and intent.kind == "sum":
        return f"SUM({new})"
    if len(labels) == 2:
        first, second = (f"SUM(CASE WHEN {key} = {_quote(label, chr(39))} THEN {new} END)" for label in labels)
        return f"ROUND({first} * {scale} / {second}, 4)"
    if intent.kind == "change":
        return f"{new} - {old}"
    if intent.kind == "growth_rate":
        return f"ROUND(({new} - {old}) * {scale} / {old}, 4)"
    if intent.kind == "average":
        return f"ROUND(({' + '.join(cells)}) / {len(cells)}.0, 2)"
    if intent.kind == "comparison":
        return f"CASE WHEN {new} > {old} THEN 'Yes' ELSE 'No' END"
    if intent.kind == "multi_value":
        keys = [f"{', ' if place else ''}{column}: " for place, column in enumerate(columns)]
        return " || ".join(f"{_quote(key, chr(39))} || {cell}" for key, cell in zip(keys, cells, strict=True))
    return new


def _years(intent: Intent, info: TableInfo) -> tuple[str, ...]:
    """The years whose cells are needed; an average needs all years between its two; no year means the last column."""
    years = intent.years or tuple(list(info.dtypes)[-1:])
    if intent.kind == "average" and len(years) == 2:
        return tuple(str(year) for year in range(int(years[0]), int(years[1]) + 1))
    return years


def _cell(column: str, info: TableInfo, habits: Habits) -> str:
    name = column if habits.unquoted_years and column.isdigit() else _quote(column, '"')
    if not info.is_text(column):
        return name
    for old, new in (("$", ""), (",", ""), ("(", "-"), (")", "")):
        name = f"REPLACE({name}, '{old}', '{new}')"
    return f"CAST({name} AS {'INTEGER' if column.isdigit() else 'REAL'})"


def _quote(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark
