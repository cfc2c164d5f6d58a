"""Cells, columns, companies, splits and gold queries of own tables."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from fixtures.own_tables import (
    FORMS,
    NEEDS,
    as_csv,
    as_excel,
    as_sqlite,
    question_rows,
    row,
    write_questions,
    write_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.app import main
from finqa_cli.data.dataset import Cell, SplitShares, Table, split_companies
from finqa_cli.data.own_tables.cell_numbers import read_number
from finqa_cli.data.own_tables.gold_queries import (
    GoldQueryError,
    answer_text,
    as_program_table,
    find_missing_column,
    program_query,
    run_gold_query,
)
from finqa_cli.data.own_tables.import_options import ImportOptions
from finqa_cli.data.own_tables.table_cells import CellRules, Conversions, convert_columns
from finqa_cli.data.own_tables.tables_import import TablesReport, import_tables
from finqa_cli.errors import FinqaError
from finqa_cli.grading.programs import ProgramError, execute, parse

NUMBERS: dict[str, int | float | None] = {
    "1234": 1234, "1,234,567": 1234567, "(1,234)": -1234, "$1,234.50": 1234.5, "($6)": -6, "$(6)": -6, "-$6": -6,
    "\u22125": -5, "5-": -5, "+5": 5, "6 €": 6, "12.5%": 0.125, "(3)%": -0.03, "(3%)": -0.03, "6.4%": 0.064, ".5": 0.5,
    "1 234": 1234, "1\u202f234": 1234, "1'234": 1234, "1.2e5": 120000.0, "-4 ( 4 )": -4, "27.5% ( 27.5 % )": 0.275,
    "": None, "0": 0, "0.5": 0.5, "999999999999999999": 999999999999999999,
    "007": None, "12,34": None, "1,23,456": 123456, "--5": None, "(-5)": None, "(5": -5, "(-5": None, "5)": None,
    "4 ( 5 )": None, "$5€": None, "%": None, "1.234,56": None, "nan": None, "inf": None, "٣": None, "1e999": None,
    "9" * 19: None,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers_are_read_as_people_write_them(text: str, value: int | float | None) -> None:
    reading = read_number(text)
    assert (reading.value if reading else None) == value


@pytest.mark.parametrize(("text", "value"), [("1.234,5", 1234.5), ("12,5%", 0.125), ("1.234", 1234), ("1,234.5", None)])
def test_a_comma_may_be_the_decimal_point(text: str, value: float | None) -> None:
    reading = read_number(text, ",")
    assert (reading.value if reading else None) == value


@given(
    number=st.integers(-(10**15), 10**15),
    decimals=st.integers(0, 4),
    style=st.sampled_from(["plain", "brackets", "minus after", "currency"]),
    mark=st.sampled_from([(",", "."), (" ", "."), ("'", "."), (".", ",")]),
)
def test_every_way_to_write_a_number_gives_it_back(
    number: int, decimals: int, style: str, mark: tuple[str, str]
) -> None:
    grouping, point = mark
    value = number / 10**decimals
    digits = f"{abs(value):,.{decimals}f}".translate({ord(","): grouping, ord("."): point})
    written = {
        "plain": f"{'-' * (number < 0)}{digits}",
        "brackets": f"({digits})" if number < 0 else digits,
        "minus after": f"{digits}{'-' * (number < 0)}",
        "currency": f"{'-' * (number < 0)}${digits}",
    }[style]
    reading = read_number(written, "," if point == "," else ".")
    assert reading is not None and reading.value == pytest.approx(float(f"{value:.{decimals}f}"), rel=1e-12)


@given(
    cells=st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(["1,234", "(5)", "12%", "n/a", "-", "007", "3/4/2024", "31.12.2023", "#REF!", " x ", ""]),
            st.integers(),
            st.floats(),
            st.booleans(),
            st.none(),
        ),
        max_size=12,
    )
)
def test_any_column_keeps_its_rows_and_becomes_plain(cells: list[object]) -> None:
    try:
        rows = convert_columns(["a"], [[cell] for cell in cells], CellRules(), Conversions(), "t")
    except ValueError as error:
        assert isinstance(cells[error.args[0]], str) and error.args[2]  # a lone surrogate or NUL
        return
    assert len(rows) == len(cells)
    assert all(isinstance(cell, str | int | float | None) and not isinstance(cell, bool) for (cell,) in rows)
    again = convert_columns(["a"], [list(each) for each in rows], CellRules(), Conversions(), "t")
    assert len(again) == len(rows)


def column(*cells: object, **rules: object) -> tuple[list[Cell], dict[str, int]]:
    found = Conversions()
    rows = convert_columns(["a"], [[cell] for cell in cells], CellRules(**rules), found, "t")  # type: ignore[arg-type]
    return [cell for (cell,) in rows], found.counts


def test_columns_are_read_as_a_whole() -> None:
    assert column("1,234", "n/a", "see note") == (
        [1234, None, "see note"],
        {"thousands separators": 1, "markers for missing values": 1, "texts in numeric columns, kept": 1},
    )
    assert column("007", "1,234")[0] == ["007", "1,234"]  # identifiers
    assert column("a", "b", "3")[0] == ["a", "b", "3"]  # texts
    assert column("1,234", "(5)", convert=False)[0] == ["1,234", "(5)"]
    assert column("5%", "x%", percent="text")[0] == ["5%", "x%"]
    assert column(" a ", "  ", None)[0] == ["a", None, None]
    assert column(1, "#DIV/0!")[0] == [1, None]
    hint = "numbers with three decimals beside whole numbers (if these are thousands: --decimal ,)"
    assert column("4.120", "$4.385", "(1.250)", "2210")[1][hint] == 3
    assert column("4,120", "2210", decimal=",")[1][hint.replace("l ,", "l .")] == 1
    for plain in (("4.120", "4.385"), ("4.120", "4.38", "2210"), ("0.120", "2210"), ("4.125%", "2210"), ("4,120", "7")):
        assert not any("--decimal" in kind for kind in column(*plain)[1]), plain
    brackets = [["10%", "1,000"], ["12%", "2,000"]]
    rows = convert_columns(["tax bracket", "2023"], brackets, CellRules(), Conversions(), "t")
    assert rows == (("10%", 1000), ("12%", 2000))  # the first column names the rows
    with pytest.raises(ValueError, match="more than 300 digits"):
        column(10**400)


@pytest.mark.parametrize(
    ("cells", "dates", "expected"),
    [
        (("31.12.2023", "1.2.2024"), "auto", ["2023-12-31", "2024-02-01"]),
        (("12/31/2023", "2/1/2024"), "auto", ["2023-12-31", "2024-02-01"]),
        (("3/4/2024", "5/6/2024"), "auto", ["3/4/2024", "5/6/2024"]),
        (("3/4/2024", "5/6/2024"), "day-first", ["2024-04-03", "2024-06-05"]),
        (("3/4/2024", "5/6/2024"), "month-first", ["2024-03-04", "2024-05-06"]),
        (("13/1/2024", "1/13/2024"), "auto", ["13/1/2024", "1/13/2024"]),
        (("31-Dec-2023", "March 3, 2024"), "auto", ["2023-12-31", "2024-03-03"]),
        (("2023/1/2", "n/a"), "auto", ["2023-01-02", None]),
        (("31.2.2024", "1.2.2024"), "auto", ["31.2.2024", "1.2.2024"]),
    ],
)
def test_dates_become_iso_where_their_order_is_known(cells: tuple[str, ...], dates: str, expected: list[Cell]) -> None:
    found, counts = column(*cells, dates=dates)
    assert found == expected
    assert ("day and month" in str(counts)) == (cells == ("3/4/2024", "5/6/2024") and dates == "auto")


HOSTILE = ["(" * 900_000, "1," * 400_000, " " * 900_000, "-" * 900_000, "1" * 900_000, "$(" * 400_000, "1 (" * 30]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:4])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_no_cell_takes_long(text: str) -> None:
    assert column(1, 2, 3, text)[0][:3] == [1, 2, 3]


def imported(
    folder: Path, *, source: Path | None = None, rows: list[dict[str, str]], **options: object
) -> TablesReport:
    questions = write_questions(folder / "asked.csv", rows)
    return import_tables(source or folder / "tables", questions, ImportOptions(**options))  # type: ignore[arg-type]


def test_names_of_columns_are_made_unique_and_reported(tmp_path: Path) -> None:
    rows = [["item", "2023", "2023", "", "Item", ""], ["sales", "1", "2", "3", "4", ""], ["", "", "", "", "", ""]]
    write_rows(tmp_path / "tables/acme/t.csv", [list(each) for each in rows])
    report = imported(tmp_path, rows=[{**row("1", "acme", "?", "t"), "answer": "1"}])
    (table,) = report.report.dataset.tables
    assert table.columns == ("item", "2023", "2023_2", "column_4", "Item_2")
    assert {str(each["kind"]) for each in report.conversions} == {
        "repeated column names, numbered",
        "columns without a name, named by their position",
        "empty columns removed",
        "empty rows removed",
    }


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_file_may_be_separated_otherwise(separator: str, tmp_path: Path) -> None:
    path = tmp_path / "tables/acme/t.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(f"\ufeffitem{separator}2023\r\nsales{separator}1,5\r\n".encode())
    questions = tmp_path / "asked.csv"
    questions.write_text(f"question{separator}answer\nHow much?{separator}1.234,5\n")
    report = import_tables(tmp_path / "tables", questions, ImportOptions(cells=CellRules(decimal=",")))
    assert report.report.dataset.tables[0].rows == (("sales", 1.5),)
    assert report.report.dataset.questions[0].answer == "1234.5"  # a grader would read 1,5 as 15


def test_one_file_is_enough_and_its_column_tells_the_companies(tmp_path: Path) -> None:
    write_rows(tmp_path / "all.csv", [["Company", "item", "2023"], ["acme", "sales", "1"], ["zeta", "sales", "2"]])
    rows = [{**row(name, name, "?", "all.csv"), "answer": "1"} for name in ("acme", "zeta")]
    report = imported(tmp_path, source=tmp_path / "all.csv", rows=rows)
    assert report.rule == "column:company" and report.report.dataset.companies() == ("acme", "zeta")
    assert {table.columns for table in report.report.dataset.tables} == {("item", "2023")}
    assert {question.table_name for question in report.report.dataset.questions} == {"all"}


@pytest.mark.parametrize("rule", ["auto", "questions", "name:acme", "file"])
def test_companies_come_by_every_rule(rule: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "tables/income.csv", [["item", "2023"], ["sales", "1"]])
    write_rows(tmp_path / "tables/other.csv", [["item", "2023"], ["sales", "1"]])
    company = "income" if rule == "file" else "acme"
    report = imported(tmp_path, rows=[{**row("1", company, "?", "income"), "answer": "1"}], company=rule)
    companies = {"auto": ("acme",), "questions": ("acme",), "name:acme": ("acme",), "file": ("income", "other")}[rule]
    assert report.report.dataset.companies() == companies
    assert len(report.not_read) == (rule in ("auto", "questions"))  # no question names the table `other`


def test_a_workbook_for_each_company_is_found_without_a_rule(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="needs finqa[tables]")
    report = imported(tmp_path, source=as_excel(tmp_path), rows=question_rows())
    assert (report.rule, report.experts) == ("file", 12)
    assert {str(table.metadata["title"]) for table in report.report.dataset.tables} >= {"corvane: income"}


def test_splits_are_those_of_the_column_or_seeded_by_company(tmp_path: Path) -> None:
    as_csv(tmp_path)
    named = [{**each, "split": "val" if each["company"] == "corvane" else ""} for each in question_rows()]
    splits = {each.company: each.split for each in imported(tmp_path, rows=named).report.dataset.questions}
    assert splits["corvane"] == "dev" and set(splits.values()) == {"train", "dev", "test"} - {"test"} | {
        splits["ardenhill"]
    }
    held_out = imported(tmp_path, rows=question_rows(), evaluation_only=True).report.dataset
    assert held_out.evaluation_only and held_out.split_counts() == {"test": 12}


@given(names=st.lists(st.text(min_size=1, max_size=5), unique=True, min_size=2, max_size=30), seed=st.integers(0, 99))
def test_two_or_more_companies_have_a_test_split(names: list[str], seed: int) -> None:
    splits = split_companies(names, seed, SplitShares())
    assert set(splits) == set(names) and {"train", "test"} <= set(splits.values())
    shuffled = random.Random(0).sample(names, len(names))
    assert split_companies(shuffled, seed, SplitShares()) == splits


def test_gold_sql_is_tried_and_left_out_where_it_is_wrong(tmp_path: Path) -> None:
    as_csv(tmp_path)
    asked = row("1", "ardenhill", "What were net sales in 2023?", "")
    query = 'SELECT "2023" FROM income WHERE "line item" = \'Net sales\''
    joined = f'SELECT ({query}) + max("2022") FROM balance WHERE 1 = 1'
    rows = [
        {**asked, "sql": query},
        {**asked, "id": "2", "answer": "5", "sql": query},
        {**asked, "id": "3", "sql": joined},
    ]
    report = imported(tmp_path, rows=rows)
    first, second, third = report.report.dataset.questions
    assert (first.table_name, first.answer, first.gold_sql) == ("income", "11240", query)
    assert (second.answer, second.gold_sql) == ("5", "")
    assert json.loads(third.table_name) == ["balance", "income"] and third.answer == str(11240 + 980000)
    assert "gold SQL whose value is not the answer, skipped" in str(report.conversions)
    (unused,) = report.unused
    assert (unused.id, unused.row) == ("2", 3)
    assert unused.reason == "the gold SQL returns '11240', but the answer is '5'"


QUOTED = {
    'SELECT "2025" FROM t WHERE item = "Sales"': "",  # a text in double quotes that is a cell
    'SELECT "ITEM" FROM t AS "x" WHERE "x"."item" = \'"2026"\' -- "2026"': "",
    'SELECT "2026" FROM t': 'no such column: 2026 (t has: item, 2025), so SQLite reads "2026" as a text',
    'SELECT "2025" - "20""26" FROM t': 'no such column: 20"26',
    'SELECT "2025" FROM t WHERE item = "Sales" AND "Costs" > 1': "no such column: Costs",
}


@pytest.mark.parametrize(("query", "reason"), QUOTED.items())
def test_names_in_double_quotes_that_are_no_columns_are_found(query: str, reason: str) -> None:
    table = Table(company="acme", name="t", columns=("item", "2025"), rows=(("Sales", 5),))
    found = find_missing_column([table], query)
    assert reason in found and bool(found) == bool(reason)


def test_a_name_that_is_no_column_is_an_error_unless_the_answer_is_right(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("item,2025\nSales,5\n")
    options = ImportOptions(company="name:acme")
    for answer, kept in (("", 0), ("7", 0), ("2026", 1)):
        rows = [{"question": "q?", "answer": answer, "sql": 'SELECT "2026" FROM t', "table": "t"}]
        rows += [{"question": "r?", "answer": "5", "sql": 'SELECT "2025" FROM t', "table": "t"}]
        write_questions(tmp_path / "q.json", rows)
        report = import_tables(tmp_path / "t.csv", tmp_path / "q.json", options, skip_bad=True).report
        assert report.kept == 1 + kept and len(report.problems) == 1 - kept


SCALED = {"$88.0m": 88e6, "61.5 million": 61.5e6, "US$ 5m": 5e6, "EUR 12 thousands": 12e3, "-$8bn": -8e9,
          "($4m)": -4e6,
          "1.5x": 1.5, "20 bps": 0.002, "7m$": 7e6, "CHF 5": 5, "Rs. 1,234": 1234,
          "\u20b91,23,456": 123456}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SCALED.items())
def test_units_and_currencies_are_read(text: str, value: float) -> None:
    reading = read_number(text)
    assert reading is not None and reading.value == value


def test_a_short_scale_alone_is_a_code() -> None:
    forms = ["497K", "497", "10-K", "485BPOS", "497K"]
    assert column(*forms)[0] == forms
    assert column("$497K", "12K", "5K")[0] == [497_000, 12_000, 5_000]


def test_the_import_counts_scales_and_warns_of_mixed_units(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "deals.csv").write_text("deal,price,fee\nA,$88.0m,$5\nB,$1.2bn,\u20ac6\n")
    (tmp_path / "q.csv").write_text("question,answer\nWhat is the price of A in millions?,88\n")
    command = ["data", "import", "tables", f"{tmp_path}/deals.csv", f"--questions={tmp_path}/q.csv"]
    assert main([*command, "--company=name:acme", f"--out={tmp_path}/mine", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    kinds = {each["kind"]: each["count"] for each in document["conversions"]}
    assert kinds["numbers with a scale in the cell, multiplied out"] == 2
    assert [each["code"] for each in document["findings"]] == ["lost_mark", "lost_mark"]
    assert main(["data", "check", f"{tmp_path}/mine", "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)["findings"]
    assert [(each["code"], each["count"]) for each in checked] == [("lost_mark", 2)]
    assert main([*command, "--company=name:acme", f"--out={tmp_path}/strict", "--strict"]) == 65
    assert "numbers with several currencies: '$5' and" in capsys.readouterr().err


def test_a_program_needs_no_table_where_its_numbers_tell_it(tmp_path: Path) -> None:
    as_csv(tmp_path)
    text = "subtract(980000, 75), multiply(#0, const_2)"
    report = imported(tmp_path, rows=[{**row("1", "ardenhill", "?", ""), "program": text}])
    (question,) = report.report.dataset.questions
    assert (question.table_name, question.answer) == ("balance", str((980000 - 75) * 2)) and question.gold_sql


OPERATIONS = st.sampled_from(["add", "subtract", "multiply", "divide", "greater"])


@settings(max_examples=150)
@given(
    cells=st.lists(
        st.one_of(st.integers(-999, 9999), st.floats(-99, 99).map(lambda x: round(x, 3))), min_size=4, max_size=4
    ),
    steps=st.lists(st.tuples(OPERATIONS, st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    row_step=st.sampled_from(["", "table_sum", "table_average", "table_max", "table_min"]),
)
def test_a_query_of_a_program_computes_what_the_program_does(
    cells: list[int | float], steps: list[tuple[str, int, int]], row_step: str
) -> None:
    table = Table(company="a", name="t", columns=("item", "x", "y"), rows=(("one", *cells[:2]), ("two", *cells[2:])))
    literals = [*(f"{cell:f}" if isinstance(cell, float) else str(cell) for cell in cells), "const_2"]
    written = [f"{row_step}(one, none)"] if row_step else []
    for operation, first, second in steps:
        last = [f"#{len(written) - 1}"] if written else ["const_100"]
        arguments = [*literals, *last]
        written.append(f"{operation}({arguments[first]}, {arguments[second]})")
    program = parse(", ".join(written))
    try:
        expected = execute(program, as_program_table(table))
    except ProgramError:
        return
    try:
        result = run_gold_query([table], program_query(program, table))
    except GoldQueryError as error:
        assert "uses no number of the table" in str(error)
        return
    assert answer_text(result) == answer_text(expected) or float(result) == pytest.approx(float(expected), abs=2e-5)


@settings(max_examples=100)
@given(
    data=st.binary(max_size=200),
    ending=st.sampled_from([".csv", ".json", ".jsonl", ".xlsx", ".parquet", ".db"]),
    as_questions=st.booleans(),
)
def test_garbage_is_an_error_that_names_its_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, ending: str, as_questions: bool
) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    as_csv(folder)
    bad = folder / (f"asked{ending}" if as_questions else f"tables/ardenhill/bad{ending}")
    bad.write_bytes(data)
    questions = bad if as_questions else write_questions(folder / "questions.csv")
    source = bad if ending == ".db" and not as_questions else folder / "tables"
    try:
        import_tables(source, questions, ImportOptions())
    except FinqaError as error:
        assert bad.name in error.message


DEV = Path(__file__).parents[4] / "shared" / "data" / "finqa" / "dev.json"


@pytest.mark.skipif(not DEV.is_file(), reason="original FinQA (dev.json) is not beside this checkout")
def test_the_pages_of_finqa_in_one_database_keep_every_question(tmp_path: Path) -> None:
    pages: dict[tuple[str, str], str] = {}
    asked = []
    with closing(sqlite3.connect(tmp_path / "pages.db")) as database:
        for page in json.loads(DEV.read_text(encoding="utf-8")):
            table, company = page["table"], (page["filename"] or "none").partition("/")[0]
            name = pages.setdefault((company, json.dumps(table)), f"page{len(pages)}")
            columns = ", ".join(f'"c{place}" TEXT' for place, _ in enumerate(table[0]))
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is None:
                database.execute(f"CREATE TABLE {name} ({columns})")
                database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(table[0]))})", table[1:])
            asked.append({"id": page["id"], "company": company, "table": name, "qa": page["qa"]})
        database.commit()
    (tmp_path / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    report = import_tables(tmp_path / "pages.db", tmp_path / "asked.json", ImportOptions())
    assert (report.rule, report.report.kept) == ("questions", 883)
    assert report.experts >= 640  # the other programs have numbers from the text of the page


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("form", NEEDS)
def test_without_its_reader_the_command_that_installs_it_is_told(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(NEEDS[form], reason="needs finqa[tables]")
    source = FORMS[form][0](Path("own"))
    write_questions(Path("questions.csv"))
    monkeypatch.setitem(sys.modules, NEEDS[form], None)
    assert main(["data", "import", "tables", str(source), "--questions=questions.csv", "--out=mine"]) == 78
    error = capsys.readouterr().err
    assert f"needs {NEEDS[form]}, which is not installed" in error and "pip install 'finqa[tables]'" in error


@pytest.mark.usefixtures("empty_folder")
def test_a_company_in_two_splits_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    rows = [{**each, "split": "dev" if each["id"] == "corvane-1" else "train"} for each in question_rows()]
    write_questions(Path("questions.csv"), rows)
    assert main(["data", "import", "tables", "tables", "--questions=questions.csv", "--out=mine"]) == 0
    assert "so that training on this data is refused: corvane (1)." in capsys.readouterr().out


@pytest.mark.usefixtures("empty_folder")
def test_flags_count_more_than_the_mapping_file(capsys: pytest.CaptureFixture[str]) -> None:
    as_sqlite(Path())
    rows = [
        {"Frage": each["question"], "Firma": each["company"], "Wert": each["answer"] or "1"} for each in question_rows()
    ]
    write_questions(Path("fragen.json"), rows)
    Path("map.toml").write_text(
        'company = "name:x"\nsplits = "0,0,1"\nlicence = "CC-BY-4.0"\n[columns]\nquestion = "Frage"\nanswer = "Wert"\n'
    )
    command = ["data", "import", "tables", "figures.db", "--questions=fragen.json", "--map=map.toml", "--out=mine"]
    assert main([*command, "--company=column:company", "--column=company=Firma", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["company_rule"], document["splits"]) == ("column:company", {"test": 12})
    assert document["licence"] == "CC-BY-4.0" and document["columns"]["company"] == "Firma"


@pytest.mark.usefixtures("empty_folder")
def test_a_bad_name_of_a_snapshot_is_told_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    write_questions(Path("questions.csv"))
    command = ["data", "import", "tables", "tables", "--questions=questions.csv", "--out=mine"]
    assert main([*command, "--snapshot-name=my tables"]) == 65
    assert "is not a valid snapshot name: at most 64" in capsys.readouterr().err and not Path("mine").exists()


@pytest.mark.usefixtures("empty_folder")
def test_questions_without_an_expert_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    write_questions(Path("q.csv"), [{**each, "sql": "", "answer": each["answer"] or "1"} for each in question_rows()])
    assert (
        main(["data", "import", "tables", "tables", "--questions=q.csv", "--out=mine", "--with-expert", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert (document["kept"], document["experts"]) == (3, 3)
    assert document["skipped"] == {"no gold SQL and no program that can be played": 9}
