from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from fixtures.finqa_text_rows import original, prepared, write

from finqa_cli.errors import DataError
from finqa_plugins.environments._task_files.task_rows import TaskData
from finqa_plugins.environments.finqa_text.config import FinQATextConfig
from finqa_plugins.environments.finqa_text.text_rows import TextRow, load

DEFAULTS = FinQATextConfig()


def sizes(data: TaskData[TextRow]) -> dict[str, int]:
    return {split: len(rows) for split, rows in data.rows.items()}


def test_a_test_file_is_for_evaluation_only_whatever_it_is_called_a_split_of(tmp_path: Path) -> None:
    path = write(tmp_path / "test.json", original(1), original(2))
    data = load(path, DEFAULTS)
    assert sizes(data) == {"test": 2} and data.info.evaluation_only and data.info.name == "test.json"
    assert data.info.digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert load(path, FinQATextConfig(split="train")).info.evaluation_only


def test_rows_say_themselves_that_they_are_for_evaluation_only(tmp_path: Path) -> None:
    path = write(tmp_path / "renamed.jsonl", prepared(1), prepared(2, evaluation_only=True))
    assert load(path, DEFAULTS).info.evaluation_only
    write(tmp_path / "test.jsonl", prepared(3, evaluation_only=True))
    path.rename(tmp_path / "train.jsonl")
    assert load(tmp_path, DEFAULTS).info.evaluation_only
    write(tmp_path / "train.jsonl", prepared(1))
    assert not load(tmp_path, DEFAULTS).info.evaluation_only
    (tmp_path / "train.jsonl").write_text("")
    data = load(tmp_path, DEFAULTS)
    assert sizes(data) == {"test": 1} and data.info.evaluation_only


def test_a_training_file_holds_out_whole_companies(tmp_path: Path) -> None:
    rows = [original(number, filename=f"C{number % 20}/2018/page.pdf") for number in range(60)]
    path = write(tmp_path / "train.json", *rows)
    data = load(path, DEFAULTS)
    assert sizes(data) == {"train": 54, "dev": 6} and not data.info.evaluation_only
    companies = [{row.company for row in part} for part in data.rows.values()]
    assert not companies[0] & companies[1]
    other = load(path, FinQATextConfig(seed=1))
    assert {row.company for row in other.rows["dev"]} != companies[1]
    assert sizes(load(path, FinQATextConfig(holdout=0))) == {"train": 60}
    assert sizes(load(path, FinQATextConfig(split="dev"))) == {"dev": 60}


def test_a_file_of_one_company_is_all_training_data(tmp_path: Path) -> None:
    assert sizes(load(write(tmp_path / "mine.json", original(1), original(2)), DEFAULTS)) == {"train": 2}


def test_a_folder_holds_a_file_for_each_split(tmp_path: Path) -> None:
    write(tmp_path / "train_partial.jsonl", prepared(1), prepared(2))
    write(tmp_path / "dev.json", original(3))
    write(tmp_path / "test.json", original(4))
    for name in ("private_test.json", "test_private.json", "test_turn_private.json"):
        write(tmp_path / name, {"id": "without an answer"})
    (tmp_path / "manifest.json").write_text("{}")
    data = load(tmp_path, DEFAULTS)
    assert sizes(data) == {"train": 2, "dev": 1, "test": 1} and not data.info.evaluation_only
    assert data.info.name == tmp_path.name
    (tmp_path / "test.json").unlink()
    assert sizes(load(tmp_path, DEFAULTS)) == {"train": 2, "dev": 1}
    write(tmp_path / "dev.json", original(5))
    assert load(tmp_path, DEFAULTS).info.digest != data.info.digest


@pytest.mark.parametrize(
    ("names", "reason"),
    [([], "contains no train, dev or test file"), (["dev.json", "val.json"], "several files of split 'dev'")],
)
def test_a_folder_that_does_not_say_its_splits_is_refused(tmp_path: Path, names: list[str], reason: str) -> None:
    for number, name in enumerate(names):
        write(tmp_path / name, original(number))
    with pytest.raises(DataError, match=reason):
        load(tmp_path, DEFAULTS)


def test_a_folder_takes_no_split_option(tmp_path: Path) -> None:
    write(tmp_path / "dev.json", original())
    with pytest.raises(DataError, match="is for a single file"):
        load(tmp_path, FinQATextConfig(split="dev"))


def test_one_id_in_two_splits_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.json", original(1))
    write(tmp_path / "test.json", original(1))
    with pytest.raises(DataError, match=r"test.json, row 1, field 'id': .* occurs twice"):
        load(tmp_path, DEFAULTS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "there is no valid row"),
        (b"[]", "there is no valid row"),
        (b"[1]", "row 1, must be an object"),
        (b"[{", "is not valid JSON"),
        (b'{"a": 1}\n{"a"', r"row 1, field 'id': must be a text \(1 more problems\)"),
        (b'["\xff"]', r"is not valid UTF-8 \(line 1\)"),
        (b'{"a": "\xff"}', r"row 1, is not valid UTF-8"),
        (b"[" * 100_000, "is not readable JSON"),
        (b"[" + b"9" * 5000 + b"]", "is not readable JSON"),
        (b"PK\x03\x04", "row 1, is not valid JSON"),
    ],
)
def test_files_that_are_not_rows_are_refused_with_a_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "dev.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        load(path, DEFAULTS)
    assert str(path) in caught.value.message and caught.value.remedy


def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this file does not exist"):
        load(tmp_path / "absent.json", DEFAULTS)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        load(tmp_path / "pipe.json", DEFAULTS)


def test_bad_rows_are_left_out_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "dev.jsonl"
    lines = [json.dumps(original(1)), "", "{", json.dumps(original(1)), json.dumps(original(2))]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"dev.jsonl, row 3, is not valid JSON.*1 more problems"):
        load(path, DEFAULTS)
    assert sizes(load(path, FinQATextConfig(skip_bad=True))) == {"dev": 2}
    path.write_text("{")
    with pytest.raises(DataError, match="there is no valid row"):
        load(path, FinQATextConfig(skip_bad=True))


def test_a_page_without_a_company_is_in_one_split(tmp_path: Path) -> None:
    rows = [original(number // 2, id=f"row {number}", filename=None) for number in range(40)]
    data = load(write(tmp_path / "train.json", *rows), DEFAULTS)
    assert sizes(data) == {"train": 36, "dev": 4}
    pages = [{row.company for row in part} for part in data.rows.values()]
    assert not pages[0] & pages[1]


def test_the_name_of_a_file_with_test_in_it_is_test_data(tmp_path: Path) -> None:
    for name in ("train_test.json", "finqa test.json", "test2.json"):
        assert load(write(tmp_path / name, original(1)), DEFAULTS).info.evaluation_only, name
