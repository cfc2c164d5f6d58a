"""Malformed own tables and questions of more than twenty kinds: named by file, row, column and reason."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.own_tables import as_csv, question_rows, write_questions

from finqa_cli.app import main
from finqa_cli.data.own_tables import gold_queries
from finqa_cli.data.own_tables.import_options import ImportOptions
from finqa_cli.data.own_tables.tables_import import import_tables
from finqa_cli.errors import DataError

BAD = Path("tables/ardenhill/bad")


@dataclass(frozen=True)
class Kind:
    """What to write beside good tables and questions, and what must be said of it.

    Attributes:
        fatal: It spoils the whole import, so that --skip-bad keeps nothing.
    """

    name: str
    write: Callable[[Path], object]
    says: str
    source: str = "tables"
    questions: str = "questions.csv"
    options: tuple[str, ...] = ()
    fatal: bool = False
    needs: str = ""


def table(ending: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / BAD).with_suffix(ending).write_bytes(data)


def asked(content: str | bytes, name: str) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def row(**changes: str) -> Callable[[Path], object]:
    """Writes the good questions, of which the second (line 3) is changed."""
    rows = [{**each, **(changes if place == 1 else {})} for place, each in enumerate(question_rows())]
    return lambda folder: write_questions(folder / "questions.csv", rows)


def database(statement: str, *rows: tuple[object, ...]) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "bad.db")) as connection:
            connection.execute(statement)
            connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
            connection.commit()

    return write


def broken_database(folder: Path) -> None:
    database("CREATE TABLE t (company, item, y)", *[("a", f"item {n}", n) for n in range(3000)])(folder)
    content = bytearray((folder / "bad.db").read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    (folder / "bad.db").write_bytes(content)


def formula(folder: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for cells in (("item", "2023"), ("sales", 4), ("sum", "=B2*2")):
        book.active.append(cells)
    book.save((folder / BAD).with_suffix(".xlsx"))


def old_sheet(folder: Path) -> None:
    (folder / BAD).with_suffix(".xlsx").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))


def parquet_twice(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = pyarrow.table([["a"], [1], [2]], names=["item", "2023", "2023"])
    pyarrow.parquet.write_table(columns, (folder / BAD).with_suffix(".parquet"))


IN_COMPANY = ("--company", "column:company")
KINDS = [
    Kind("ragged row", table(".csv", "item,2023\nsales,4\ncosts,5,6\n"), "bad.csv, row 3: ragged: 3 fields"),
    Kind("short row", table(".csv", "item,2023,2022\nsales,4\n"), "bad.csv, row 2: ragged: 2 fields"),
    Kind("open quote", table(".csv", 'item,2023\n"sales,4\n'), "bad.csv, row 2: is not valid CSV"),
    Kind(
        "bytes of another encoding",
        table(".csv", "item,2023\nstraße,4\n".encode() + b"stra\xdfe,4\n"),
        "bad.csv, row 3: is not valid UTF-8",
    ),
    Kind("NUL", table(".csv", "item,2023\nsa\0les,4\n"), "bad.csv, row 2, field 'item': holds a NUL"),
    Kind("empty CSV", table(".csv", ""), "bad.csv: is empty"),
    Kind("header alone", table(".csv", "item,2023\n"), "bad.csv: the table has no rows below its header"),
    Kind("cut JSON", table(".json", '[{"item": "sales", '), "bad.json: is not valid JSON: "),
    Kind("ragged records", table(".json", '[{"a": 1, "b": 2}, {"a": 1}]'), "bad.json, row 2, field 'b': ragged"),
    Kind("ragged columns", table(".json", '{"a": [1, 2], "b": [1]}'), "bad.json, field 'b': ragged: this column has 1"),
    Kind("ragged lists", table(".json", '[["a", "b"], [1]]'), "bad.json, row 1: ragged: must be a list of 2 cells"),
    Kind("a key twice", table(".json", '[{"a": 1, "a": 2}]'), "names the key 'a' twice"),
    Kind(
        "a cell of lists", table(".json", '[{"a": "x", "b": [1]}]'), "bad.json, row 1, field 'b': a cell must be a text"
    ),
    Kind("no rows in JSON", table(".json", "[]"), "bad.json: it contains no rows"),
    Kind("no object in JSONL", table(".jsonl", '{"a": 1}\n3\n'), "bad.jsonl, row 2: must be an object"),
    Kind("no workbook", old_sheet, "bad.xlsx: is not an Excel workbook", needs="openpyxl"),
    Kind(
        "formula without value", formula, "Sheet, row 3, field 'B': the formula has no stored value", needs="openpyxl"
    ),
    Kind("no Parquet", table(".parquet", b"PAR1"), "bad.parquet: is not readable Parquet", needs="pyarrow"),
    Kind("a Parquet column twice", parquet_twice, "bad.parquet, field '2023': the column name", needs="pyarrow"),
    Kind(
        "no database", asked(b"hello", "bad.db"), "bad.db: is not a SQLite or DuckDB file", source="bad.db", fatal=True
    ),
    Kind(
        "damaged SQLite", broken_database, "bad.db, t: cannot be read", source="bad.db", options=IN_COMPANY, fatal=True
    ),
    Kind(
        "no DuckDB",
        asked(bytes(8) + b"DUCK" + bytes(500), "bad.db"),
        "bad.db: is not a readable DuckDB file",
        source="bad.db",
        fatal=True,
        needs="duckdb",
    ),
    Kind(
        "binary cell",
        database("CREATE TABLE t (company, item, y)", ("ardenhill", "a", 1), ("ardenhill", "b", b"\xff")),
        "bad.db, t, row 2, field 'y': a cell must be a text or a number, but is binary data",
        source="bad.db",
        options=IN_COMPANY,
        fatal=True,
    ),
    Kind(
        "no company in a row",
        database("CREATE TABLE t (company, item, y)", ("ardenhill", "a", 1), ("", "b", 2)),
        "bad.db, t, row 2, field 'company': the company must not be empty",
        source="bad.db",
        options=IN_COMPANY,
        fatal=True,
    ),
    Kind("a missing source", row(), "nothing: there is no such file or folder", source="nothing", fatal=True),
    Kind("missing questions", row(), "none.csv: the file is missing", questions="none.csv", fatal=True),
    Kind(
        "no question column",
        asked("id,answer\n1,2\n", "q.csv"),
        "no column for the question was found;",
        questions="q.csv",
        fatal=True,
    ),
    Kind(
        "no answer column", asked("id,question\n1,2\n", "q.csv"), "no column of answers", questions="q.csv", fatal=True
    ),
    Kind(
        "a misspelled answer column",
        asked("id,question,anser,sql\n1,2,3,\n", "q.csv"),
        "q.csv: no column for the answer was found; near it: anser",
        questions="q.csv",
        fatal=True,
    ),
    Kind(
        "a chosen column that is missing",
        row(),
        "field 'Antwort': this column does not exist",
        options=("--column", "answer=Antwort"),
        fatal=True,
    ),
    Kind("no question", row(question=" "), "questions.csv, row 3, field 'question': must not be empty"),
    Kind("no answer", row(sql=""), "row 3, field 'answer': must not be empty: there is neither an answer nor gold SQL"),
    Kind("an id twice", row(id="ardenhill-1"), "row 3, field 'id': 'ardenhill-1' occurs twice"),
    Kind(
        "an unknown company",
        row(company="ardenhil"),
        "row 3, field 'company': there are no tables of 'ardenhil'; near it: 'ardenhill'",
    ),
    Kind(
        "an unknown table",
        row(table="incomes"),
        "row 3, field 'table': 'ardenhill' has no table 'incomes'; it has: income",
    ),
    Kind(
        "SQL that does not run", row(sql="SELECT x FROM income"), "row 3, field 'sql': does not run: no such column: x"
    ),
    Kind(
        "SQL with many rows",
        row(sql='SELECT "2023" FROM income'),
        "row 3, field 'sql': must return one value, but returns several",
    ),
    Kind("SQL that writes", row(sql="DELETE FROM income"), "row 3, field 'sql': does not run: not authorized"),
    Kind(
        "a program that is none", row(sql="", program="sum(1, 2)"), "row 3, field 'program': has no result: Character 0"
    ),
    Kind(
        "a program without result",
        row(sql="", program="divide(1, 0)"),
        "row 3, field 'program': has no result: Step #0",
    ),
    Kind(
        "a split of another name",
        lambda folder: write_questions(
            folder / "questions.csv",
            [{**each, "split": "tset" * (place == 1)} for place, each in enumerate(question_rows())],
        ),
        "row 3, field 'split': 'tset' is not one of",
    ),
    Kind(
        "a question that is no object",
        asked(json.dumps([question_rows()[0], 3]), "q.json"),
        "q.json, row 2: must be an object",
        questions="q.json",
    ),
    Kind(
        "a mapping with an unknown key",
        asked("compny = 'folder'", "map.toml"),
        "map.toml, field 'compny': is not known",
        options=("--map", "map.toml"),
        fatal=True,
    ),
    Kind(
        "a mapping that is no TOML",
        asked("company = ", "map.toml"),
        "map.toml: is not valid TOML",
        options=("--map", "map.toml"),
        fatal=True,
    ),
]


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_it_is_named_and_can_be_left_out(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    if kind.needs:
        pytest.importorskip(kind.needs, reason="needs finqa[tables]")
    as_csv(Path())
    write_questions(Path("questions.csv"))
    kind.write(Path())
    if list(BAD.parent.glob("bad.*")):  # a bad table blocks only questions that need it
        needs_it = {**question_rows()[0], "id": "bad", "table": "bad", "sql": "", "answer": "1"}
        write_questions(Path("questions.csv"), [*question_rows(), needs_it])
    command = ["data", "import", "tables", kind.source, "--questions", kind.questions, *kind.options, "--out"]
    assert main([*command, "strict"]) == 65
    error = capsys.readouterr().err
    assert kind.says in error and "Traceback" not in error, error
    assert not Path("strict").exists()
    code = main([*command, "lenient", "--skip-bad", "--json"])
    said = capsys.readouterr()
    assert code == (65 if kind.fatal else 0), said.err
    if not kind.fatal:
        document = json.loads(said.out)
        assert document["malformed"] >= 1 and document["kept"] >= 1
        assert any(kind.says.rsplit(": ", 1)[-1][:20] in problem["reason"] for problem in document["problems"])


def test_there_are_more_than_twenty_kinds() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 37


@pytest.mark.usefixtures("empty_folder")
def test_a_bad_table_blocks_only_the_questions_that_need_it(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    BAD.with_suffix(".csv").write_text("item,2023\nsales,4,5,6\n")
    rows = question_rows()
    write_questions(Path("q.csv"), rows)
    command = ["data", "import", "tables", "tables", "--questions=q.csv"]
    assert main([*command, "--out=fine", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kept"], document["malformed"], len(document["left_out"])) == (len(rows), 0, 1)
    assert main([*command, "--out=strict", "--strict"]) == 65
    assert "bad.csv, row 2: ragged" in capsys.readouterr().err
    needs_it = {**rows[0], "table": "bad", "sql": "", "answer": "1"}
    write_questions(Path("q.csv"), [*rows, {**needs_it, "id": "b1"}, {**needs_it, "id": "b2"}])
    assert main([*command, "--out=needed"]) == 65
    said = capsys.readouterr().err
    assert "ragged: 4 fields, but the header has 2 (needed by the question in row 14 and 1 more)" in said
    assert "has no table" not in said  # a consequence, not a cause
    assert main([*command, "--out=skipped", "--skip-bad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == len(rows)


@pytest.mark.usefixtures("empty_folder")
def test_names_made_from_files_are_cleaned_and_unique(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    (Path("tables/ardenhill") / "a\nb .csv").write_text("item,2023\nsales,4\n")
    for name in ("Other.csv", "other.tsv"):
        Path(f"tables/ardenhill/{name}").write_text("item\t2023\nsales\t4\n")
    write_questions(Path("q.csv"))
    command = ["data", "import", "tables", "tables", "--questions=q.csv"]
    assert main([*command, "--out=mine", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    names = {path.stem for path in Path("mine/input_companies/ardenhill").iterdir()}
    assert names == {"income", "balance", "a b", "Other", "other_2"}
    assert any("has the name" in each["example"] for each in document["findings"])
    asked = {**question_rows()[0], "table": "other", "sql": "", "answer": "4"}
    write_questions(Path("q.csv"), [*question_rows(), {**asked, "id": "x"}])
    assert main([*command, "--out=a"]) == 65
    assert "several tables of 'ardenhill' have the name 'other'" in capsys.readouterr().err
    assert main(["data", "import", "tables", "tables", "--questions=q.csv", "--out=b", "--company", "name: x"]) == 65
    assert "the company name ' x' is empty, begins with a dot, or has blanks" in capsys.readouterr().err


@pytest.mark.usefixtures("empty_folder")
def test_all_problems_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    as_csv(Path())
    rows = [{**row, "question": ""} for row in question_rows()] * 2
    write_questions(Path("q.csv"), [*rows, question_rows()[0]])
    assert main(["data", "import", "tables", "tables", "--questions=q.csv", "--out=p", "--json"]) == 65
    said = capsys.readouterr()
    listed = [f"q.csv, row {row}, field 'question': must not be empty" for row in range(2, 26)]
    lines = [f"error: {listed[0]} (23 more problems)", *(f"  {each}" for each in listed[1:21])]
    assert said.err.splitlines()[:22] == [*lines, "  and 3 more: --json lists all"]
    assert [each["row"] for each in json.loads(said.out)["error"]["problems"]] == list(range(2, 26))


@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_a_query_that_never_ends_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold_queries, "DEADLINE_S", 0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, income"
    rows = [{**question_rows()[0], "sql": endless}]
    with pytest.raises(DataError, match="does not run: interrupted"):
        import_tables(as_csv(tmp_path), write_questions(tmp_path / "questions.csv", rows), ImportOptions())
