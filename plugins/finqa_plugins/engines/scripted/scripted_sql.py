"""Writes the query of an intent in the canonical style, with the careless habits that the expert may have."""

from __future__ import annotations

from dataclasses import dataclass

from finqa_plugins.engines.scripted.intents import Intent
from finqa_plugins.engines.scripted.table_reading import TableInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What this episode's analyst does carelessly.

    Attributes:
        unquoted_years: Leaves year columns unquoted; SQLite then takes them for numbers.
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
    """The years whose cells are needed; an average takes all years between its two; no year means the last column."""
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
