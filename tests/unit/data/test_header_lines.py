"""Titles and headers of several lines, as spreadsheets export them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.own_tables import write_rows

from finqa_cli.app import main
from finqa_cli.data.own_tables.header_lines import count_header_rows, join_header
from finqa_cli.data.own_tables.table_sources import find_tables

MERGED = ["", "Sales", "", "Margin", ""]
YEARS = ["Segment", "2023", "2024", "2023", "2024"]
BREAD = ["Bread", "540,100", "(602,300)", "12.5%", "13.1%"]


def counted(*lines: list[str]) -> int:
    header, *rows = lines
    return count_header_rows(header, list(enumerate(rows, start=2)))


def test_names_that_are_missing_or_repeated_need_the_second_line() -> None:
    assert counted(MERGED, YEARS, BREAD) == 2
    assert counted(["", "Sales", "Sales", "Margin", "Margin"], YEARS, BREAD) == 2
    assert join_header([MERGED, YEARS]) == ("Segment", "Sales 2023", "Sales 2024", "Margin 2023", "Margin 2024")


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([["item", "2023", "2024"], ["count", "2001", "2002"], ["cost", "5", "6"]], id="clear names"),
        pytest.param([["item", "2023", ""], ["sales", "5", "6"], ["cost", "5", "6"]], id="a row of numbers"),
        pytest.param([["item", "", "note"], ["a", "b", "c"], ["d", "e", "f"]], id="texts only"),
        pytest.param([["item", "2023", ""], ["unit", "EUR", ""], ["cost", "5", "6"]], id="still without a name"),
        pytest.param([["item", "", ""], ["unit", "x", "x"], ["cost", "5", "6"]], id="still the same names"),
        pytest.param([["item", "A", "A"], ["unit", "2023", "2024"]], id="nothing below"),
    ],
)
def test_any_other_header_has_one_line(lines: list[list[str]]) -> None:
    assert counted(*lines) == 1


@pytest.mark.parametrize("ending", ["csv", "xlsx"])
def test_headers_of_two_lines_are_joined_below_their_title(ending: str, tmp_path: Path) -> None:
    lines = [["Nordwind", None, None, None, None], [cell or None for cell in MERGED], YEARS, BREAD]
    if ending == "csv":
        write_rows(tmp_path / "segments.csv", [[cell or "" for cell in line] for line in lines])
    else:
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for line in lines:
            book.active.append(line)
        book.save(tmp_path / "segments.xlsx")
    (table,) = find_tables(tmp_path).tables
    assert table.title == "Nordwind"
    assert list(table.header) == ["Segment", "Sales 2023", "Sales 2024", "Margin 2023", "Margin 2024"]
    assert [list(cells) for _, cells in table.rows] == [BREAD]


def test_a_title_may_have_no_separator_and_an_empty_line_below(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("Nordwind AG\n\nEUR;2023;2024\nSales;5;6\n")
    (table,) = find_tables(tmp_path).tables
    assert (table.title, list(table.header)) == ("Nordwind AG", ["EUR", "2023", "2024"])


def test_a_value_column_without_a_name_is_below_no_title(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("item,\nSales,5\nCost,6\n")
    (table,) = find_tables(tmp_path).tables
    assert (table.title, list(table.header), len(table.rows)) == ("", ["item", ""], 2)


def test_the_number_of_lines_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("item,A,B\nunit,EUR,USD\nSales,5,6\n")
    assert list(find_tables(tmp_path, header_rows=2).tables[0].header) == ["item unit", "A EUR", "B USD"]
    assert "fewer than its header (--header-rows 4)" in str(find_tables(tmp_path, header_rows=4).problems[0])


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
