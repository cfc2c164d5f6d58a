from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixtures.data_files import FINQA_ROW
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.data import GenerateSpec, import_openenv, read_layout, scan_layout, write_layout
from finqa_cli.data.check_data import check_path
from finqa_cli.data.fetch.fetch_manifest import FileRecord, Manifest, write_manifest
from finqa_cli.data.generated.generate import generate
from finqa_cli.data.openenv_layout.layout import QUESTIONS_FILE, TABLES_FILE
from finqa_cli.errors import DataError, FinqaError

DATASET = generate(GenerateSpec(companies=4, questions=3, seed=2))
FIRST = DATASET.tables[0]
TABLE_FILE = f"input_companies/{FIRST.company}/{FIRST.name}.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_layout(DATASET, tmp_path)
    return tmp_path


def edit_row(folder: Path, number: int, column: str, value: str) -> None:
    path = folder / QUESTIONS_FILE
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    rows[number - 1][rows[0].index(column)] = value
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def edit_table(folder: Path, change: Callable[[list[dict[str, object]]], object]) -> None:
    path = folder / TABLE_FILE
    rows = json.loads(path.read_text())
    changed = change(rows)
    path.write_text(json.dumps(rows if changed is None else changed))


def test_what_is_written_is_what_is_read(folder: Path) -> None:
    read = read_layout(folder)
    assert read.questions == DATASET.questions
    assert sorted(read.tables, key=str) == sorted(DATASET.tables, key=str)
    assert (read.source, read.licence, read.evaluation_only) == (DATASET.source, DATASET.licence, False)


BAD_ROWS = [
    ("id", "", "must not be empty"),
    ("user_query", "  ", "must not be empty"),
    ("answer", "", "must not be empty"),
    ("company", "nobody_inc", "there are no tables of 'nobody_inc'"),
    ("table_name", "no_table", "has no table 'no_table'"),
    ("split", "holdout", "not one of train, dev, test"),
    ("id", DATASET.questions[0].id, "occurs twice"),
]


@pytest.mark.parametrize(("column", "value", "reason"), BAD_ROWS)
def test_a_bad_row_is_named_with_file_row_field_and_reason(folder: Path, column: str, value: str, reason: str) -> None:
    edit_row(folder, 4, column, value)
    with pytest.raises(DataError) as caught:
        read_layout(folder)
    assert f"finqa.csv, row 4, field '{column}': " in caught.value.message and reason in caught.value.message
    assert "--skip-bad" in caught.value.remedy
    assert len(read_layout(folder, skip_bad=True).questions) == len(DATASET.questions) - 1


def test_rows_are_counted_in_lines_of_the_file(folder: Path) -> None:
    edit_row(folder, 2, "question", "two\nlines")
    edit_row(folder, 3, "answer", "")
    assert scan_layout(folder).problems[0].row == 4


def test_a_ragged_row(folder: Path) -> None:
    with (folder / QUESTIONS_FILE).open("a") as file:
        file.write("just,three,fields\n")
    with pytest.raises(DataError, match="ragged: 3 fields"):
        read_layout(folder)


def test_bad_utf8_spoils_only_its_row(folder: Path) -> None:
    path = folder / QUESTIONS_FILE
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"What", b"Wh\xff\xfet", 1).replace(b"Did", b"D\xff", 1).replace(b"Was", b"\xff", 1)
    lines[2] = lines[2] if b"\xff" in lines[2] else b"\xff" + lines[2]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError, match=r"row 3, field '\w+': is not valid UTF-8"):
        read_layout(folder)
    assert len(read_layout(folder, skip_bad=True).questions) == len(DATASET.questions) - 1


def test_missing_columns_are_named(folder: Path) -> None:
    (folder / QUESTIONS_FILE).write_text("id,company,question\n1,a,b\n")
    with pytest.raises(DataError, match="lacks the columns user_query, answer"):
        read_layout(folder, skip_bad=True)


