"""Tables as people have them: titles, notes, layout columns and headers of several lines, in every format."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any

import pytest
from fixtures.own_tables import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.app import main
from finqa_cli.data.dataset import Table
from finqa_cli.data.openenv_layout.layout_reader import scan_layout
from finqa_cli.data.own_tables.assign_companies import build_tables
from finqa_cli.data.own_tables.import_options import ImportOptions
from finqa_cli.data.own_tables.table_cells import CellRules
from finqa_cli.data.own_tables.table_region import Grid, find_regions
from finqa_cli.data.own_tables.table_sources import Reading, find_tables
from finqa_cli.data.own_tables.tables_import import import_tables
from finqa_cli.data.table_findings import table_findings

Rows = list[list[Any]]


def read_all(source: Path, **rules: Any) -> list[Table]:
    """Returns the tables of a source as an import makes them."""
    found = find_tables(source)
    assert not found.unread, [one.problem for one in found.unread]
    options = ImportOptions(company="name:acme", cells=CellRules(**rules))
    tables = build_tables(found.tables, found.unread, [], options)
    assert not tables.bad
    return list(tables.by_key.values())


def write(folder: Path, name: str, content: str | bytes) -> Path:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def as_text(table: Table) -> Rows:
    return [list(table.columns), *map(list, table.rows)]


STATEMENT = [["Item", "2023", "2022"], ["Revenue", 10, 9]]
FORMS: dict[str, tuple[str, str | bytes, Rows]] = {
    "EDGAR marks in their own cells": (
        "t.csv",
        ',,2023,,,2022,\nNet revenue,$,"1,234",,$,"1,100",\nCost of sales,,"(700",),,"(650",)\n'
        "Net income,$,500,,$,430,\n",
        [
            ["item", "2023", "2022"],
            ["Net revenue", 1234, 1100],
            ["Cost of sales", -700, -650],
            ["Net income", 500, 430],
        ],
    ),
    "names above the marks": ("t.csv", "Item,2023,,2022,\nRevenue,$,10,$,9\n", STATEMENT),
    "marks before unnamed columns": ("t.csv", "Item,,2023,,2022\nRevenue,$,10,$,9\n", STATEMENT),
    "percent signs in a column": (
        "t.csv",
        "Item,2023,\nMargin,39.0,%\nTax,12.5,%\n",
        [["Item", "2023"], ["Margin", 0.39], ["Tax", 0.125]],
    ),
    "titles, padded": ("t.csv", '"Acme Corp",,\n"(in thousands)",,\nItem,2023,2022\nRevenue,10,9\n', STATEMENT),
    "titles, not padded": ("t.csv", "Acme Corp\n(in thousands)\nItem,2023,2022\nRevenue,10,9\n", STATEMENT),
    "a title and an empty line": ("t.csv", "Income,,\n,,\nItem,2023,2022\nRevenue,10,9\n", STATEMENT),
    "facts before the table": ("t.csv", "Company:,Acme,\n\nItem,2023,2022\nRevenue,10,9\n", STATEMENT),
    "notes, not padded": ("t.csv", "Item,2023,2022\nRevenue,10,9\n\n(1) Restated, as said.\nSource: Acme\n", STATEMENT),
    "notes, padded": ("t.csv", "Item,2023,2022\nRevenue,10,9\n(1) Restated.,,\n", STATEMENT),
    "UTF-16 with tabs": ("t.csv", "Item\t2023\t2022\nRevenue\t10\t9\n".encode("utf-16"), STATEMENT),
    "cp1252": ("t.csv", "Item,2023\nCaf\xe9,10\n".encode("cp1252"), [["Item", "2023"], ["Caf\xe9", 10]]),
    "bars": ("t.csv", "Item|2023|2022\nRevenue|10|9\n", STATEMENT),
    "sep=": ("t.csv", "sep=;\nItem;2023;2022\nRevenue;10;9\n", STATEMENT),
    "semicolons and commas": (
        "t.csv",
        "Item;2023;2022\nRevenue;1,234;1,100\n",
        [["Item", "2023", "2022"], ["Revenue", 1234, 1100]],
    ),
    "decimal commas, proven": (
        "t.csv",
        "Item;2023\na;1.234.567\nb;700.000\n",
        [["Item", "2023"], ["a", 1234567], ["b", 700000]],
    ),
    "decimal commas of the table": ("t.csv", "Item;A;B\na;1.234,5;4.120\n", [["Item", "A", "B"], ["a", 1234.5, 4120]]),
    "accounting format": (
        "t.csv",
        'Item,2023\nRevenue,"$1,234.00"\nCost,$(700.00)\nImpairment,"$-   "\nTax," $ -   "\nMargin,-%\n',
        [["Item", "2023"], ["Revenue", 1234], ["Cost", -700], ["Impairment", None], ["Tax", None], ["Margin", None]],
    ),
    "footnote marks": (
        "t.csv",
        'Item,2023\na,"1,234 (1)"\nb,(700)*\nc,45 (a)\nd,"2,100\u2020"\ne,500\xb9\nf,(50) (1)\n',
        [["Item", "2023"], ["a", 1234], ["b", -700], ["c", 45], ["d", 2100], ["e", 500], ["f", -50]],
    ),
    "a bracket that is never closed": (
        "t.csv",
        "Item,2023\nRevenue,1234\nCost,(700\nTax,($50\n",
        [["Item", "2023"], ["Revenue", 1234], ["Cost", -700], ["Tax", -50]],
    ),
    "titles spread over columns": (
        "t.csv",
        "People,,,,\nsome,notes,,at the,top\nor,that,,write,\nName,Trade,Age,Kids,Born\nAda,painter,61,yes,1901-02-03\n"
        "Bo,singer,40,no,1911-02-03\n",
        [
            ["Name", "Trade", "Age", "Kids", "Born"],
            ["Ada", "painter", 61, "yes", "1901-02-03"],
            ["Bo", "singer", 40, "no", "1911-02-03"],
        ],
    ),
    "remarks below the names": (
        "t.csv",
        "name,weight,death\n(at birth),(in grams),(about)\nClip,0.9,2007\nPin,1.5,2009\n",
        [["name (at birth)", "weight (in grams)", "death (about)"], ["Clip", 0.9, 2007], ["Pin", 1.5, 2009]],
    ),
    "guarded texts": ("t.csv", 'Item,2023\na,"=""1,234"""\n', [["Item", "2023"], ["a", 1234]]),
    "percent signs on some numbers": (
        "t.csv",
        "Item,% of total\na,94%\nb,6\n",
        [["Item", "% of total"], ["a", 0.94], ["b", 0.06]],
    ),
    "repeated header": ("t.csv", "Item,2023\na,5\nItem,2023\nb,6\n", [["Item", "2023"], ["a", 5], ["b", 6]]),
    "numbered columns": ("t.csv", ",0,1\na,5,6\n", [["item", "0", "1"], ["a", 5, 6]]),
    "columns, joined by key": (
        "t.json",
        '{"2023": {"Revenue": 10, "Cost": 7}, "2022": {"Cost": 6, "Revenue": 9}}',
        [["item", "2023", "2022"], ["Revenue", 10, 9], ["Cost", 7, 6]],
    ),
    "a missing key is an empty cell": (
        "t.json",
        '{"2023": {"Revenue": 10, "Cost": 7}, "2022": {"Cost": 6}}',
        [["item", "2023", "2022"], ["Revenue", 10, None], ["Cost", 7, 6]],
    ),
    "dates as milliseconds": (
        "t.json",
        '{"1703980800000": {"Revenue": 10}, "1672444800000": {"Revenue": 9}}',
        [["item", "2023-12-31", "2022-12-31"], ["Revenue", 10, 9]],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_gives_its_right_values(form: str, tmp_path: Path) -> None:
    name, content, expected = FORMS[form]
    (table,) = read_all(write(tmp_path, name, content))
    assert as_text(table) == expected
    unnamed = {"no_header"} if form == "numbered columns" else set()
    assert {each.code for each in table_findings([table])} - {"lost_mark"} == unnamed


CELLS = Path(__file__).parents[2] / "fixtures" / "filing_cells.tsv"
"""Cells with the marks that filings, bank exports and spreadsheets put on numbers, and the value of each."""


def test_200_cells_of_filings_give_their_values(tmp_path: Path) -> None:
    rows = [line.split("\t") for line in CELLS.read_text(encoding="utf-8").splitlines()[1:]]
    assert len(rows) == 200
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["Item", "2023"], *([f"line {at}", cell] for at, (cell, _) in enumerate(rows))])
    (table,) = read_all(tmp_path / "t.csv")
    expected = [json.loads(value) if value else None for _, value in rows]
    wrong = {
        cell: found
        for (cell, _), (_, found), value in zip(rows, table.rows, expected, strict=True)
        if type(found) is str or (found is None) != (value is None) or found != (value and pytest.approx(value))
    }
    assert not wrong


