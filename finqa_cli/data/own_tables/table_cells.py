"""Conversion of the columns of a table: numbers by the grammar of cells, dates, and marks for "no value"."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from finqa_cli.data.dataset import Cell
from finqa_cli.data.own_tables.cell_numbers import (
    IDENTIFIER,
    INTEGER_DIGITS,
    SHEET_ERRORS,
    Mark,
    Reading,
    is_blank,
    is_dash,
    proven_marks,
    read_number,
)
from finqa_cli.data.question_files.field_values import text_fault

DecimalMark = Literal["auto", ".", ","]
Percent = Literal["fraction", "text"]
Dates = Literal["auto", "day-first", "month-first"]
Dash = Literal["empty", "zero"]

_LARGEST_DIGITS = 300
_MOST_REMARKS = 20
_LARGEST_PERCENT = 100
_OF_PERCENT = re.compile(r"%|\bper ?cent|\b(?:growth|interest|tax) rate\b|\bmargin\b", re.IGNORECASE)
"""Names of columns of percentages."""

_GROUPED = {mark: re.compile(rf"[^0-9%]*[1-9][0-9]{{0,2}}{re.escape(mark)}[0-9]{{3}}[^0-9%]*") for mark in ".,"}
"""A number with one group of thousands in the other convention: `4.120` where the point is the decimal mark."""

_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            *(("jan", "january"), ("feb", "february"), ("mar", "march"), ("apr", "april"), ("may",), ("jun", "june")),
            *(("jul", "july"), ("aug", "august"), ("sep", "sept", "september"), ("oct", "october")),
            *(("nov", "november"), ("dec", "december")),
        ),
        start=1,
    )
    for name in names
}
_ISO = re.compile(r"(?P<year>[0-9]{4})([-/.])(?P<month>[0-9]{1,2})\2(?P<day>[0-9]{1,2})")
_NUMERIC_DATE = re.compile(r"(?P<first>[0-9]{1,2})([-/.])(?P<second>[0-9]{1,2})\2(?P<year>[0-9]{4})")
_NAMED_DATE = re.compile(
    r"(?:(?P<day>[0-9]{1,2})[-. ]{1,2}(?P<month>[A-Za-z]{3,9})\.?|(?P<month2>[A-Za-z]{3,9})\.? (?P<day2>[0-9]{1,2}))"
    r"[-, ]{1,2}(?P<year>[0-9]{4})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRules:
    """How cells are read.

    Attributes:
        convert: Whether texts are converted to numbers and dates.
        decimal: The decimal mark; `auto` takes it from the numbers of the column that prove one, else of the table.
        percent: `fraction` reads 12.5% as 0.125; `text` keeps the text.
        dates: Order of day and month in dates such as 3/4/2024; `auto` takes it from the other dates of the column.
        dash: What a dash in a column of numbers is: `empty`, or the number 0 (`zero`), which it means in a 10-K.
    """

    convert: bool = True
    decimal: DecimalMark = "auto"
    percent: Percent = "fraction"
    dates: Dates = "auto"
    dash: Dash = "empty"


@dataclass(slots=True)
class Conversions:
    """Counts what the import changed, with the first example of each kind.

    Attributes:
        counts: Kind -> number of changes.
        examples: Kind -> where it was first, and what.
        remarks: `company/table` -> what its cells no longer show, at most 20 lines; kept with the table.
    """

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    remarks: dict[str, list[str]] = field(default_factory=dict)

    def remark(self, where: str, text: str) -> None:
        """Keeps a line about a table."""
        lines = self.remarks.setdefault(where, [])
        if len(lines) < _MOST_REMARKS and text not in lines:
            lines.append(text)

    def add(self, kind: str, place: str, before: object, after: object = None) -> None:
        """Counts one change."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind not in self.examples:
            shown = f" -> {after!r}" if after is not None else ""
            self.examples[kind] = f"{place}: {str(before)[:60]!r}{shown}"

    def document(self) -> list[dict[str, object]]:
        """Returns one JSON object per kind, the most frequent first."""
        kinds = sorted(self.counts, key=lambda kind: (-self.counts[kind], kind))
        return [{"kind": kind, "count": self.counts[kind], "example": self.examples[kind]} for kind in kinds]