@pytest.mark.parametrize("missing", [QUESTIONS_FILE, TABLES_FILE])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(DataError, match=f"{Path(missing).name}: the file is missing"):
        read_layout(folder, skip_bad=True)


def test_a_missing_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_layout(tmp_path / "nothing")
    assert caught.value.remedy.startswith("name a folder that exists")


def test_a_file_in_place_of_a_folder_says_how_to_import_it(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps([FINQA_ROW]))
    with pytest.raises(DataError, match="is a file, not a data folder") as caught:
        read_layout(path)
    assert f"finqa data import finqa-json {path} --out DIR" in caught.value.remedy
    assert "generate" not in caught.value.remedy
    path.write_text("[]")  # no importer takes it
    with pytest.raises(DataError, match="is a file, not a data folder") as caught:
        read_layout(path)
    assert caught.value.remedy == "finqa data import --help"


@pytest.mark.parametrize("held_out", [True, False])
def test_a_fetched_folder_tells_its_licence_source_and_use(folder: Path, held_out: bool) -> None:
    about = folder / "dataset.json"
    about.unlink()
    manifest = fetched(evaluation_only=held_out)
    write_manifest(folder, manifest)
    for read in (read_layout(folder), import_openenv(folder).dataset, check_path(folder)):
        assert (read.source, read.licence) == (f"owner/data at {'0123456789ab'}", "Apache-2.0")
        assert read.evaluation_only is held_out
    about.write_text('{"source": "mine", "licence": "CC0", "evaluation_only": false}')
    read = read_layout(folder)
    assert (read.source, read.licence, read.evaluation_only) == ("mine", "CC0", False), "its own description counts"


def test_boxed_answers_stay_for_evaluation_whatever_a_download_says(folder: Path) -> None:
    (folder / "dataset.json").unlink()
    write_manifest(folder, fetched(evaluation_only=False))
    edit_row(folder, 2, "answer", r"\boxed{6.28\%}")
    assert read_layout(folder).evaluation_only


def test_a_fetched_question_file_tells_its_licence_source_and_use(tmp_path: Path) -> None:
    for name in ("kept", "free"):
        path = tmp_path / "full" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"id": "1", "prompt": "what?"}\n')
    write_manifest(tmp_path, fetched("full/kept.jsonl", "full/free.jsonl"))
    kept, free = (check_path(tmp_path / "full" / f"{name}.jsonl") for name in ("kept", "free"))
    assert (kept.licence, kept.evaluation_only, free.licence, free.evaluation_only) == (
        "Apache-2.0",
        True,
        "Apache-2.0",
        False,
    )
    assert kept.source == free.source == "owner/data at 0123456789ab"


@pytest.mark.parametrize("content", ["[]", '{"evaluation_only": "false"}', '{"licence": 3}', '{"files": {}}', "{"])
def test_a_damaged_record_of_a_download_is_named(folder: Path, content: str) -> None:
    (folder / "dataset.json").unlink()
    (folder / "fetch.json").write_text(content)
    with pytest.raises(DataError, match=r"fetch\.json"):
        read_layout(folder)


def fetched(*paths: str, evaluation_only: bool = False) -> Manifest:
    """A record of a download, whose first file is for evaluation only."""
    return Manifest(
        source="mine",
        endpoint="http://127.0.0.1",
        repository="owner/data",
        revision="0123456789abcdef" * 2,
        licence="Apache-2.0",
        licence_announced="apache-2.0",
        terms="",
        evaluation_only=evaluation_only,
        fetched_at="2025-01-01T00:00:00+00:00",
        complete=True,
        files=tuple(
            FileRecord(path=path, url="", bytes=0, sha256="", evaluation_only=path == paths[0]) for path in paths
        ),
    )


