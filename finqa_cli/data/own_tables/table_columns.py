"""Turns the columns of a grid's table into columns of values: layout columns are glued to their neighbours. Pure.

Filings give `$`, `)` and `%` cells of their own, and a cell without `$` spans the columns of both. So a column of
values may be two or three columns of the grid, of which at most one has a value in each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from finqa_cli.data.own_tables.cell_kinds import BEFORE, FOOTNOTE, kind_of, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns of values.

    Attributes:
        header: Their names; empty where there is none.
        rows: [R][C] cells.
        changes: Pairs of what was changed, and an example.
    """

    header: list[str]
    rows: list[list[object]]
    changes: list[tuple[str, str]]


def gather_columns(
    lines: Sequence[Sequence[object]], continued: Sequence[bool], body: Sequence[Sequence[object]], *, fill: bool
) -> Columns:
    """Returns the columns of values of a table.

    Args:
        lines: Cells of the header, line by line, merged cells repeated.
        continued: Whether the cell of the last line is the continuation of the merged cell to its left, by column.
        body: Cells of the rows; None where a merged cell continues.
        fill: See `join_lines`.
    """
    width = len(continued)
    lines = [[None if FOOTNOTE.fullmatch(text_of(cell)) else cell for cell in line] for line in lines]
    kinds = [[kind_of(cell) for cell in cells] for cells in body]
    names = join_lines(lines, fill=fill) if lines else ("",) * width
    groups: list[list[int]] = []
    for column in range(width):
        if groups and names[column] and names[column] == names[groups[-1][-1]]:
            joined = [*groups[-1], column]
            is_one = continued[column] or any(row[place] == "mark" for row in kinds for place in joined)
            if is_one and _is_one_column(kinds, joined):
                groups[-1].append(column)
                continue
        groups.append([column])
    return _Gathering(lines, body, kinds, groups, fill).columns()


def _is_one_column(kinds: Sequence[Sequence[str]], columns: Sequence[int]) -> bool:
    """Returns whether no row has two values in some columns; marks are no values."""
    return all(sum(row[column] not in ("", "mark") for column in columns) <= 1 for row in kinds)


class _Gathering:
    """Glues groups of columns that have only marks, or marks where their neighbour has values, to that neighbour."""

    def __init__(
        self,
        lines: Sequence[Sequence[object]],
        body: Sequence[Sequence[object]],
        kinds: Sequence[Sequence[str]],
        groups: Sequence[Sequence[int]],
        fill: bool,
    ) -> None:
        self._body = body
        self._kinds = kinds
        self._groups = groups
        self._fill = fill
        self._lines = [
            [next((line[column] for column in group if line[column] is not None), None) for group in groups]
            for line in lines
        ]
        self._content = [{row[column] for row in kinds for column in group} - {""} for group in groups]

    def columns(self) -> Columns:
        """Returns the columns of values."""
        total = range(len(self._groups))
        named = {place for place in total if any(line[place] is not None for line in self._lines)}
        layout = {place for place in total if place and self._content[place] == {"mark"}}
        mixed = {
            place
            for place in total
            if place and place not in named and len(self._content[place]) > 1
            if "mark" in self._content[place]
        }
        values = [place for place in total if place not in layout | mixed and (self._content[place] or not place)]
        members = {place: [place] for place in values}
        for place in sorted(layout | mixed):
            target = self._neighbour(place, values, members)
            if target is None:
                values = sorted([*values, place])
                members[place] = [place]
            else:
                members[target].append(place)
        empty = [place for place in total if place and not self._content[place]]
        for place in sorted((layout | mixed | set(empty)) & named - set(values)):
            if not self._give_name(place, values) and place not in layout:
                values = sorted([*values, place])
                members[place] = [place]
        names = join_lines(self._lines, fill=self._fill) if self._lines else ("",) * len(self._groups)
        columns = [sorted(column for part in members[place] for column in self._groups[part]) for place in values]
        rows = [[_glue(cells, group) for group in columns] for cells in self._body]
        changes = []
        if example := next(filter(None, map(self._example, columns)), ""):
            changes.append(("columns of marks glued to their neighbours", example))
        if removed := len([place for place in empty if place not in members]):
            changes.append(("empty columns removed", f"{removed} columns"))
        return Columns(header=[names[place] for place in values], rows=rows, changes=changes)

    def _example(self, columns: Sequence[int]) -> str:
        for cells in self._body:
            texts = [text_of(cells[column]) for column in columns if cells[column] is not None]
            if len(texts) > 1:
                return " ".join(texts)
        return ""

    def _neighbour(self, place: int, values: Sequence[int], members: dict[int, list[int]]) -> int | None:
        """Returns the column of values to which one with marks belongs: currencies stand before it, others not."""
        marks = [
            text_of(cells[column])
            for cells, kinds in zip(self._body, self._kinds, strict=True)
            for column in self._groups[place]
            if kinds[column] == "mark"
        ]
        before = 2 * sum(BEFORE.fullmatch(text) is not None for text in marks) > len(marks)
        left = max((other for other in values if 0 < other < place), default=None)
        right = min((other for other in values if other > place), default=None)
        for target in (right, left) if before else (left, right):
            if target is not None:
                columns = [column for part in (*members[target], place) for column in self._groups[part]]
                if _is_one_column(self._kinds, columns):
                    return target
        return None

    def _give_name(self, place: int, values: Sequence[int]) -> bool:
        """Moves the name above marks or empty cells to the neighbour; False if that has another name."""
        left = max((other for other in values if 0 < other < place), default=None)
        right = min((other for other in values if other > place), default=None)
        moved = True
        for line in self._lines:
            if line[place] is None:
                continue
            for target in (right, left):
                if target is not None and (line[target] is None or text_of(line[target]) == text_of(line[place])):
                    line[target], line[place] = line[place], None
                    break
            else:
                moved = False
        return moved


def _glue(cells: Sequence[object], columns: Sequence[int]) -> object:
    own = [cells[column] for column in columns if cells[column] is not None]
    return own[0] if len(own) == 1 else "".join(map(text_of, own)) if own else None


def join_lines(lines: Sequence[Sequence[object]], *, fill: bool) -> tuple[str, ...]:
    """Returns one name per column of header lines of the same length, the uppermost line first.

    With `fill`, in all lines but the last, an empty cell takes the name to its left, because it is part of a merged
    cell. It takes nothing from the first column, which names the rows.
    """
    filled = []
    for number, line in enumerate(lines, start=1):
        names = [text_of(cell) for cell in line]
        if fill and number < len(lines):
            for place in range(2, len(names)):
                names[place] = names[place] or names[place - 1]
        filled.append(names)
    return tuple(" ".join(dict.fromkeys(filter(None, parts))) for parts in zip(*filled, strict=True))