def convert_columns(
    columns: Sequence[str], rows: Sequence[Sequence[object]], rules: CellRules, found: Conversions, where: str
) -> tuple[tuple[Cell, ...], ...]:
    """Returns the rows with cells of plain types: numbers, texts and None.

    In a numeric column, at least half of the filled cells are numbers. Its numbers are converted, its marks for "no
    value" become None, and other texts stay and are counted. A column with an identifier such as `007` stays text. The
    first of several columns contains the names of the rows, so it is not numeric. Dates become ISO texts.

    Args:
        columns: Names, for examples.
        rows: [R][C] cells as they were read.
        rules: What to convert.
        found: Counts what is changed.
        where: `company/table`, for examples.

    Raises:
        ValueError: A cell has an unsupported value; the arguments are index of the row, index of the column, reason.
    """
    plain = [[_plain(row[place], number, place) for number, row in enumerate(rows)] for place in range(len(columns))]
    first = 1 if len(columns) > 1 else 0
    marks = [_mark(cells, rules) for cells in plain]
    proven = {mark for mark in marks[first:] if mark}
    shared: Mark = proven.pop() if len(proven) == 1 else "."
    by_column = []
    for place, name in enumerate(columns):
        column = _Column(name, where, found, rules, marks[place] or shared)
        by_column.append(column.convert(plain[place], names_rows=place < first))
    return tuple(zip(*by_column, strict=True)) if by_column else ()


def _mark(cells: Sequence[Cell], rules: CellRules) -> Mark | None:
    """Returns the decimal mark that is set, or that the texts of a column prove; None if they prove none or both."""
    if rules.decimal != "auto":
        return rules.decimal
    proven = proven_marks({cell.strip() for cell in cells if isinstance(cell, str)}) if rules.convert else set()
    return proven.pop() if len(proven) == 1 else None


