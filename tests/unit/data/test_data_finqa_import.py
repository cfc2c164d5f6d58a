from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.data import LocalSnapshots, import_finqa_json, read_layout, write_layout
from finqa_cli.data.finqa.finqa_import import clean_cell, question_type, safe_columns, safe_name, uses_only
from finqa_cli.errors import DataError

REAL = Path(__file__).parents[3] / "../shared/data/finqa/dev.json"

ROW: dict[str, Any] = {
    "id": "AAL/2018/page_13.pdf-2",
    "filename": "AAL/2018/page_13.pdf",
    "pre_text": [],
    "post_text": [],
    "table": [["( in millions )", "2018", "2018", ""], ["fuel cost", "$ 2457", "-0.3 ( 0.3 )", "6.4% ( 6.4 % )"]],
    "qa": {
        "question": "what was the fuel cost?",
        "program": "subtract(2457, 0.3)",
        "exe_ans": 2456.7,
        "gold_inds": {"table_1": "..."},
    },
}


def row(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(ROW)
    for name, value in changes.items():
        target = made["qa"] if name in made["qa"] else made
        target[name] = value
    return made


def write(tmp_path: Path, rows: object, name: str = "dev.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(rows))
    return path


def test_a_row_becomes_a_question_about_a_table_of_its_page(tmp_path: Path) -> None:
    second = row(id="AAL/2018/page_13.pdf-3", exe_ans="yes", program="greater(2457, 0.3)")
    report = import_finqa_json([write(tmp_path, [ROW, second])])
    assert (report.rows, report.kept, dict(report.skipped)) == (2, 2, {})
    (table,) = report.dataset.tables
    assert (table.company, table.name) == ("aal", "aal_2018_page_13")
    assert table.columns == ("line_item", "2018", "2018_2", "column_4")
    assert table.rows == (("fuel cost", 2457, -0.3, "6.4%"),)
    first, last = report.dataset.questions
    assert (first.answer, first.type, first.table_name) == ("2456.7", "change", table.name)
    assert (last.answer, last.type) == ("Yes", "comparison")


def test_rows_that_need_more_than_the_table_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [
        ROW,
        row(id="b", gold_inds={"table_1": "", "text_2": ""}),
        row(id="c", gold_inds=None, program="subtract(2457, 99)"),
        row(id="d", gold_inds=None, program="divide(2457, const_5)"),
        row(id="e", filename=None),
        row(id="f", table=[["only", "a header"]]),
    ]
    report = import_finqa_json([write(tmp_path, rows)])
    assert [question.id for question in report.dataset.questions] == [ROW["id"], "d"]
    assert report.kept + sum(report.skipped.values()) == report.rows == 6 and len(report.skipped) == 4


def test_different_tables_of_one_page_get_numbers(tmp_path: Path) -> None:
    other = [["", "2018"], ["fuel cost", "7"]]
    rows = [ROW, row(id="b", table=other), row(id="c", table=other), row(id="d")]
    report = import_finqa_json([write(tmp_path, rows)])
    names = [question.table_name for question in report.dataset.questions]
    assert names == ["aal_2018_page_13", "aal_2018_page_13_2", "aal_2018_page_13_2", "aal_2018_page_13"]


def test_the_test_split_of_finqa_is_for_evaluation_only(tmp_path: Path) -> None:
    report = import_finqa_json([write(tmp_path, [ROW], "test.json")])
    assert report.dataset.evaluation_only and report.dataset.split_counts() == {"test": 1}
    assert not import_finqa_json([tmp_path / "test.json"], evaluation_only=False).dataset.evaluation_only


BAD: list[tuple[object, str]] = [
    ("text", "row 2: must be an object"),
    (row(id=""), "row 2, field 'id': must be a text"),
    (ROW, "row 2, field 'id': .* occurs twice"),
    (row(id="b", question=None), "field 'qa.question'"),
    (row(id="b", exe_ans="maybe"), "field 'qa.exe_ans': must be a number, yes or no"),
    (row(id="b", exe_ans=None), "field 'qa.exe_ans'"),
    (row(id="b", exe_ans=True), "field 'qa.exe_ans'"),
    (row(id="b", table="x"), "field 'table': must be a list of rows"),
    (row(id="b", table=[["a", "b"], ["c"]]), "field 'table': ragged: row 2 has 1 cells, the header has 2"),
    (row(id="b", table=[["a"], [3]]), "row 2 contains a cell that is not a text"),
    (row(id="b", gold_inds=[1]), "field 'qa.gold_inds'"),
    (row(id="b", filename=7), "field 'filename'"),
    ({"id": "b", "qa": "x"}, "field 'qa.question'"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_malformed_row_is_named_or_left_out(tmp_path: Path, bad: object, reason: str) -> None:
    path = write(tmp_path, [ROW, bad])
    with pytest.raises(DataError, match=rf"dev\.json, .*{reason}"):
        import_finqa_json([path])
    report = import_finqa_json([path], skip_bad=True)
    assert report.kept == 1 and len(report.problems) == 1 and report.problems[0].row == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{}", "must be a list"), (b"[1,", "not valid JSON"), (b"\xff", "not valid UTF-8"), (None, "file is missing")],
)
def test_a_file_that_is_no_list_of_rows(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        import_finqa_json([path], skip_bad=True)


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="None of the 0 rows"):
        import_finqa_json([write(tmp_path, [])])


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("$ 2457", 2457),
        ("1,234.5", 1234.5),
        ("-32 ( 32 )", -32),
        ("$ -77 ( 77 )", -77),
        ("( 36 ) % (  % )", "-36%"),
        ("( 13 )", -13),
        ("5.0% ( 5.0 % )", "5.0%"),
        (".5", 0.5),
        ("", None),
        ("-", "-"),
        ("8310 ( c )", "8310 ( c )"),
        ("5 ( 7 )", "5 ( 7 )"),
        ("may 2014", "may 2014"),
    ],
)
def test_cells(text: str, cell: object) -> None:
    assert clean_cell(text) == cell


@given(st.lists(st.text(max_size=12), min_size=1, max_size=12))
def test_columns_are_always_unique_and_safe(header: list[str]) -> None:
    columns = safe_columns(header)
    assert len(set(columns)) == len(columns) == len(header) and columns[0] == "line_item"
    assert all(column and set(column) <= set("abcdefghijklmnopqrstuvwxyz0123456789_") for column in columns)


@given(st.text(max_size=20))
def test_names_are_always_plain(text: str) -> None:
    assert safe_name(text).isidentifier()
    clean_cell(text)
    question_type(text)
    uses_only(text, [[text]])


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("subtract(5829, 5735), divide(#0, 5735)", "growth_rate"),
        ("divide(1, 2)", "ratio"),
        ("subtract(1, 2)", "change"),
        ("add(1, 2), add(#0, 3), divide(#1, const_3)", "average"),
        ("add(1, 2), add(#0, 3)", "sum"),
        ("table_average(fuel, none)", "average"),
        ("greater(1, 2)", "comparison"),
        ("exp(1, 2)", ""),
        ("nonsense", ""),
    ],
)
def test_question_types(program: str, kind: str) -> None:
    assert question_type(program) == kind


@pytest.mark.skipif(not REAL.exists(), reason="the original FinQA data is not on this machine")
def test_the_real_dev_file_imports_whole(tmp_path: Path) -> None:
    report = import_finqa_json([REAL])
    assert (report.rows, len(report.problems)) == (883, 0)
    assert report.kept + sum(report.skipped.values()) == 883 and report.kept > 500
    write_layout(report.dataset, tmp_path / "data")
    assert read_layout(tmp_path / "data").questions == report.dataset.questions
    snapshot, _ = LocalSnapshots(tmp_path).build("finqa-dev", tmp_path / "data")
    assert snapshot.metadata["questions"] == report.kept
