from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import DataError, FinqaError
from finqa_plugins.environments._task_files.task_rows import RowError
from finqa_plugins.environments.forecast.config import ForecastConfig
from finqa_plugins.environments.forecast.forecast_rows import as_record, load, read_row

PUBLISHED: dict[str, Any] = {
    "data_source": "financeqa/stock",
    "prompt": [{"role": "user", "content": "=== Question ===\nWill ACME rise?"}],
    "ability": "finance",
    "reward_model": {"style": "rule", "ground_truth": "yes"},
    "extra_info": {
        "split": "train",
        "index": 7,
        "question": "Will ACME rise?",
        "answer": "yes",
        "ticker": "ACME",
        "date": "2024-01-02",
        "question_type": "event_detection",
        "uncertainty": 0.4,
    },
}


def row(**extra: object) -> dict[str, Any]:
    """The published row with other facts in its `extra_info`."""
    return {**PUBLISHED, "extra_info": {**PUBLISHED["extra_info"], **extra}}


def texts(record: dict[str, Any]) -> dict[str, Any]:
    """With its nested columns as texts of JSON."""
    return {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in record.items()}


def write(path: Path, *rows: object) -> Path:
    if path.suffix == ".parquet":
        table = import_module("pyarrow").Table.from_pylist(list(rows))
        import_module("pyarrow.parquet").write_table(table, path)
    else:
        path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_both_kinds_of_file_nested_and_as_texts_give_the_same_rows(ending: str, tmp_path: Path) -> None:
    for name, record in (("nested", PUBLISHED), ("texts", texts(PUBLISHED))):
        data = load(write(tmp_path / f"{name}.{ending}", record), ForecastConfig())
        (found,) = data.rows["train"]
        assert found.id == f"{name}-1" and found.question == "Will ACME rise?" and found.truths == ("yes",)
        assert (found.ticker, found.date, found.uncertainty) == ("ACME", "2024-01-02", 0.4)
        assert found.question_type == "event_detection" and found.data_source == "financeqa/stock"
        assert found.messages[-1].content.endswith("Will ACME rise?")
        again = read_row(json.loads(json.dumps(as_record(found, split="train", index=0))), name=found.id)
        assert again.truths == found.truths and again.uncertainty == found.uncertainty


@pytest.mark.parametrize(
    ("truth", "truths"),
    [
        ("yes", ("yes",)),
        ({"target": "up"}, ("up",)),
        ({"target": ["up", "rises"]}, ("up", "rises")),
        ({"answer": "no"}, ("no",)),
        ('{"target": ["a", "b"]}', ("a", "b")),
        (-2.5, ("-2.5",)),
        (True, ("yes",)),
        (None, ("yes",)),  # extra_info.answer
    ],
)
def test_truths_come_in_every_published_form(truth: object, truths: tuple[str, ...]) -> None:
    record = {**PUBLISHED, "reward_model": {"style": "rule", "ground_truth": truth}}
    assert read_row(record, name="1").truths == truths


@pytest.mark.parametrize(("given", "known"), [(None, None), ("", None), ("0.5", 0.5), (1, 1.0), (3.0, 1.0), (-1, 0.0)])
def test_uncertainties_are_numbers_from_0_to_1(given: object, known: float | None) -> None:
    assert read_row(row(uncertainty=given), name="1").uncertainty == known


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (3, "must be an object"),
        ({}, "'prompt'"),
        ({**PUBLISHED, "prompt": []}, "'prompt'"),
        ({**PUBLISHED, "prompt": [{"role": "tool", "content": ""}]}, "'prompt'"),
        ({**PUBLISHED, "prompt": [{"role": "system", "content": ""}]}, "last message"),
        ({**PUBLISHED, "prompt": [{"role": "user", "content": None}]}, "'prompt.content'"),
        ({**PUBLISHED, "prompt": "\ud800"}, "surrogate"),
        ({**PUBLISHED, "reward_model": {"ground_truth": []}}, "empty list"),
        ({**PUBLISHED, "reward_model": {"ground_truth": " "}}, "must not be empty"),
        ({**PUBLISHED, "reward_model": "no object"}, "'reward_model'"),
        ({**row(answer=None), "reward_model": {}}, "'reward_model.ground_truth': is missing"),
        (row(uncertainty="high"), "'extra_info.uncertainty'"),
        (row(uncertainty=float("nan")), "'extra_info.uncertainty'"),
        (row(uncertainty=True), "'extra_info.uncertainty'"),
        (row(ticker=7), "'extra_info.ticker'"),
        (row(question_type="pure_forecast"), "must contain a number"),
    ],
)
def test_a_bad_row_names_its_field(record: object, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        read_row(record, name="1")


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["prompt", "role", "content", "reward_model", "ground_truth", "target", "extra_info", "uncertainty"]), inner), max_leaves=12))  # fmt: skip  # noqa: E501
def test_any_value_is_a_row_or_an_input_error(value: object) -> None:
    try:
        assert read_row(value, name="1").truths
    except RowError as error:
        assert str(error)