TABLE_DAMAGE: list[tuple[Callable[[list[dict[str, object]]], object], str]] = [
    (lambda rows: rows[1].pop("line_item") and None, "row 2, field 'line_item': ragged"),
    (lambda rows: rows[1].update(extra=1), "row 2, field 'extra': ragged"),
    (lambda rows: rows[2].update(line_item=["a"]), "row 3, field 'line_item': a cell must be"),
    (lambda rows: {key: {} for key in rows[0]}, "the table has columns but no rows"),
    (lambda rows: 7, "must be a list of row objects"),
    (lambda rows: [*rows, 3], "must be an object"),
    (lambda rows: [{"a": 1, "A": 2}], "occurs twice"),
    (lambda rows: [{"": 1}], "a column name is empty"),
    (lambda rows: [{}], "has no cells"),
    (lambda rows: {"a": [1, 2], "b": [1]}, "field 'b': ragged"),
]


@pytest.mark.parametrize(("damage", "reason"), TABLE_DAMAGE)
def test_a_bad_table_is_named_and_can_be_left_out_with_its_questions(
    folder: Path, damage: Callable[[list[dict[str, object]]], object], reason: str
) -> None:
    edit_table(folder, damage)
    with pytest.raises(DataError) as caught:
        read_layout(folder)
    assert f"{FIRST.name}.json" in caught.value.message and reason in caught.value.message
    left = read_layout(folder, skip_bad=True)
    assert len(left.tables) == len(DATASET.tables) - 1
    assert not [q for q in left.questions if (q.company, q.table_name) == (FIRST.company, FIRST.name)]


def test_bad_json_says_where(folder: Path) -> None:
    (folder / TABLE_FILE).write_text('[{"a": 1},\n {"a" 2}]')
    with pytest.raises(DataError, match=r"not valid JSON: .* at line 2, column"):
        read_layout(folder)


def test_the_column_form_of_pandas_is_read_too(folder: Path) -> None:
    edit_table(folder, lambda rows: {key: {str(i): row[key] for i, row in enumerate(rows)} for key in rows[0]})
    assert read_layout(folder).tables[[t.name for t in read_layout(folder).tables].index(FIRST.name)]
    assert {str(table) for table in read_layout(folder).tables} == {str(table) for table in DATASET.tables}


def test_not_a_number_and_huge_integers_become_cells_that_sql_can_hold(folder: Path) -> None:
    path = folder / TABLE_FILE
    path.write_text('[{"line_item": "a", "x": NaN, "y": 1e999, "z": 99999999999999999999, "t": true}]')
    table = next(t for t in scan_layout(folder).dataset.tables if (t.company, t.name) == (FIRST.company, FIRST.name))
    assert table.rows == (("a", None, None, 1e20, 1),)


def test_without_a_split_column_companies_are_split_by_their_name(folder: Path) -> None:
    for row in range(2, 2 + len(DATASET.questions)):
        edit_row(folder, row, "split", "")
    first, again, other = read_layout(folder), read_layout(folder), read_layout(folder, seed=99)
    assert first.questions == again.questions
    splits = {question.company: question.split for question in first.questions}
    assert all(splits[question.company] == question.split for question in first.questions)
    assert {q.company for q in other.questions} == set(splits)


def test_boxed_answers_without_a_description_are_for_evaluation_only(folder: Path) -> None:
    (folder / "dataset.json").unlink()
    assert not read_layout(folder).evaluation_only
    edit_row(folder, 2, "answer", r"\boxed{6.28\%}")
    assert read_layout(folder).evaluation_only


def test_nothing_good_left_is_an_error(folder: Path) -> None:
    (folder / QUESTIONS_FILE).write_text("id,user_query,company,question,answer\n")
    with pytest.raises(DataError, match="no question"):
        read_layout(folder, skip_bad=True)


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=300), target=st.sampled_from([QUESTIONS_FILE, TABLES_FILE, TABLE_FILE, "dataset.json"])
)
def test_garbage_in_any_file_is_a_clear_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, target: str
) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    write_layout(DATASET, folder)
    (folder / target).write_bytes(content)
    try:
        read_layout(folder, skip_bad=True)
    except FinqaError as error:
        assert error.message
