"""Finds the tables of a grid: titles and notes around them, headers of one to three lines, layout columns. Pure.

A grid is what a sheet, a CSV file or an HTML table contains. Around its tables stand titles, units and footnotes, and
filings give `$`, `)` and `%` columns of their own. One set of rules reads all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from finqa_cli.data.own_tables.cell_kinds import FOOTNOTE, UNIT, kind_of, text_of
from finqa_cli.data.own_tables.table_columns import Columns, gather_columns, join_lines

MOST_HEADER_ROWS = 9
_AUTO_HEADER_ROWS = 4
"""At most three lines of names, and one of units."""
_COVERED = 0.5
_TITLE_LINES = 2
"""Share of the widest line of names that the first line of a header covers."""
_LONGEST_LABEL = 60
"""Characters of the name of the first column; a longer text in its place is the title of the table."""
FIRST_COLUMN = "item"
"""Name of a first column that has none, as in most tables of filings."""

_NOTE = re.compile(
    r"(?:\((?:[0-9]{1,2}|[a-z])\)|\[[0-9a-z]{1,2}\]|\*{1,3}|[\u2020\u2021\u00a7\u00b9\u00b2\u00b3]"
    r"|(?:source|sources|note|notes|see|footnote)\b)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Grid:
    """Cells as a file has them.

    Attributes:
        numbers: Number of each row, as the user counts it.
        rows: [R][C] cells, all rows of the same length; None where a cell is empty.
        fields: Fields of each row of a CSV file before it was padded; empty for other files.
        copies: Places (row, column) that a merged cell covers -> its first place; they have its value in `rows`.
        title: Text before the grid, such as the caption of an HTML table.
    """

    numbers: list[int]
    rows: list[list[object]]
    fields: list[int] = field(default_factory=list)
    copies: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    title: str = ""

    def part(self, start: int, end: int) -> Grid:
        """Returns some of the rows as a grid."""
        copies = {
            (row - start, column): (first - start, second)
            for (row, column), (first, second) in self.copies.items()
            if start <= row < end and start <= first
        }
        return Grid(self.numbers[start:end], self.rows[start:end], self.fields[start:end], copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A table of a grid.

    Attributes:
        header: Names of the columns; empty where there is none.
        rows: Pairs of row number and [C] cells.
        title: Lines above the header, joined.
        unit: Unit that the title or the header names, as written.
        notes: Lines below the table.
        header_rows: Lines of the header; 0 if it has none.
        changes: Pairs of what was changed, and an example.
        ragged: Number, fields and expected fields of the first row that does not fit; None if all fit.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[int, list[object]], ...]
    title: str = ""
    unit: str = ""
    notes: tuple[str, ...] = ()
    header_rows: int = 1
    changes: tuple[tuple[str, str], ...] = ()
    ragged: tuple[int, int, int] | None = None


def find_regions(grid: Grid, header_rows: int = 0) -> list[Region]:
    """Returns the tables of a grid, from top to bottom; [] if it is empty.

    Args:
        grid: The cells.
        header_rows: Lines of each header; 0: as the cells show, at most three.
    """
    regions = []
    tidy = _without_empty_columns(grid)
    rest: Grid | None = tidy
    while rest is not None:
        start = next((place for place in range(len(rest.rows)) if not _is_empty(rest.rows[place])), None)
        if start is None:
            break
        finder = _Finder(rest.part(start, len(rest.rows)), header_rows)
        regions.append(finder.region())
        rest = finder.rest
    if regions:
        first = regions[0]
        removed = max(map(len, grid.rows)) - len(tidy.rows[0])
        changes = (("empty columns removed", f"{removed} columns"),) if removed else ()
        title = " ".join(filter(None, (grid.title, first.title)))
        unit = first.unit or _unit_of([grid.title])
        regions[0] = replace(first, title=title, unit=unit, changes=(*first.changes, *changes))
    return regions


def _is_empty(cells: Sequence[object]) -> bool:
    return all(cell is None for cell in cells)


def _without_empty_columns(grid: Grid) -> Grid:
    """Returns the grid without columns that are empty in all rows, and with None for blank texts."""
    rows = [[None if isinstance(cell, str) and not cell.strip() else cell for cell in cells] for cells in grid.rows]
    width = max(map(len, rows), default=0)
    kept = [place for place in range(width) if any(cells[place] is not None for cells in rows)]
    if len(kept) == width:
        return replace(grid, rows=rows)
    places = {column: place for place, column in enumerate(kept)}
    copies = {
        (row, places[column]): (first, places[second])
        for (row, column), (first, second) in grid.copies.items()
        if column in places and second in places
    }
    # Separators of empty columns still count as fields of a CSV file, but no longer as columns.
    fields = [sum(place < size for place in kept) if size > 1 else size for size in grid.fields]
    return Grid(grid.numbers, [[cells[place] for place in kept] for cells in rows], fields, copies, grid.title)


class _Finder:
    """Finds the first table of a grid whose first row is not empty; `rest` is the grid below it."""

    def __init__(self, grid: Grid, header_rows: int) -> None:
        self.rest: Grid | None = None
        self._grid = grid
        self._rows = grid.rows
        self._given = header_rows
        self._width = max(map(len, grid.rows), default=0)
        self._kinds = [
            [kind_of(cell) if self._begins_cell(row, place) else "" for place, cell in enumerate(cells)]
            for row, cells in enumerate(grid.rows)
        ]
        self._changes: list[tuple[str, str]] = []

    def region(self) -> Region:
        first, last = self._header()
        start = last + 1
        end = self._end(start)
        if end < len(self._rows):
            self.rest = self._grid.part(end, len(self._rows))
        body = [place for place in range(start, end) if not _is_empty(self._rows[place])]
        if removed := end - start - len(body):
            self._changes.append(("empty rows removed", f"{removed} rows"))
        units = [self._line(place) for place in body[:1] if self._is_unit(place) and self._own(place)[0] > 0]
        body, notes = self._without_notes(body[len(units) :])
        body = self._without_repeated_header(first, last, body)
        titles = [line for place in range(first) if (line := self._line(place))]
        columns = self._gather(range(first, last + 1), body)
        header = columns.header
        if last >= first:
            header, titles = self._first_name(header, titles)
        rows = tuple(zip((self._grid.numbers[place] for place in body), columns.rows, strict=True))
        lines = last + 1 - first
        if lines > 1:
            self._changes.append((f"headers of {lines} lines, joined", ", ".join(header[1:])))
        if len(titles):
            self._changes.append(("titles above the header, kept as title", titles[0]))
        if notes:
            self._changes.append(("notes below the table, kept as notes", notes[0]))
        unit_lines = [
            *titles,
            *units,
            *(self._line(place) for place in range(first, last + 1)),
            header[0] if header else "",
        ]
        return Region(
            header=tuple(header),
            rows=rows,
            title=" ".join(titles),
            unit=_unit_of(unit_lines),
            notes=tuple(notes),
            header_rows=lines,
            changes=tuple(self._changes),
            ragged=self._ragged(first, last, body),
        )

    def _begins_cell(self, row: int, column: int) -> bool:
        """Returns whether a place is the leftmost of its cell in its row."""
        first = self._grid.copies.get((row, column), (-1, column))
        return first[0] != row and first[1] == column

    def _own(self, row: int) -> list[int]:
        """Returns the columns with a cell of their own, which no merged cell to their left or above covers."""
        return [
            place
            for place, cell in enumerate(self._rows[row])
            if cell is not None and (row, place) not in self._grid.copies
        ]

    def _line(self, row: int) -> str:
        return " ".join(dict.fromkeys(text_of(self._rows[row][place]) for place in self._own(row)))

    def _is_label(self, row: int) -> bool:
        """Returns whether a row has nothing but a text in its first column, or one merged text."""
        own = self._own(row)
        return own == [0] or (
            len({text_of(self._rows[row][place]) for place in own}) == 1 and self._width > 1 and 0 in own
        )

    def _has_values(self, row: int) -> bool:
        kinds = self._kinds[row][1:]
        if "number" in kinds or (bool(self._kinds[row][0]) and "dash" in kinds):
            return True
        marks = (text_of(self._rows[row][place]) for place, kind in enumerate(kinds, start=1) if kind == "mark")
        return any(not FOOTNOTE.fullmatch(mark) for mark in marks)  # names in a header may have footnote marks

    def _is_names(self, row: int) -> bool:
        """Returns whether a row has a name, text or period behind its first column, and no number."""
        return any(place > 0 for place in self._own(row)) and not self._has_values(row) and not self._is_label(row)

    def _counts(self, row: int) -> bool:
        """Returns whether the cells behind the first are 0, 1, 2, ... or 1, 2, 3, ..., as the names of a data frame."""
        texts = [text_of(cell) for cell in self._rows[row][1:]]
        return len(texts) > 1 and texts in (
            [str(number) for number in range(len(texts))],
            [str(number) for number in range(1, len(texts) + 1)],
        )

    def _header(self) -> tuple[int, int]:
        """Returns the first and last line of the header; the last is before the first if there is none."""
        total = len(self._rows)
        filled = [row for row in range(total) if not _is_empty(self._rows[row])]
        if self._width == 1:
            return self._chosen(filled[0], filled[0])
        values = next((row for row in filled if self._has_values(row)), total)
        names = [row for row in filled if row < values and self._is_names(row)]
        if not names:
            top = next((row for row in filled if not self._is_label(row)), filled[0])
            if top == values and self._counts(top):
                return self._chosen(top, top)
            if values == total or self._given:
                return self._chosen(top, top)
            self._changes.append(("tables without a header", self._line(top)))
            return top, top - 1
        below = [
            column for column in range(1, self._width) if any(row[column] is not None for row in self._rows[values:])
        ]
        below = below or list(range(1, self._width))
        covered = {row: sum(self._rows[row][column] is not None for column in below) for row in names}
        base = next(row for row in names if covered[row] >= _COVERED * max(covered.values()))
        titled = len(names) > _TITLE_LINES and not any(self._covers(row, below) for row in names[:-1])
        if titled and self._names_all(names[-1], below):
            base = names[-1]  # the lines above are titles that are spread over several columns
        dated = next((row for row in names if self._all_dated(row)), base)
        between = range(base, dated)
        if dated > base and (
            any(_is_empty(self._rows[row]) for row in between)
            or all(text_of(self._rows[row][0]).endswith(":") for row in between)
        ):
            base = dated
        first, last = self._upward(base), base
        while further := self._continues(first, last, values, below):
            last += further
        return self._chosen(first, last)

    def _covers(self, row: int, below: Sequence[int]) -> bool:
        """Returns whether a row names periods, or each of some columns with a cell of its own."""
        return self._all_dated(row) or {*below} <= {*self._own(row)}

    def _names_all(self, row: int, below: Sequence[int]) -> bool:
        """Returns whether a row names the first column and each of some others, with different texts."""
        texts = [text_of(self._rows[row][column]).casefold() for column in self._own(row)]
        return {0, *below} <= {*self._own(row)} and len({*texts}) == len(texts)

    def _is_remarks(self, row: int) -> bool:
        """Returns whether a row has a remark in brackets below each name, such as `(at birth)` and `(in grams)`."""
        texts = [text_of(self._rows[row][column]) for column in self._own(row)]
        return len(texts) > 1 and all(text.startswith("(") and text.endswith(")") for text in texts)

    def _chosen(self, first: int, last: int) -> tuple[int, int]:
        return (first, min(first + self._given, len(self._rows)) - 1) if self._given else (first, last)

    def _all_dated(self, row: int) -> bool:
        kinds = [kind for kind in self._kinds[row][1:] if kind]
        return bool(kinds) and all(kind == "dated" for kind in kinds)

    def _is_free(self, row: int) -> bool:
        """Returns whether the first cell of a row is empty, covered by a merged cell, or a unit."""
        cell = self._rows[row][0]
        return cell is None or (row, 0) in self._grid.copies or UNIT.fullmatch(text_of(cell)) is not None

    def _upward(self, base: int) -> int:
        """Returns the first of the lines above a line of names that belong to the header: `Year ended June 30,`."""
        first = base
        while first > 0 and base - first + 2 <= _AUTO_HEADER_ROWS:
            above = first - 1
            covers = self._grid.copies.get((first, 0), (first, 0))[0] <= above
            names = any(place > 0 for place in self._own(above)) and not self._has_values(above)
            if not names or not (covers or self._is_free(above)):
                break
            first = above
        return first

    def _continues(self, first: int, last: int, values: int, below: Sequence[int]) -> int:
        """Returns how many rows below a line of the header are further lines of it."""
        gap = int(last + 1 < values and _is_empty(self._rows[last + 1]))
        row = last + 1 + gap
        most = min(values, first + _AUTO_HEADER_ROWS + gap) - row
        if most < 1 or not self._is_names(row):
            return 0
        covered = (row, 0) in self._grid.copies and self._grid.copies[row, 0][0] <= last
        dated = self._is_free(row) and self._all_dated(row) and not self._all_dated(last)
        if covered or dated or self._is_unit(row) or self._is_remarks(row):
            return 1 + gap
        for further in range(1, most + 1):
            if not self._is_names(row + further - 1):
                break
            if self._completes(range(first, row), range(first, row + further), values, below):
                return further + gap
        return 0

    def _is_unit(self, row: int) -> bool:
        """Returns whether a row is one unit for all columns, which is no part of their names."""
        texts = {text_of(self._rows[row][place]) for place in self._own(row)}
        return len(texts) == 1 and all(map(UNIT.fullmatch, texts))

    def _completes(self, upper: range, header: range, values: int, below: Sequence[int]) -> bool:
        """Returns whether names of some lines are missing or repeated, and further lines complete all of them."""
        names = join_lines([self._rows[row] for row in upper], fill=False)
        shown = [names[column] for column in below]
        # Names stand above some columns of a layout only; these columns need no name of their own.
        needed = [
            column
            for column in below
            if (not names[column] or shown.count(names[column]) > 1) and self._is_value_column(column, values)
        ]
        last = header[-1]
        if not any(shown) or not needed or not all(self._rows[last][column] is not None for column in needed):
            return False
        cells = [kind for each in self._kinds[last + 1 :] for kind in each[1:] if kind]
        if 2 * sum(kind in ("number", "mark", "dash", "dated") for kind in cells) < len(cells):
            return False
        joined = join_lines([self._rows[row] for row in header], fill=self._fills(header))
        distinct = [
            joined[column].casefold()
            for column in below
            if self._is_value_column(column, values) and self._begins_cell(last, column)
        ]
        return len(set(distinct)) == len(distinct) or (self._is_free(last) and "dated" in self._kinds[last])

    def _is_value_column(self, column: int, values: int) -> bool:
        return any(kinds[column] not in ("", "mark") for kinds in self._kinds[values:])

    def _end(self, start: int) -> int:
        """Returns the row at which another table begins, with its titles, or the number of rows."""
        seen = False
        for row in range(start, len(self._rows)):
            if seen and (begin := self._begins(row, start)) is not None:
                return begin
            seen = seen or self._has_values(row)
        return len(self._rows)

    def _begins(self, row: int, start: int) -> int | None:
        """Returns the first title of a table whose header is at a row below values; None if no table begins there."""
        if not self._is_names(row):
            return None
        begin = row
        while begin - 1 > start and (self._is_label(begin - 1) or _is_empty(self._rows[begin - 1])):
            begin -= 1
        gap = next((place for place in range(begin, row) if _is_empty(self._rows[place])), None)
        dated = self._all_dated(row)
        if gap is None and not self._is_other_header(row, start):
            return None
        below = [place for place in range(row + 1, len(self._rows)) if not _is_empty(self._rows[place])]
        if not dated and (len(self._own(row)) < 2 or not self._rows[row][0] or "text" not in self._kinds[row][1:]):
            return None
        if not any(self._has_values(place) for place in (below if dated else below[:1])):
            return None
        return row if gap is None else gap

    def _is_other_header(self, row: int, start: int) -> bool:
        """Returns whether a row repeats the periods of the header under another first name, such as `Balance`."""
        above = self._rows[start - 1] if start else []
        own = text_of(self._rows[row][0])
        return (
            bool(own)
            and self._all_dated(row)
            and [text_of(cell) for cell in above[1:]] == [text_of(cell) for cell in self._rows[row][1:]]
            and own.casefold() != text_of(above[0]).casefold()
        )

    def _without_notes(self, body: list[int]) -> tuple[list[int], list[str]]:
        """Returns the rows without the notes at their end, and the notes."""
        cut = len(body)
        for place in range(len(body) - 1, 0, -1):
            row = body[place]
            line = self._line(row)
            separated = row - body[place - 1] > 1
            is_note = _NOTE.match(line) is not None and len(line) > 3
            if (
                self._is_label(row) and (is_note or separated or (len(line) > _LONGEST_LABEL and line.endswith(".")))
            ) or (is_note and not self._has_values(row) and (len(self._own(row)) <= 2 or self._is_short(row))):
                cut = place
            elif not self._is_label(row):
                break
        return body[:cut], [self._line(row) for row in body[cut:]]

    def _is_short(self, row: int) -> bool:
        """Returns whether a row of a CSV file has another number of fields than most, as a text with commas has."""
        sizes = self._grid.fields
        return bool(sizes) and sizes[row] != max(set(sizes), key=sizes.count)

    def _without_repeated_header(self, first: int, last: int, body: list[int]) -> list[int]:
        header = [[text_of(cell) for cell in self._rows[row]] for row in range(first, last + 1)]
        kept = [
            row for row in body if [text_of(cell) for cell in self._rows[row]] not in header or not self._is_names(row)
        ]
        if len(kept) < len(body):
            self._changes.append(("headers that are repeated between the rows, removed", self._line(first)))
        return kept

    def _gather(self, header: range, body: Sequence[int]) -> Columns:
        copies = self._grid.copies
        last = header[-1] if header else -1
        continued = [
            (last, column) in copies and copies[last, column] == copies.get((last, column - 1), (last, column - 1))
            for column in range(self._width)
        ]
        lines = [self._rows[row] for row in header if len(header) == 1 or not self._is_unit(row)]
        cells = [[self._value(row, column) for column in range(self._width)] for row in body]
        columns = gather_columns(lines, continued, cells, fill=self._fills(header))
        self._changes += columns.changes
        return columns

    def _fills(self, header: range) -> bool:
        """Returns whether an empty cell of a header belongs to the name to its left: merged cells are not known."""
        return not any(row in header for row, _ in self._grid.copies)

    def _value(self, row: int, column: int) -> object:
        """Returns a cell; one that is merged down is repeated if it is a text, and a number counts once only."""
        if (first := self._grid.copies.get((row, column))) is None:
            return self._rows[row][column]
        if first[0] == row or first[1] != column or self._kinds[row][column] != "text":
            return None
        if not any(kind.startswith("merged") for kind, _ in self._changes):
            self._changes.append(("merged cells repeated in each row", text_of(self._rows[row][column])))
        return self._rows[row][column]

    def _first_name(self, header: list[str], titles: list[str]) -> tuple[list[str], list[str]]:
        """Returns the names with one for the first column, and the titles with a title that stood in its place."""
        if header and len(header) > 1:
            is_title = len(header[0]) > _LONGEST_LABEL or (header[0] and UNIT.search(header[0]) and len(header[0]) > 20)
            if is_title:
                titles = [*titles, header[0]]
            if is_title or not header[0]:
                header = [FIRST_COLUMN, *header[1:]]
        return header, titles

    def _ragged(self, first: int, last: int, body: Sequence[int]) -> tuple[int, int, int] | None:
        if not self._grid.fields:
            return None
        sizes = self._grid.fields
        lines = range(first, last + 1) if last >= first else body[:1]
        width = max((sizes[row] for row in lines), default=0)
        for row in body:
            if sizes[row] != width and sizes[row] > 1:
                return self._grid.numbers[row], sizes[row], width
            if sizes[row] == 1 and self._width > 1 and not self._is_label(row):
                return self._grid.numbers[row], 1, width
        return None


def _unit_of(lines: Sequence[str]) -> str:
    """Returns the first unit that some lines name, without brackets around it."""
    for line in lines:
        if match := UNIT.search(line):
            return match[0].strip().strip("()").strip()
    return ""