def test_a_folder_holds_a_file_for_each_split(tmp_path: Path) -> None:
    for name in ("train_4b_model_forecast_20000", "test_4b_model_forecast_2000", "train_8b_model_forecast_20000"):
        write(tmp_path / f"{name}.parquet", row(ticker=name))
    (tmp_path / "notes.txt").write_text("not read")
    data = load(tmp_path, ForecastConfig(match="4b"))
    assert {split: [each.ticker for each in rows] for split, rows in data.rows.items()} == {
        "train": ["train_4b_model_forecast_20000"],
        "test": ["test_4b_model_forecast_2000"],
    }
    assert not data.info.evaluation_only and data.info.name == tmp_path.name
    with pytest.raises(DataError, match="several files of split 'train'") as caught:
        load(tmp_path, ForecastConfig())
    assert "environment.options.match" in caught.value.remedy
    with pytest.raises(DataError, match="no train, dev or test file with '14b'"):
        load(tmp_path, ForecastConfig(match="14b"))


def test_of_a_training_file_alone_whole_clusters_are_held_out(tmp_path: Path) -> None:
    rows = [row(ticker=f"T{place % 20}", date=f"2024-01-{place % 28 + 1:02}") for place in range(100)]
    path = write(tmp_path / "forecasts.jsonl", *rows)
    for name in ("ticker", "date"):
        data = load(path, ForecastConfig.model_validate({"cluster": name, "holdout": 0.2}))
        train, dev = ({getattr(each, name) for each in data.rows[split]} for split in ("train", "dev"))
        assert len(train) > len(dev) >= 4 and not train & dev
        assert sum(map(len, data.rows.values())) == 100
    assert set(load(path, ForecastConfig(holdout=0)).rows) == {"train"}


def test_a_test_file_alone_is_for_evaluation_only(tmp_path: Path) -> None:
    data = load(write(tmp_path / "test_4b.jsonl", PUBLISHED), ForecastConfig())
    assert set(data.rows) == {"test"} and data.info.evaluation_only


def test_types_that_are_not_asked_for_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "test.jsonl", row(question_type="analysis"), PUBLISHED)
    (found,) = load(path, ForecastConfig(types=("event_detection",))).rows["test"]
    assert found.id == "test-2"
    with pytest.raises(DataError, match="no valid row"):
        load(path, ForecastConfig(types=("news_sentiment",)))


def test_bad_rows_fail_with_their_place_or_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    good = json.dumps(PUBLISHED).encode()
    path.write_bytes(b"\n".join([good, b"{", b"\xff", b'{"a": ' + b"9" * 5_000 + b"}", b"[" * 50_000, good, b""]))
    with pytest.raises(DataError, match=r"row 2, is not valid JSON.*3 more problems") as caught:
        load(path, ForecastConfig())
    assert "skip_bad" in caught.value.remedy
    assert [each.id for each in load(path, ForecastConfig(skip_bad=True)).rows["test"]] == ["test-1", "test-6"]


def test_a_path_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "test.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "test.csv").write_text("a,b\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, reason in (
        ("missing.jsonl", "does not exist"),
        ("test.parquet", "not readable Parquet"),
        ("test.csv", "neither .parquet nor .jsonl"),
        ("empty.jsonl", "no valid row"),
    ):
        with pytest.raises(DataError, match=reason):
            load(tmp_path / name, ForecastConfig())


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "test.parquet", PUBLISHED)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(FinqaError, match="pyarrow") as caught:
        load(path, ForecastConfig())
    assert caught.value.remedy == "pip install 'finqa[data]'"
