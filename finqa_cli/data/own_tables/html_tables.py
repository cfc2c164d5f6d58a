"""Tables of HTML files: filings as EDGAR publishes them, its R pages, and tables that data frames write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.own_tables.cell_numbers import read_number
from finqa_cli.data.own_tables.table_budget import Budget, Content
from finqa_cli.data.own_tables.table_region import Grid
from finqa_cli.data.own_tables.text_tables import decode
from finqa_cli.data.question_files.read_files import read_bytes

_HIDDEN = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")
)
_IGNORED = frozenset(("script", "style", "head", "ix:header"))
_BLOCKS = frozenset(("p", "div", "br", "li", "h1", "h2", "h3", "h4", "h5", "h6", "tr", "td", "th"))
_LONGEST_TITLE = 150
_LARGEST_SPAN = 1000
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?([A-Za-z0-9_-]{1,40})", re.IGNORECASE)


@dataclass(slots=True)
class _Cell:
    texts: list[str] = field(default_factory=list)
    down: int = 1
    across: int = 1

    def text(self) -> str:
        return " ".join("".join(self.texts).split())


@dataclass(slots=True)
class _Table:
    rows: list[list[_Cell]] = field(default_factory=list)
    cell: _Cell | None = None
    caption: list[str] | None = None
    title: str = ""


class _Parser(HTMLParser):
    """Collects the tables of a document. A table inside a cell of another stands for itself."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[_Table] = []
        self._open: list[_Table] = []
        self._hidden: list[str] = []
        self._before: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = {name: value or "" for name, value in attrs}
        if self._hidden:
            if tag not in _VOID:
                self._hidden.append(tag)
            return
        if tag in _IGNORED or (_HIDDEN.search(about.get("style", "")) and tag not in _VOID):
            self._hidden.append(tag)
            return
        table = self._open[-1] if self._open else None
        if tag == "table":
            title = [
                text for part in self._before[-2:] if (text := " ".join(part.split())) and len(text) <= _LONGEST_TITLE
            ]
            self._open.append(_Table(title=" ".join(title)))
            self._before = []
        elif table is None:
            if tag in _BLOCKS and (not self._before or self._before[-1].strip()):
                self._before.append("")
        elif tag == "tr":
            table.rows.append([])
            table.cell = None
        elif tag in ("td", "th"):
            table.rows = table.rows or [[]]
            table.cell = _Cell(down=_span(about.get("rowspan", "")), across=_span(about.get("colspan", "")))
            table.rows[-1].append(table.cell)
        elif tag == "caption":
            table.caption = []
        elif tag == "sup" and table.cell is not None:
            table.cell.texts.append(" \ue000")
        elif tag in _BLOCKS and table.cell is not None:
            table.cell.texts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag in self._hidden:
                while self._hidden.pop() != tag:
                    pass
            return
        table = self._open[-1] if self._open else None
        if table is None:
            return
        if tag == "table":
            self._open.pop()
            table.title = " ".join("".join(table.caption).split()) if table.caption else table.title
            self.tables.append(table)
        elif tag in ("td", "th", "tr"):
            table.cell = None
        elif tag == "sup" and table.cell is not None:
            table.cell.texts.append("\ue001")

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        table = self._open[-1] if self._open else None
        if table is None:
            if self._before:
                self._before[-1] += data
            elif data.strip():
                self._before.append(data)
        elif table.cell is not None:
            table.cell.texts.append(data)
        elif table.caption is not None and not table.rows:
            table.caption.append(data)


def _span(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 6 else 1
    return min(max(number, 1), _LARGEST_SPAN)


_RAISED = re.compile("\ue000\\s*([^\ue000\ue001]{0,20})\\s*\ue001")


def _footnote(text: str) -> str:
    """Returns a text with brackets around raised characters, which are footnote marks: `500 [1]`."""

    def bracketed(match: re.Match[str]) -> str:
        mark = match[1].strip()
        return mark if not mark or not mark.isalnum() else f"[{mark}]"

    return " ".join(_RAISED.sub(bracketed, text).replace("\ue000", "").replace("\ue001", "").split())


def html_tables(path: Path, encoding: str = "") -> Iterator[Content]:
    """Yields the tables of an HTML file that have at least two rows and columns and a number.

    Filings use tables for layout as well, for lists and signatures for example; these have no numbers.

    Raises:
        ProblemError: The file is unreadable or has no such table.
    """
    data = read_bytes(path)
    declared = _CHARSET.search(data[:4096])
    try:
        text = decode(path, data, encoding)[0]
    except ProblemError:
        if encoding or declared is None:
            raise
        text = decode(path, data, declared[1].decode())[0]
    parser = _Parser()
    parser.feed(text)
    parser.close()
    grids = [grid for table in parser.tables if (grid := _grid(path, table)) is not None]
    if not grids:
        raise ProblemError(Problem(file=str(path), reason="it contains no table with numbers"))
    for number, grid in enumerate(grids, start=1):
        yield Content(name=str(number) if len(grids) > 1 else "", grid=grid)


def _grid(path: Path, table: _Table) -> Grid | None:
    budget = Budget(str(path))
    grid = Grid([], [], title=table.title)
    waiting: dict[int, tuple[int, str, tuple[int, int]]] = {}
    for row, cells in enumerate(table.rows):
        texts: list[object] = []
        queue = list(cells)
        while queue or any(column >= len(texts) for column in waiting):
            place = len(texts)
            if place in waiting:
                left, text, first = waiting.pop(place)
                texts.append(text or None)
                grid.copies[row, place] = first
                if left > 1:
                    waiting[place] = (left - 1, text, first)
                continue
            if not queue:
                texts.append(None)
                continue
            cell = queue.pop(0)
            text = _footnote(cell.text())
            for offset in range(cell.across):
                if offset:
                    grid.copies[row, place + offset] = (row, place)
                texts.append(text or None)
                if cell.down > 1:
                    waiting[place + offset] = (cell.down - 1, text, (row, place))
        budget.spend(texts)
        grid.numbers.append(row + 1)
        grid.rows.append(texts)
    width = max(map(len, grid.rows), default=0)
    grid.rows = [[*cells, *[None] * (width - len(cells))] for cells in grid.rows]
    filled = [cells for cells in grid.rows if any(cells)]
    numbers = any(read_number(str(cell)) for cells in filled for cell in cells[1:] if cell)
    return grid if width > 1 and len(filled) > 1 and numbers else None
