"""Problems from files: every published form, and what is wrong with a row, with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import DataError
from finqa_plugins.environments._task_files.task_rows import RowError
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment
from finqa_plugins.environments.code.mbpp_problems import load_problems as load
from finqa_plugins.environments.code.mbpp_problems import read_problem

ROW = {
    "task_id": 602,
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n\treturn a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(5, -5) == 0"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


def row(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in (ROW | changes).items() if value is not None}


def written(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(each) for each in rows]
    path.write_text(f"[{','.join(lines)}]" if name.endswith(".json") else "\n".join(lines))
    return path


def test_one_file_is_divided_by_number(tmp_path: Path) -> None:
    rows = [row(task_id=number) for number in (974, 601, 600, 511, 510, 11, 10, 1)]
    problems = load(written(tmp_path, "mbpp.jsonl", *rows))
    found = {split: [problem.id for problem in each] for split, each in problems.rows.items()}
    assert found == {"train": ["601", "974"], "dev": ["511", "600"], "test": ["11", "510"], "prompt": ["1", "10"]}
    assert problems.rows["train"][0].reference == "def add(a, b):\n\treturn a + b"


def test_sanitized_rows_name_their_fields_differently(tmp_path: Path) -> None:
    sanitized = row(text=None, prompt="Add.", test_setup_code=None, test_imports=["import math", "import re"])
    (problem,) = load(written(tmp_path, "sanitized-mbpp.json", sanitized)).rows["train"]
    assert problem.text == "Add." and problem.setup == "import math\nimport re"


def test_a_folder_as_fetched(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "full").mkdir()
    for name, number in (("train", 601), ("test", 11), ("validation", 511), ("prompt", 2)):
        table = arrow.Table.from_pylist([row(task_id=number)])
        parquet.write_table(table, tmp_path / "full" / f"{name}-00000-of-00001.parquet")
    written(tmp_path, "sanitized/train.jsonl", row())
    written(tmp_path, "fetch.json", {})
    assert {split: len(each) for split, each in load(tmp_path).rows.items()} == {
        "train": 1,
        "dev": 1,
        "test": 1,
        "prompt": 1,
    }
    (tmp_path / "full" / "train-00000-of-00001.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="is not readable Parquet"):
        load(tmp_path)


def test_a_file_that_names_its_split_is_that_split(tmp_path: Path) -> None:
    assert list(load(written(tmp_path, "my_train.jsonl", row(task_id=3))).rows) == ["train"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task_id": None}, "'task_id': must be a natural number"),
        ({"task_id": True}, "'task_id'"),
        ({"text": ""}, "'text': must not be empty"),
        ({"text": None}, "'prompt': must be a text"),
        ({"text": 3}, "'text': must be a text"),
        ({"code": "\ud800"}, "'code': is not valid Unicode"),
        ({"test_list": []}, "'test_list': must be a list"),
        ({"test_list": "assert add(1, 2) == 3"}, "'test_list': must be a list"),
        ({"test_list": ["assert 1"]}, "'test_list': the test asks the solution for nothing"),
        ({"test_list": ["assert add(1, 2) == 3"] * 201}, "at most 200"),
    ],
)
def test_a_malformed_row_is_told_with_its_place(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    path = written(tmp_path, "mbpp.jsonl", row(task_id=700), row(**changes))
    with pytest.raises(
        DataError, match=f"row 2, field {reason}" if "field" not in reason and "'" in reason else reason
    ):
        load(path)


def test_files_that_hold_no_problems(tmp_path: Path) -> None:
    for name, content, reason in (
        ("a.jsonl", b"", "there is no valid row"),
        ("b.jsonl", b"{", "row 1, is not valid JSON"),
        ("c.json", b"[{]", "not valid JSON"),
        ("d.jsonl", b"\xff", "row 1, is not valid UTF-8"),
        ("e.jsonl", b"3", "must be an object"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=reason):
            load(tmp_path / name)
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path / "none.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file of problems"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match="602 occurs twice"):
        load(written(tmp_path, "twice.jsonl", row(), row()))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from([*ROW, "prompt", "test_imports"]), value=_json)
@settings(max_examples=60)
def test_any_row_is_a_problem_or_an_error_that_says_why(name: str, value: object) -> None:
    try:
        assert read_problem({**ROW, name: value}).tests
    except RowError as error:
        assert str(error)


def environment(path: Path | None = None, **options: Any) -> MbppEnvironment:
    return MbppEnvironment(MbppConfig(**options), EnvironmentContext(snapshot=None, data=path))


def test_the_embedded_problems_are_divided_and_can_be_limited() -> None:
    assert {split: len(environment().tasks(split)) for split in environment().splits()} == {
        "train": 22,
        "dev": 8,
        "test": 8,
        "prompt": 2,
    }
    few = environment(dataset_limit=3)
    assert few.tasks("train") == environment().tasks("train")[:3] and few.tasks("validation") == few.tasks("dev")
    with pytest.raises(DataError, match="has no split 'elsewhere'"):
        few.tasks("elsewhere")
    assert environment().data().digest == environment().data().digest != ""
    texts = [task.prompt for split in environment().splits() for task in environment().tasks(split)]
    assert len(set(texts)) == len(texts)


def test_the_prompt_shows_the_first_tests_only(tmp_path: Path) -> None:
    (task,) = environment(written(tmp_path, "m.jsonl", row())).tasks("train")
    assert "add(1, 2) == 3" in task.prompt and "add(0, 0) == 0" in task.prompt and "add(5, -5)" not in task.prompt
    (task,) = environment(written(tmp_path, "m.jsonl", row()), shown_tests=0).tasks("train")
    assert "assert" not in task.prompt