def _plain(value: object, row: int, column: int) -> Cell:
    """Returns a value of a library or database as a cell."""
    if value is None or isinstance(value, str):
        if value is not None and (reason := text_fault(value)):
            raise ValueError(row, column, reason)
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        if abs(value) >= 10**_LARGEST_DIGITS:
            raise ValueError(row, column, f"is a number of more than {_LARGEST_DIGITS} digits")
        return value if abs(value) < 10**INTEGER_DIGITS else str(value)
    if isinstance(value, decimal.Decimal):
        value = int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
        return _plain(value, row, column)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime):
        return value.date().isoformat() if value.time() == datetime.time() else value.isoformat(sep=" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    kind = "binary data" if isinstance(value, bytes) else f"of type {type(value).__name__}"
    raise ValueError(row, column, f"a cell must be a text or a number, but is {kind}")


class _Column:
    """Converts the cells of one column."""

    def __init__(self, name: str, where: str, found: Conversions, rules: CellRules, mark: Mark) -> None:
        self._name = name
        self._where = where
        self._found = found
        self._rules = rules
        self._mark: Mark = mark

    def convert(self, cells: Sequence[Cell], *, names_rows: bool) -> list[Cell]:
        """Returns the cells as numbers, texts and None."""
        if not self._rules.convert:
            return [None if isinstance(cell, str) and not cell.strip() else cell for cell in cells]
        tidy: list[Cell] = []
        for number, cell in enumerate(cells):
            if isinstance(cell, str) and cell in SHEET_ERRORS:
                self._add("spreadsheet errors read as empty", number, cell)
                tidy.append(None)
            else:
                tidy.append((cell.strip() or None) if isinstance(cell, str) else cell)
        texts = {cell for cell in tidy if isinstance(cell, str)}
        if not texts:
            return tidy
        if any(IDENTIFIER.fullmatch(text) for text in texts):
            if not names_rows:
                number = next(number for number, cell in enumerate(tidy) if IDENTIFIER.fullmatch(str(cell)))
                self._add("columns with identifiers such as 007, kept as texts", number, tidy[number])
            return tidy
        readings = self._readings(texts)
        filled = [cell for cell in tidy if cell is not None and not (isinstance(cell, str) and is_blank(cell))]
        numbers = sum(not isinstance(cell, str) or readings[cell] is not None for cell in filled)
        if not names_rows and ((numbers and 2 * numbers >= len(filled)) or (not filled and any(map(is_dash, texts)))):
            readings = self._with_percent(tidy, readings)
            self._count_possible_thousands(tidy, readings)
            self._remark_units(tidy, readings)
            return list(self._numbers(tidy, readings))
        dates = _dates([str(cell) for cell in filled], self._rules.dates)
        if dates:
            return list(self._with_dates(tidy, dates))
        if dates is None:
            number = next(number for number, cell in enumerate(tidy) if cell is not None)
            kind = "columns of dates whose order of day and month is ambiguous, kept as texts"
            self._add(kind, number, tidy[number])
        return tidy

    def _add(self, kind: str, number: int, before: object, after: object = None) -> None:
        self._found.add(kind, f"{self._where} row {number + 1}, column {self._name!r}", before, after)

    def _readings(self, texts: set[str]) -> dict[str, Reading | None]:
        """Returns the number of each text. A whole number with a short scale counts if others show what it is."""
        readings = {text: read_number(text, self._mark) for text in texts}
        known = [reading for reading in readings.values() if reading]
        if not any(reading.unit and not reading.is_doubtful for reading in known):
            readings = {
                text: None if reading and reading.is_doubtful else reading for text, reading in readings.items()
            }
        if self._rules.decimal == "auto" and len(proven_marks(texts)) > 1:
            example = next(text for text in texts if read_number(text, self._mark) is None and read_number(text, ","))
            self._found.remark(
                self._where,
                f"column {self._name!r}: both point and comma are decimal marks, as in {example!r} (set --decimal)",
            )
        return readings

    def _with_percent(self, cells: Sequence[Cell], readings: dict[str, Reading | None]) -> dict[str, Reading | None]:
        """Returns the readings, with plain numbers in percent where the column is one of percentages.

        Filings put the percent sign on the first and last number of such a column only. The name of the column shows
        it; else only a line is kept, because a column of a statement can have amounts and one margin.
        """
        texts = {cell: reading for cell in cells if isinstance(cell, str) and (reading := readings[cell])}
        plain = {cell: reading for cell, reading in texts.items() if not reading.is_percent and not reading.currency}
        signed = [cell for cell, reading in texts.items() if reading.is_percent]
        if not signed or not plain or self._rules.percent == "text":
            return readings
        if not _OF_PERCENT.search(self._name):
            if all(abs(reading.value) <= _LARGEST_PERCENT for reading in plain.values()):
                example = f"{signed[0]!r} and {next(iter(plain))!r}"
                text = f"column {self._name!r}: numbers with and without a percent sign: {example}"
                self._found.remark(self._where, text)
            return readings
        percent = {
            cell: replace(
                reading,
                value=float(decimal.Decimal(repr(reading.value)).scaleb(-2)),
                marks=(*reading.marks, "numbers without a percent sign in columns of percentages"),
            )
            for cell, reading in plain.items()
        }
        return {**readings, **percent}

    def _count_possible_thousands(self, cells: Sequence[Cell], readings: dict[str, Reading | None]) -> None:
        """Counts numbers such as `4.120` in a column in which all fractions have three decimals and some are whole.

        They are read as fractions, but may use the other convention, where the mark separates thousands.
        """
        mark = self._mark
        read = [(number, cell, readings[cell]) for number, cell in enumerate(cells) if isinstance(cell, str)]
        fractions = [each for each in read if each[2] is not None and mark in each[1]]
        whole = any(reading is not None and mark not in cell for _, cell, reading in read)
        if not whole or not all(_GROUPED[mark].fullmatch(cell) for _, cell, _ in fractions):
            return
        other = "," if mark == "." else "."
        for number, cell, reading in fractions:
            kind = f"numbers with three decimals beside whole numbers (if these are thousands: --decimal {other})"
            self._add(kind, number, cell, reading and reading.value)

    def _remark_units(self, cells: Sequence[Cell], readings: dict[str, Reading | None]) -> None:
        """Keeps a line if the numbers of a column have several currencies or units, which the cells no longer show."""
        found = [(cell, reading) for cell in cells if isinstance(cell, str) and (reading := readings[cell])]
        for what, units in (
            ("currencies", {reading.currency: cell for cell, reading in found if reading.currency}),
            ("units", {reading.unit: cell for cell, reading in found}),
        ):
            if len(units) > 1:
                examples = " and ".join(map(repr, list(units.values())[:2]))
                self._found.remark(self._where, f"column {self._name!r}: numbers with several {what}: {examples}")

    def _numbers(self, cells: Sequence[Cell], readings: dict[str, Reading | None]) -> Iterator[Cell]:
        for number, cell in enumerate(cells):
            if not isinstance(cell, str):
                yield cell
                continue
            reading = readings[cell]
            if reading is None and is_dash(cell):
                self._add(f"dashes read as {self._rules.dash}", number, cell)
                yield 0 if self._rules.dash == "zero" else None
            elif reading is None and is_blank(cell):
                self._add("markers for missing values", number, cell)
                yield None
            elif reading is None:
                self._add("texts in numeric columns, kept", number, cell)
                yield cell
            elif reading.is_percent and self._rules.percent == "text":
                self._add("percentages kept as texts", number, cell)
                yield cell
            else:
                for kind in reading.marks:
                    self._add(kind, number, cell, reading.value)
                if reading.note:
                    how = "as negative: its bracket is never closed" if reading.note == "(" else ""
                    how = how or "without its footnote mark"
                    text = f"column {self._name!r}, row {number + 1}: {cell!r} was read {how}"
                    self._found.remark(self._where, text)
                yield reading.value

    def _with_dates(self, cells: Sequence[Cell], dates: dict[str, str]) -> Iterator[Cell]:
        for number, cell in enumerate(cells):
            if cell is None or (date := dates.get(str(cell))) is None:
                if cell is not None:
                    self._add("markers for missing values", number, cell)
                yield None
            else:
                if date != cell:
                    self._add("dates", number, cell, date)
                yield date


def _dates(texts: Sequence[str], order: Dates) -> dict[str, str] | None:
    """Returns text -> ISO date if all texts are dates, {} if they are not, None if day and month are ambiguous."""
    if not texts:
        return {}
    numeric = [match for text in texts if (match := _NUMERIC_DATE.fullmatch(text))]
    if order == "auto" and numeric:
        day_first = any(int(match["first"]) > 12 for match in numeric)
        month_first = any(int(match["second"]) > 12 for match in numeric)
        if day_first and month_first:
            return {}
        if not day_first and not month_first and any(match["first"] != match["second"] for match in numeric):
            return None if len(numeric) == len(texts) else {}
        order = "day-first" if day_first else "month-first"
    found = {text: _iso(text, order) for text in texts}
    return {text: date for text, date in found.items() if date} if all(found.values()) else {}


def _iso(text: str, order: Dates) -> str:
    if match := _ISO.fullmatch(text):
        parts = match["year"], match["month"], match["day"]
    elif match := _NUMERIC_DATE.fullmatch(text):
        first, second = match["first"], match["second"]
        parts = match["year"], *((second, first) if order == "day-first" else (first, second))
    elif match := _NAMED_DATE.fullmatch(text):
        month = _MONTHS.get((match["month"] or match["month2"]).lower(), 0)
        parts = match["year"], str(month), match["day"] or match["day2"]
    else:
        return ""
    try:
        return datetime.date(int(parts[0]), int(parts[1]), int(parts[2])).isoformat()
    except ValueError:
        return ""
