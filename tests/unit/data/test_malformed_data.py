"""Malformed data of every kind: named by file, row, field and reason, exit 65; or left out and counted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures.data_files import (
    DATASET,
    edit_question,
    finqa_row,
    rllm_question,
    write_csv,
    write_folder,
    write_json,
    write_jsonl,
    write_rllm,
)

from finqa_cli.app import main
from finqa_cli.data import LocalSnapshots, Table, import_finqa_json, read_layout, scan_layout
from finqa_cli.data.finqa.check_finqa import odd_cells
from finqa_cli.data.finqa.finqa_import import clean_cell, question_type, safe_columns
from finqa_cli.data.openenv_layout.layout import QUESTIONS_FILE, TABLES_FILE
from finqa_cli.data.snapshots.compile import storage, table_info

GOOD = finqa_row("good")
HUGE = "x" * 10_000_000
FIRST = DATASET.tables[0]
TABLE = f"input_companies/{FIRST.company}/{FIRST.name}.json"


@dataclass(frozen=True)
class Kind:
    """What to write, and what is said about it. `skippable`: the rest is good, and --skip-bad keeps it."""

    name: str
    write: Callable[[Path], Path]
    says: str
    command: str = "finqa-json"
    skippable: bool = True


def bad_row(name: str, says: str, row: object) -> Kind:
    return Kind(name, lambda folder: write_json(folder / "bad.json", [GOOD, row]), f"bad.json, row 2{says}")


def bad_file(name: str, says: str, write: Callable[[Path], object], suffix: str = ".json") -> Kind:
    def written(folder: Path) -> Path:
        path = folder / f"bad{suffix}"
        write(path)
        return path

    return Kind(name, written, f"bad{suffix}{says}", skippable=False)


def bad_lines(name: str, says: str, line: bytes) -> Kind:
    def written(folder: Path) -> Path:
        path = folder / "bad.jsonl"
        path.write_bytes(json.dumps(GOOD).encode() + b"\n" + line)
        return path

    return Kind(name, written, f"bad.jsonl, row 2{says}")


def bad_folder(name: str, says: str, spoil: Callable[[Path], object], *, skippable: bool = True) -> Kind:
    def written(folder: Path) -> Path:
        spoil(write_folder(folder / "data"))
        return folder / "data"

    return Kind(name, written, says, command="openenv", skippable=skippable)


def bad_table(name: str, says: str, text: str) -> Kind:
    return bad_folder(name, f"{FIRST.name}.json{says}", lambda folder: (folder / TABLE).write_text(text))


def bad_csv(name: str, says: str, change: Callable[[bytes], bytes], *, skippable: bool = True) -> Kind:
    def spoil(folder: Path) -> None:
        path = folder / QUESTIONS_FILE
        path.write_bytes(change(path.read_bytes()))

    return bad_folder(name, f"finqa.csv{says}", spoil, skippable=skippable)


def bad_rllm(name: str, says: str, spoil: Callable[[Path], object], *, skippable: bool = True) -> Kind:
    def written(folder: Path) -> Path:
        spoil(write_rllm(folder / "rllm") / "data")
        return folder / "rllm"

    return Kind(name, written, says, command="rllm", skippable=skippable)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


def edit_summary(data: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = data / "company_tables/anthem/tables_cleaned_all_companies.json"
    summary = json.loads(path.read_text())
    change(summary)
    write_json(path, summary)


def parquet(path: Path, columns: list[str]) -> None:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.Table.from_arrays([arrow.array(["a"])] * len(columns), names=columns), path)


def no_parquet(path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs finqa[data]")
    path.write_bytes(b"PAR1")


def truncated_parquet(path: Path) -> None:
    parquet(path, ["id"])
    path.write_bytes(path.read_bytes()[:-20])


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def split_file(data: Path, **changes: Any) -> None:
    write_csv(
        data / "train_finqa.csv",
        [rllm_question("anthem", "elv_Claims"), rllm_question("anthem", "elv_Claims", **{"id": 1, **changes})],
    )


KINDS = [
    bad_row("missing field", ", field 'qa.question': must be a text", finqa_row(question=None)),
    bad_row("missing object", ", field 'qa.question': must be a text", {"id": "b", "qa": "x"}),
    bad_row("NaN", ", field 'qa.exe_ans': must be a number", finqa_row(exe_ans=float("nan"))),
    bad_row("infinity", ", field 'qa.exe_ans': must be a number", finqa_row(exe_ans=float("inf"))),
    bad_row("huge integer", ", field 'qa.exe_ans': must be a number", finqa_row(exe_ans=10**400)),
    bad_row("truth of a wrong type", ", field 'qa.exe_ans': must be a number", finqa_row(exe_ans=True)),
    bad_row("id of a wrong type", ", field 'id': must be a text", {**GOOD, "id": 7}),
    bad_row("blank id", ", field 'id': must be a text", {**GOOD, "id": " "}),
    bad_row("duplicate id", ", field 'id': 'good' occurs twice", GOOD),
    bad_row("row that is no object", ": must be an object", ["a"]),
    bad_row("ragged table", ", field 'table': ragged: row 2 has 1 cells", finqa_row(table=[["a", "b"], ["c"]])),
    bad_row("empty table", ", field 'table': must be a list of rows", finqa_row(table=[])),
    bad_row("table of a wrong type", ", field 'table': must be a list of rows", finqa_row(table={"a": 1})),
    bad_row("cell of a wrong type", ", field 'table': row 2 contains a cell", finqa_row(table=[["a"], [3]])),
    bad_row("5000 columns", ", field 'table': has 5000 columns", finqa_row(table=[["a"] * 5000] * 2)),
    bad_row("10 MB cell", ", field 'table[1][0]': has 10000000 characters", finqa_row(table=[["a"], [HUGE]])),
    bad_row("10 MB question", ", field 'qa.question': has 10000000", finqa_row(question=HUGE)),
    bad_row("long program", ", field 'qa.program': is longer than", finqa_row(program="a" * 900_000)),
    bad_row("half a surrogate pair", ", field 'qa.question': is not valid UTF-8", finqa_row(question="\ud800")),
    bad_row("NUL character", ", field 'qa.question': holds a NUL", finqa_row(question="a\0b")),
    bad_row("NUL in a key", ", field 'qa': has a key that holds a NUL", finqa_row() | {"qa": {"a\0": 1}}),
    bad_row("deep nesting", ", field 'more': is nested more than", finqa_row() | {"more": nested(100)}),
    bad_row("gold facts of a wrong type", ", field 'qa.gold_inds': must be an object", finqa_row(gold_inds=[1])),
    bad_row("text of a wrong type", ", field 'pre_text': must be a list of texts", finqa_row(pre_text=[1])),
    bad_row("answer of a wrong type", ", field 'qa.answer': must be a text", finqa_row(answer=["5"])),
    bad_row("path traversal in the page", ", field 'filename': the company", finqa_row(filename="../../etc/passwd")),
    bad_row("page name of 5000 characters", ", field 'filename': is longer", finqa_row(filename="a" * 5000)),
    bad_file("empty file", ": is empty", lambda path: path.write_bytes(b"")),
    bad_file("blank file", ": is empty", lambda path: path.write_bytes(b" \r\n")),
    bad_file("truncated JSON", ": is not valid JSON", lambda path: path.write_text(json.dumps([GOOD])[:-40])),
    bad_file("not a list", ": must be a list of rows", lambda path: path.write_text("{}")),
    bad_file("bad UTF-8", ", row 2: is not valid UTF-8", lambda path: path.write_bytes(b"[\n\xff]")),
    bad_file("UTF-16", ", row 1: is not valid UTF-8", lambda path: path.write_bytes("[]".encode("utf-16"))),
    bad_file("digits without end", ": is not readable JSON", lambda path: path.write_text("[" + "9" * 5000 + "]")),
    bad_file("brackets without end", ": is not readable JSON", lambda path: path.write_text("[" * 200_000)),
    bad_file("missing file", ": the file is missing", lambda path: None),
    bad_file("folder instead of a file", ": is a folder", lambda path: path.mkdir()),
    bad_file("pipe instead of a file", ": is not a plain file", os.mkfifo),
    bad_file("link to itself", ": cannot be read: Too many levels", loop),
    bad_file("unreadable file", ": cannot be read", lambda path: path.symlink_to("/proc/self/mem")),
    bad_file("unknown ending", ": the ending '.xlsx' is not supported", lambda path: path.write_bytes(b"PK"), ".xlsx"),
    bad_file("not Parquet", ": is not readable Parquet", no_parquet, ".parquet"),
    bad_file("truncated Parquet", ": is not readable Parquet", truncated_parquet, ".parquet"),
    bad_file("Parquet column twice", ", field 'ID': the column", lambda path: parquet(path, ["id", "ID"]), ".parquet"),
    bad_lines("torn line", ": is not valid JSON", b'{"id": "b"'),
    bad_lines("line of bad UTF-8", ": is not valid UTF-8", b'{"id": "\xff"}\n'),
    bad_lines("line that is no object", ": must be an object", b"[1]\r\n"),
    bad_csv("empty CSV", ": is empty", lambda text: b"", skippable=False),
    bad_csv(
        "missing column",
        ", row 1, field 'company'",
        lambda text: text.replace(b"company,", b"firm,", 1),
        skippable=False,
    ),
    bad_csv(
        "column twice",
        ", row 1, field 'ANSWER': the column",
        lambda text: text.replace(b"split", b"ANSWER", 1),
        skippable=False,
    ),
    bad_csv("ragged row", ", row 14: ragged", lambda text: text + b"broken\n"),
    bad_csv("open quote", ", row 14: is not valid CSV", lambda text: text + b'"open\n', skippable=False),
    bad_csv(
        "row of bad UTF-8",
        ", row 2, field 'user_query': is not valid UTF-8",
        lambda text: text.replace(b"What", b"Wh\xfft", 1),
    ),
    bad_csv(
        "NUL in a row", ", row 2, field 'user_query': holds a NUL", lambda text: text.replace(b"What", b"Wh\0t", 1)
    ),
    bad_folder(
        "10 MB field", "row 2, field 'question': has", lambda folder: edit_question(folder, 2, "question", HUGE)
    ),
    bad_folder(
        "duplicate question",
        "row 3, field 'id'",
        lambda folder: edit_question(folder, 3, "id", DATASET.questions[0].id),
    ),
    bad_folder(
        "path traversal in a company",
        "row 2, field 'company'",
        lambda folder: edit_question(folder, 2, "company", "../x"),
    ),
    bad_folder(
        "path traversal in a table",
        "row 2, field 'table_name'",
        lambda folder: edit_question(folder, 2, "table_name", "../x"),
    ),
    bad_folder("unknown split", "row 2, field 'split'", lambda folder: edit_question(folder, 2, "split", "holdout")),
    bad_table("columns without rows", ": the table has columns but no rows", '{"a": {}}'),
    bad_table("table that is no JSON", ": is not valid JSON", "[{"),
    bad_table("ragged records", ", row 2, field 'b': ragged", '[{"a": 1, "b": 2}, {"a": 1}]'),
    bad_table("ragged columns", ", field 'b': ragged", '{"a": {"0": 1}, "b": {}}'),
    bad_table("columns that differ by case", ", field 'Total': the column", '[{"total": 1, "Total": 2}]'),
    bad_table("blank column", ", field ' ': a column name is empty", '[{"a": 1, " ": 2}]'),
    bad_table("nested cell", ", row 1, field 'a': a cell must be", '[{"a": [1]}]'),
    bad_table("10 MB table cell", ", row 1, field 'a': has", json.dumps([{"a": HUGE}])),
    bad_table("NUL in a cell", ", row 1, field 'a': holds a NUL", '[{"a": "\\u0000"}]'),
    bad_folder(
        "table that is a folder",
        "extra.json: is a folder",
        lambda folder: (folder / TABLE).with_name("extra.json").mkdir(),
    ),
    bad_folder(
        "table that links to itself",
        "loop.json: cannot be read",
        lambda folder: loop((folder / TABLE).with_name("loop.json")),
    ),
    bad_folder(
        "description of a wrong type",
        ": must be an object",
        lambda folder: write_json(folder / TABLES_FILE, {f"{FIRST.company}/{FIRST.name}": 1}),
    ),
    bad_folder(
        "deep description",
        ".x' is nested more than|.x': is nested more than",
        lambda folder: write_json(folder / TABLES_FILE, {f"{FIRST.company}/{FIRST.name}": {"x": nested(100)}}),
    ),
    bad_folder(
        "dataset.json of wrong types",
        "dataset.json, field 'evaluation_only': must be true or false",
        lambda folder: write_json(folder / "dataset.json", {"evaluation_only": "false"}),
        skippable=False,
    ),
    bad_folder(
        "missing tables",
        "input_companies: the folder is missing",
        lambda folder: (folder / "input_companies").rename(folder / "x"),
        skippable=False,
    ),
    bad_rllm(
        "columns that do not fit",
        "lacks the columns user_query, answer; it has: id, prompt, company",
        lambda data: write_csv(data / "train_finqa.csv", [{"id": 1, "prompt": "?", "company": "anthem"}]),
        skippable=False,
    ),
    bad_rllm(
        "unknown company", "train_finqa.csv, row 3, field 'company'", lambda data: split_file(data, company="unknown")
    ),
    bad_rllm(
        "unknown table",
        "row 3, field 'table_name': 'anthem' has no table 'x'",
        lambda data: split_file(data, table_name='["x", "y"]'),
    ),
    bad_rllm("blank answer", "row 3, field 'answer': must not be empty", lambda data: split_file(data, answer=" ")),
    bad_rllm("id twice", "row 3, field 'id': '0' occurs twice", lambda data: split_file(data, id=0)),
    bad_rllm(
        "path traversal in a table name",
        "the table name contains a slash",
        lambda data: edit_summary(data, lambda known: known.update({"x/../../y": {"table": "[]"}})),
    ),
    bad_rllm(
        "table text that is no JSON",
        "elv_New.table': is not valid JSON",
        lambda data: edit_summary(data, lambda known: known.update({"elv_New": {"table": "["}})),
    ),
    bad_rllm(
        "no questions",
        "contains no question file",
        lambda data: [path.unlink() for path in data.glob("*.csv")] + [(data / "multi_table_data").rename(data / "x")],
        skippable=False,
    ),
    bad_rllm(
        "no tables",
        "contains no company folders,",
        lambda data: (data / "company_tables").rename(data / "x"),
        skippable=False,
    ),
]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, errors = capsys.readouterr()
    assert "Traceback" not in errors and "Unexpected" not in errors, errors
    return code, out, errors


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_malformed_data_is_named_or_left_out(kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind.name == "unreadable file" and not Path("/proc/self/mem").exists():
        pytest.skip("needs a file that cannot be read")
    path = kind.write(tmp_path)
    code, _, errors = call(capsys, "data", "import", kind.command, path, "--out", tmp_path / "a")
    assert code == 65 and any(words in errors for words in kind.says.split("|")), errors
    assert not (tmp_path / "a").exists(), "a refused import leaves nothing behind"
    code, out, errors = call(
        capsys, "data", "import", kind.command, path, "--out", tmp_path / "b", "--skip-bad", "--json"
    )
    if kind.skippable:
        document = json.loads(out)
        assert code == 0 and document["malformed"] >= 1 and document["kept"] >= 1, errors
        assert all(problem["file"] and problem["reason"] for problem in document["problems"])
    else:
        assert code == 65


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.command != "rllm"], ids=lambda kind: kind.name)
def test_a_check_finds_what_an_import_refuses(kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if kind.name == "folder instead of a file":
        pytest.skip("a folder is taken for a data folder")
    code, out, errors = call(capsys, "data", "check", kind.write(tmp_path))
    assert code == 65 and any(words in out + errors for words in kind.says.split("|")), out + errors


def test_there_are_more_than_thirty_kinds() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS) >= 30


HARMLESS = [
    ("CRLF", lambda text: text.replace(b"\n", b"\r\n")),
    ("byte order mark", lambda text: b"\xef\xbb\xbf" + text),
    ("blank lines", lambda text: text.replace(b"\n", b"\n\n")),
    ("no last line break", lambda text: text.rstrip(b"\n")),
]


@pytest.mark.parametrize(("name", "change"), HARMLESS)
def test_harmless_forms_are_read(name: str, change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    lines = write_jsonl(tmp_path / "dev.jsonl", [finqa_row("a"), finqa_row("b")])
    for path in (folder / QUESTIONS_FILE, lines):
        path.write_bytes(change(path.read_bytes()))
    if name != "blank lines":  # inside a quoted field of the CSV a blank line is content
        assert read_layout(folder).questions == DATASET.questions
    assert import_finqa_json([lines]).kept == 2


def test_odd_but_good_tables_are_read_and_compiled(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    rows = [{"2024": 1, "total": 10**30}, {"2024": 2, "total": "9" * 5000}, {"2024": 3, "total": float("nan")}]
    (folder / TABLE).write_text(json.dumps(rows))
    assert not scan_layout(folder).problems
    assert LocalSnapshots(tmp_path / "home").build("odd", folder)[1]


HOSTILE = [
    "(" + " " * 900_000 + "x",
    "$" + " " * 900_000,
    "1" * 900_000 + "x",
    "1," * 400_000,
    "-" * 900_000,
    "5 (" * 300_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:4])
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_no_cell_takes_long(text: str) -> None:
    assert clean_cell(text) == text.strip()
    rows = tuple((f"row {number}", cell) for number, cell in enumerate([1, 2, 3, text]))
    assert [row for row, _, _ in odd_cells(("line_item", "2024"), rows)] in ([4], [])
    table = Table(company="a", name="t", columns=("line_item", "2024"), rows=rows[3:])
    assert storage(table, 1)[0] == "TEXT" and table_info(table)


@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_long_programs_and_headers_take_no_time() -> None:
    assert question_type("a" * 4000) == "" and len(set(safe_columns([""] + ["same"] * 999))) == 1000