def test_titles_units_and_notes_are_kept_with_the_table(tmp_path: Path) -> None:
    text = "Acme Corp,,\n(in thousands),,\nItem,2023,2022\nRevenue,10,9 (1)\n(1) Restated.,,\n"
    (table,) = read_all(write(tmp_path, "t.csv", text))
    assert table.metadata["title"] == "Acme Corp (in thousands)"
    assert (table.metadata["unit"], table.metadata["notes"]) == ("in thousands", ["(1) Restated."])
    assert table.metadata["reading"] == ["column '2022', row 1: '9 (1)' was read without its footnote mark"]
    assert [each.code for each in table_findings([table])] == ["lost_mark"]


def test_a_dash_is_empty_or_zero(tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", "Item,2023\na,\u2014\nb,nil\nc,-\nd,5\ne,n/a\n")
    assert [row[1] for row in read_all(path)[0].rows] == [None, None, None, 5, None]
    assert [row[1] for row in read_all(path, dash="zero")[0].rows] == [0, 0, 0, 5, None]


FOUND: dict[str, tuple[str, str, str]] = {
    "no header": ("Revenue,10,9\nCost,7,6\n", "no_header", "column_1, column_2, column_3"),
    "years below the header": (
        "Item,A,B\nx,a,b\n,2023,2022\nRevenue,10,9\nCost,7,6\nTax,1,2\n",
        "years_in_rows",
        "2023, 2022",
    ),
    "a repeated name": ("Item,2023,2023\nRevenue,10,9\n", "repeated_column", "2023"),
    "an open bracket": ("Item,2023\nRevenue,10\nCost,(7\n", "lost_mark", "its bracket is never closed"),
    "a bracket that is never opened": ("Item,2023\nRevenue,10\nCost,7)\n", "unbalanced_bracket", "7)"),
    "numbers with other words": ("Item,2023\nRevenue,10 kr\nCost,7 kr\n", "text_column", "10 kr"),
    "a text among numbers": ("Item,2023\nRevenue,10\nCost,see note\nTax,3\n", "mixed_column", "see note"),
    "two currencies": ("Item,2023\nRevenue,$10\nCost,\u20ac7\n", "lost_mark", "several currencies"),
    "two decimal marks": ('Item,2023\nRevenue,"1.234,5"\nCost,"1,234.5"\nTax,3\n', "lost_mark", "set --decimal"),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_looks_wrong_is_found_in_the_table_alone(case: str, tmp_path: Path) -> None:
    text, code, example = FOUND[case]
    found = table_findings(read_all(write(tmp_path, "t.csv", text)))
    assert code in {each.code for each in found}
    assert example in next(each.example for each in found if each.code == code)


@pytest.mark.parametrize(
    "text", ["Form,N\n497K,1\n10-K,2\n485BPOS,3\n", "Day,N\n2023-12-31,1\n2024-03-31,2\n", "Id,N\n007,1\n123,2\n"]
)
def test_codes_and_dates_are_no_findings(text: str, tmp_path: Path) -> None:
    swapped = "\n".join(",".join(reversed(line.split(","))) for line in text.splitlines())
    assert not table_findings(read_all(write(tmp_path, "t.csv", swapped)))


def test_a_sheet_may_have_merged_cells_and_several_tables(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.title = "SEGMENTS "
    for cells in (
        ["Segments (in millions)"], [],
        ["Segment", "Item", "Year ended June 30,", None], [None, None, 2024, 2023],
        ["North", "Revenue", 10, 9], [None, "Cost", 7, 6], [],
        ["Balance", None, 2024, 2023], ["Assets", None, 100, 90],
    ):  # fmt: skip
        sheet.append(cells)
    for area in ("A3:A4", "B3:B4", "C3:D3", "A5:A6"):
        sheet.merge_cells(area)
    other = book.create_sheet("STATEMENT")
    for cells in (
        ["INCOME - USD ($) $ in Millions", "6 Months Ended", "12 Months Ended"],
        [None, "Mar. 29, 2025", "Sep. 28, 2024"],
        ["Sales", 5, 11],
    ):
        other.append(cells)
    other.merge_cells("A1:A2")
    book.save(tmp_path / "t.xlsx")
    first, second, third = read_all(tmp_path / "t.xlsx")
    assert as_text(first) == [
        ["Segment", "Item", "Year ended June 30, 2024", "Year ended June 30, 2023"],
        ["North", "Revenue", 10, 9],
        ["North", "Cost", 7, 6],
    ]
    assert (first.name, second.name, third.name) == ("t_SEGMENTS", "t_SEGMENTS _2", "t_STATEMENT")
    assert first.metadata["unit"] == "in millions"
    assert as_text(second) == [["Balance", "2024", "2023"], ["Assets", 100, 90]]
    assert as_text(third)[0] == ["item", "6 Months Ended Mar. 29, 2025", "12 Months Ended Sep. 28, 2024"]
    assert third.metadata["unit"] == "$ in Millions"


LABELS = st.from_regex(r"[A-Z][a-z]{2,9}(?: [a-z]{2,8})?", fullmatch=True)
NUMBERS = st.one_of(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9).map(lambda cents: cents / 100))


@st.composite
def statements(draw: Callable[..., Any]) -> Rows:
    """Statements: a header of years, and rows of a label and numbers, some of them missing."""
    years = draw(st.lists(st.integers(1990, 2030), min_size=1, max_size=3, unique=True))
    labels = draw(st.lists(LABELS, min_size=2, max_size=5, unique_by=str.casefold))
    rows = [[label, *draw(st.tuples(*[st.one_of(st.none(), NUMBERS)] * len(years)))] for label in labels]
    for row in rows:
        row[1] = draw(NUMBERS) if all(cell is None for cell in row[1:]) else row[1]
    return [["Item", *map(str, years)], *rows]


def written(value: float | None, *, currency: str = "") -> str:
    """Returns a number as filings write it."""
    if value is None:
        return ""
    text = f"{currency}{abs(value):,.2f}" if isinstance(value, float) else f"{currency}{abs(value):,}"
    return f"({text})" if value < 0 else text


def as_csv_lines(rows: Rows, folder: Path, separator: str) -> Path:
    import csv

    titles: Rows = [["Acme Corp"], ["Income statement (in thousands)"], []]
    cells = [[each if isinstance(each, str) else written(each) for each in row] for row in rows]
    with (folder / "t.csv").open("w", newline="", encoding="utf-16") as file:
        csv.writer(file, delimiter=separator).writerows([*titles, *cells, [], ["(1) Restated."]])
    return folder / "t.csv"


def as_edgar(rows: Rows, folder: Path, separator: str) -> Path:
    """Writes HTML as EDGAR has it: `$` and `)` in their own cells; a number without `$` spans both columns."""
    del separator
    head = "".join(f'<td colspan="3"></td><td colspan="3">{escape(name)}</td>' for name in rows[0][1:])
    lines = [f'<tr><td colspan="3"></td>{head}</tr>']
    for number, (label, *cells) in enumerate(rows[1:]):
        parts = [f'<td colspan="3">{escape(label)}</td>']
        for cell in cells:
            text = written(cell).removesuffix(")")
            end = "<td>)</td>" if cell is not None and cell < 0 else "<td></td>"
            start = f"<td>$</td><td>{text}</td>" if number == 0 and text else f'<td colspan="2">{text}</td>'
            parts.append(f'<td colspan="3"></td>{start}{end}')
        lines.append(f"<tr>{''.join(parts)}</tr>")
    page = f"<html><p>INCOME (in millions)</p><table>{''.join(lines)}</table></html>"
    return write(folder, "t.html", page)


def as_sheet(rows: Rows, folder: Path, separator: str) -> Path:
    del separator
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    header = ["Item", *map(int, rows[0][1:])]
    for cells in (["Acme Corp"], ["(in millions)"], [], header, *rows[1:]):
        book.active.append(cells)
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


def as_duckdb_table(rows: Rows, folder: Path) -> Path:
    duckdb = pytest.importorskip("duckdb")
    path = folder / "t.duckdb"
    with duckdb.connect(str(path)) as database:
        names = ", ".join(f'"{name}" {"TEXT" if place == 0 else "DOUBLE"}' for place, name in enumerate(rows[0]))
        database.execute(f"CREATE TABLE t ({names})")
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows[1:])
    return path


LAYOUTS = {"csv": as_csv_lines, "edgar": as_edgar, "sheet": as_sheet}


def same(table: Table, rows: Rows) -> None:
    assert [name.lower() for name in table.columns] == [name.lower() for name in rows[0]]
    assert [row[0] for row in table.rows] == [row[0] for row in rows[1:]]
    for cells, expected in zip(table.rows, rows[1:], strict=True):
        assert list(cells[1:]) == pytest.approx(expected[1:], nan_ok=True) or None in expected
        assert [cell is None for cell in cells] == [cell is None for cell in expected]
        assert [cell for cell in cells[1:] if cell is not None] == [cell for cell in expected[1:] if cell is not None]


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(rows=statements(), separator=st.sampled_from(",;\t|"))
def test_any_statement_is_read_back(
    layout: str, rows: Rows, separator: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (table,) = read_all(LAYOUTS[layout](rows, tmp_path_factory.mktemp("t"), separator))
    same(table, rows)


@settings(max_examples=3, deadline=None)  # a database takes a second
@given(rows=statements())
def test_any_table_of_duckdb_is_read_back(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> None:
    (table,) = read_all(as_duckdb_table(rows, tmp_path_factory.mktemp("t")))
    same(table, rows)


@settings(max_examples=40, deadline=None)
@given(
    rows=statements(),
    orient=st.sampled_from(["columns", "index", "split", "table", "records", "values", "parquet", "csv"]),
)
def test_any_form_of_a_data_frame_keeps_labels_and_cells(
    rows: Rows, orient: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pandas = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("t")
    frame = pandas.DataFrame([row[1:] for row in rows[1:]], index=[row[0] for row in rows[1:]], columns=rows[0][1:])
    if orient == "parquet":
        path = folder / "t.parquet"
        frame.to_parquet(path)
    elif orient == "csv":
        path = folder / "t.csv"
        frame.to_csv(path)
    else:
        path = folder / "t.json"
        kept = frame.reset_index(names="item") if orient in ("records", "values") else frame
        kept.to_json(path, orient=orient, double_precision=10)
    (table,) = read_all(path)
    if orient == "values":  # it has no names, which is said
        assert {each.code for each in table_findings([table])} >= {"no_header"}
        return
    same(table, [["item", *rows[0][1:]], *rows[1:]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.one_of(
                st.none(), st.sampled_from(["$", ")", "%", "(5", "2023", "a", "(1)", "in millions", "-"]), st.integers()
            ),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_any_grid_gives_tables_whose_rows_fit(cells: list[list[object]], header_rows: int) -> None:
    grid = Grid(list(range(len(cells))), cells)
    for region in find_regions(grid, header_rows):
        assert all(len(row) == len(region.header) for _, row in region.rows)


def test_small_files_cannot_become_large_tables(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    text = arrow.array(["x" * 900_000])
    column = arrow.DictionaryArray.from_arrays(arrow.array([0] * 5000, arrow.int32()), text)
    parquet.write_table(arrow.table({"item": column, "n": list(range(5000))}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 200_000
    (one,) = find_tables(tmp_path).unread
    assert "characters" in one.problem.reason
    write(
        tmp_path,
        "t.html",
        "<table><tr><td colspan=99999>1</td></tr>" + "<tr><td rowspan=99999 colspan=999>5" * 2 + "</table>",
    )
    (tmp_path / "t.parquet").unlink()
    assert len(find_tables(tmp_path).tables[0].header) <= 1000


def test_a_table_is_shown_as_an_agent_sees_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").mkdir()
    write(tmp_path / "t", "income.csv", "Acme (in thousands),\nItem,2023\nRevenue,10\nCost,see note\nTax,(3)\n")
    write(tmp_path, "q.csv", "question,answer\nHow much?,10\n")
    line = ["data", "import", "tables", f"{tmp_path}/t", f"--questions={tmp_path}/q.csv", "--company=name:acme"]
    assert main([*line, f"--out={tmp_path}/mine"]) == 0
    said = capsys.readouterr().out
    assert "Warning: columns of numbers have some texts" in said and "'see note'" in said
    assert main(["data", "show", f"{tmp_path}/mine", "Income", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["types"] == {"Item": "TEXT", "2023": "TEXT"} and document["rows"][2] == ["Tax", -3]
    assert document["info"]["unit"] == "in thousands"
    assert main(["data", "show", f"{tmp_path}/mine", "acme/income"]) == 0
    assert "2023 (TEXT)" in capsys.readouterr().out
    assert main(["data", "show", f"{tmp_path}/mine", "acme/incom"]) == 65
    assert f"fix: finqa data show {tmp_path}/mine acme/income" in capsys.readouterr().err
    assert main(["data", "check", f"{tmp_path}/mine"]) == 0
    assert main(["data", "check", f"{tmp_path}/mine", "--strict"]) == 65


def test_a_folder_of_databases_is_imported_as_published(tmp_path: Path) -> None:
    """A database for each company in a folder of its own, described by CSV files beside it, and `db_id` and `SQL`."""
    for company, sales in (("acme", 10), ("zeta", 20)):
        folder = tmp_path / "dbs" / company / "database_description"
        folder.mkdir(parents=True)
        write(folder, "income.csv", "original_column_name,column_name\nitem,item\n")
        with closing(sqlite3.connect(folder.parent / f"{company}.sqlite")) as database:
            database.execute("CREATE TABLE income (item TEXT, sales INTEGER)")
            database.execute("INSERT INTO income VALUES ('all', ?)", (sales,))
            database.execute("CREATE TABLE empty (item TEXT)")
            database.commit()
    rows = [
        {"question_id": 1, "db_id": "acme", "question": "Sales?", "SQL": "SELECT sales FROM income"},
        {"question_id": 2, "db_id": "zeta", "question": "Sales?", "SQL": "SELECT sales FROM income"},
    ]
    write(tmp_path, "dev.json", json.dumps(rows))
    report = import_tables(tmp_path / "dbs", tmp_path / "dev.json", ImportOptions())
    assert [(one.company, one.answer) for one in report.report.dataset.questions] == [("acme", "10"), ("zeta", "20")]
    assert (report.rule, len(report.not_read), len(report.left_out)) == ("folder", 2, 2)


def test_one_table_can_be_read_by_rules_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t/acme").mkdir(parents=True)
    write(tmp_path / "t/acme", "income.csv", 'x,y,z\nunit,EUR,USD\nJuice,"1,234",2\n')
    write(tmp_path / "t/acme", "other.csv", 'item,2023\nCaf\xe9,"1,234"\n'.encode("latin-1"))
    write(tmp_path, "q.csv", "question,answer,company\nq?,5,acme\n")
    line = ["data", "import", "tables", f"{tmp_path}/t", f"--questions={tmp_path}/q.csv", f"--map={tmp_path}/m.toml"]
    rules = '[tables."acme/income"]\nskip = 1\nheader_rows = 1\ndecimal = ","\nunit = "thousands"\n'
    write(tmp_path, "m.toml", f'{rules}[tables.other]\nencoding = "latin-1"\n')
    assert main([*line, f"--out={tmp_path}/mine"]) == 0
    (income, other) = scan_layout(tmp_path / "mine").dataset.tables
    assert as_text(income) == [["unit", "EUR", "USD"], ["Juice", 1.234, 2]] and income.metadata["unit"] == "thousands"
    assert as_text(other) == [["item", "2023"], ["Caf\xe9", 1234]]
    for wrong, said in (
        ('[tables."acme/incom"]\nskip = 1\n', "there is no such table; there are, for example: acme/income"),
        ("[tables.other]\nskp = 1\n", "is not known; known: header_rows"),
        ('[tables.other]\ndecimal = ";"\n', "decimal is auto or . or ,"),
    ):
        write(tmp_path, "m.toml", wrong)
        capsys.readouterr()
        assert main([*line, f"--out={tmp_path}/other"]) in (2, 65)
        assert said in capsys.readouterr().err


def test_the_number_of_lines_can_be_given(tmp_path: Path) -> None:
    write(tmp_path, "t.csv", "item,A,B\nunit,EUR,USD\nSales,5,6\n")
    (table,) = find_tables(tmp_path, reading=Reading(header_rows=2)).tables
    assert list(table.header) == ["item unit", "A EUR", "B USD"]
    (one,) = find_tables(tmp_path, reading=Reading(header_rows=4)).unread
    assert "fewer than its header (--header-rows 4)" in str(one.problem)


MERGED = ["", "Sales", "", "Margin", ""]
YEARS = ["Segment", "2023", "2024", "2023", "2024"]
BREAD = ["Bread", "540,100", "(602,300)", "12.5%", "13.1%"]


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        ([MERGED, YEARS, BREAD], ["Segment", "Sales 2023", "Sales 2024", "Margin 2023", "Margin 2024"]),
        ([["item", "2023", "2024"], ["count", "2001", "2002"], ["cost", "5", "6"]], ["item", "2023", "2024"]),
        ([["item", "2023", ""], ["sales", "5", "6"], ["cost", "5", "6"]], ["item", "2023", ""]),
        ([["item", "", "note"], ["a", "b", "c"], ["d", "e", "f"]], ["item", "", "note"]),
        ([["item", "2023", ""], ["unit", "EUR", ""], ["cost", "5", "6"]], ["item", "2023", ""]),
        ([["item", "", "x"], ["unit", "x", "x"], ["cost", "5", "6"]], ["item", "", "x"]),
    ],
)
def test_lines_of_names_are_joined_where_names_need_it(lines: list[list[str]], header: Sequence[str]) -> None:
    (region,) = find_regions(Grid(list(range(len(lines))), [list(line) for line in lines]))
    assert list(region.header) == header


def test_the_import_reports_what_was_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").mkdir()
    write_rows(tmp_path / "t/segments.csv", [MERGED, YEARS, BREAD])
    questions = "question,answer,table\nHow many?,540.100.5,segments\nHow much?,98756 EUR,segments\n"
    (tmp_path / "q.csv").write_text(questions)
    line = ["data", "import", "tables", str(tmp_path / "t"), "--questions", str(tmp_path / "q.csv")]
    assert main([*line, "--company", "name:nordwind", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "headers of 2 lines, joined: 1, for example nordwind/segments: 'Sales 2023, Sales 2024," in shown
    assert "answers with digits that are no single number: 1, for example" in shown
    assert "answers are a number with words or a currency" in shown
    assert "its unit in the question): 1, for example" in shown and "row 3: '98756 EUR'" in shown
    assert main([*line, "--company", "name:nordwind", "--out", str(tmp_path / "p"), "--header-rows", "0"]) == 2


@pytest.mark.parametrize(
    ("questions", "options", "fix"),
    [
        ("question,answer\nq?,5\n", [], "fix: --company name:NAME"),
        ("question,answer\nq?,5\n", ["--company", "nordwind"], "belong to one company: --company name:nordwind"),
        ("frage,answer\nq?,5\n", ["--company", "name:n"], "fix: --column question=NAME"),
        ("question\nq?\n", ["--company", "name:n"], "fix: --column answer=NAME"),
    ],
)
def test_the_remedy_is_the_option_that_is_missing(
    questions: str, options: list[str], fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/income.csv").write_text("item,2023\nSales,5\n")
    (tmp_path / "q.csv").write_text(questions)
    line = ["data", "import", "tables", str(tmp_path / "t"), "--questions", str(tmp_path / "q.csv")]
    assert main([*line, "--out", str(tmp_path / "out"), *options]) != 0
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ("question,answer,table\nq?,5,incom\n", "has no table 'incom'; it has: income, balance"),
        (
            "question,answer,table,sql\nq?,5,income,\"SELECT sales FROM income WHERE item = 'Sales'\"\n",
            "no such column: sales (income has: item, 2023)",
        ),
    ],
)
def test_a_question_about_what_is_not_there_names_what_is(
    questions: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").mkdir()
    for name in ("income", "balance"):
        (tmp_path / f"t/{name}.csv").write_text("item,2023\nSales,5\n")
    (tmp_path / "q.csv").write_text(questions)
    line = ["data", "import", "tables", str(tmp_path / "t"), "--questions", str(tmp_path / "q.csv")]
    assert main([*line, "--company", "name:n", "--out", str(tmp_path / "out")]) == 65
    assert said in capsys.readouterr().err


def test_where_a_table_belongs_is_decided_for_each_table(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    write(tmp_path / "acme", "income.csv", "Item,2023\nRevenue,10\n")
    write(tmp_path, "byte.csv", "Item,2023\nRevenue,20\n")
    write(tmp_path, "staff.csv", "_company,Year,Staff\nacme,2023,5\nbyte,2023,6\n")
    write(tmp_path, "rates.csv", "Currency,Rate\nEUR,1.1\n")
    with closing(sqlite3.connect(tmp_path / "pages.sqlite")) as database:
        database.executescript(
            "CREATE TABLE documents (ticker TEXT, table_name TEXT); INSERT INTO documents VALUES ('acme', 'page_1');"
            "INSERT INTO documents VALUES ('byte', 'page_2'); CREATE TABLE page_1 (Item TEXT, V INTEGER);"
            "INSERT INTO page_1 VALUES ('Cash', 1); CREATE TABLE page_2 (Item TEXT, V INTEGER);"
            "INSERT INTO page_2 VALUES ('Cash', 2);"
        )
    found = find_tables(tmp_path)
    tables = build_tables(found.tables, found.unread, [("acme", ""), ("byte", "")], ImportOptions())
    assert not tables.bad and tables.rule == "each table"
    names = {company: {name for owner, name in tables.by_key if owner == company} for company in ("acme", "byte")}
    shared = {"staff", "rates", "documents"}
    assert names == {"acme": {"income", "page_1", *shared}, "byte": {"byte", "page_2", *shared}}
    assert tables.by_key["byte", "staff"].rows == (("2023", 6),), "the first column names the rows"
    assert tables.by_key["byte", "rates"].rows == tables.by_key["acme", "rates"].rows == (("EUR", 1.1),)


def test_folders_of_text_to_sql_benchmarks_come_in_as_published(tmp_path: Path) -> None:
    for name in ("finance", "retail"):
        folder = tmp_path / "database" / name
        (folder / "database_description").mkdir(parents=True)
        write(folder / "database_description", "loans.csv", "original_column_name,description\nid,key\n")
        with closing(sqlite3.connect(folder / f"{name}.sqlite")) as database:
            database.executescript("CREATE TABLE loans (id INTEGER, amount INTEGER); INSERT INTO loans VALUES (1, 70);")
    query = "SELECT amount FROM loans WHERE id = 1"
    for number, key in enumerate(("SQL", "query")):
        rows = [
            {"db_id": name, "question": f"How much is the loan of {name}?", key: query}
            for name in ("finance", "retail")
        ]
        questions = write(tmp_path, f"dev_{number}.json", json.dumps(rows))
        report = import_tables(tmp_path / "database", questions, ImportOptions()).report
        assert [(each.company, each.answer) for each in report.dataset.questions] == [
            ("finance", "70"),
            ("retail", "70"),
        ]
        assert sorted(f"{table.company}/{table.name}" for table in report.dataset.tables) == [
            "finance/loans",
            "retail/loans",
        ]
