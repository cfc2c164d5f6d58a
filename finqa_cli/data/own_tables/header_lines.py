"""Headers of several lines and titles above the header, as spreadsheets export them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from finqa_cli.data.own_tables.table_cells import read_number

Row = tuple[int, Sequence[object]]
"""Number of a row as the user counts it, and its [C] cells."""

MOST_HEADER_ROWS = 9
_YEARS = range(1900, 2101)


def is_header_line(cells: Sequence[object]) -> bool:
    """Returns whether at least one cell after the first is filled, and none of them is a number other than a year."""
    names = [text for cell in cells[1:] if (text := _text(cell))]
    return bool(names) and all(_is_name(text) for text in names)


def count_header_rows(header: Sequence[object], rows: Sequence[Row]) -> int:
    """Returns 2 if the names of the columns need the row below the header, else 1.

    They need it if all of these hold: names are missing or repeated, as with merged cells; the row below contains
    names only; at least half of the filled cells below are numbers; and the joined names are distinct.
    """
    if len(rows) < 2 or len(rows[0][1]) != len(header) or not is_header_line(rows[0][1]):
        return 1
    upper = [_text(cell) for cell in header[1:]]
    below = [_text(cell) for cell in rows[0][1][1:]]
    unclear = [place for place, name in enumerate(upper) if not name or upper.count(name) > 1]
    if not any(upper) or not unclear or not all(below[place] for place in unclear):
        return 1
    values = [text for _, cells in rows[1:] for cell in cells[1:] if (text := _text(cell))]
    if 2 * sum(read_number(text) is not None for text in values) < len(values):
        return 1
    joined = join_header([header, rows[0][1]])[1:]
    return 2 if len({name.casefold() for name in joined}) == len(joined) else 1


def join_header(lines: Sequence[Sequence[object]]) -> tuple[str, ...]:
    """Returns one name per column of header lines of the same length, the uppermost line first.

    In all lines but the last, an empty cell takes the name to its left, because it is part of a merged cell. It takes
    nothing from the first column, which names the rows.
    """
    filled = [_fill(line) for line in lines[:-1]] + [[_text(cell) for cell in lines[-1]]]
    names = []
    for parts in zip(*filled, strict=True):
        distinct = [part for place, part in enumerate(parts) if part and part not in parts[:place]]
        names.append(" ".join(distinct))
    return tuple(names)


def _fill(line: Sequence[object]) -> list[str]:
    names = [_text(cell) for cell in line]
    for place in range(2, len(names)):
        names[place] = names[place] or names[place - 1]
    return names


def _text(cell: object) -> str:
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    return " ".join(str("" if cell is None else cell).removesuffix(" 00:00:00").split())


def _is_name(text: str) -> bool:
    reading = read_number(text)
    return reading is None or (text.isdecimal() and int(text) in _YEARS)
