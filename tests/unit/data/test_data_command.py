from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from finqa_cli.commands.data import app
from finqa_cli.errors import DataError, StorageError, UsageError

RUNNER = CliRunner()


def run(*arguments: object, code: int = 0) -> str:
    result = RUNNER.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_generate_check_and_spoil(tmp_path: Path) -> None:
    out = tmp_path / "data"
    made = json.loads(run("generate", "--companies", 3, "--questions", 4, "--seed", 1, "--out", out, "--json"))
    assert (made["companies"], made["questions"], made["evaluation_only"]) == (3, 12, False)
    assert json.loads(run("check", out, "--json"))["ok"]
    assert "All is well." in run("check", out)
    with (out / "benchmark_questions/finqa.csv").open("a") as file:
        file.write("broken\n")
    checked = json.loads(run("check", out, "--json", code=65))
    assert not checked["ok"] and checked["problems"][0]["row"] == 14
    assert "row 14: ragged" in run("check", out, code=65)


def test_text_cells_and_splits(tmp_path: Path) -> None:
    text = run("generate", "--companies", 4, "--cells", "text", "--splits", "0.5,0.25,0.25", "--out", tmp_path / "d")
    assert "4 companies" in text and "train 28, dev 14, test 14" in text and "finqa snapshot build" in text
    assert "$1," in (tmp_path / "d/input_companies/tables_cleaned_all_companies.json").read_text()


@pytest.mark.parametrize("splits", ["1,2", "a,b,c", "0.5,0.5,0.5", ""])
def test_bad_splits(tmp_path: Path, splits: str) -> None:
    with pytest.raises((UsageError, DataError)) as caught:
        run("generate", "--splits", splits, "--out", tmp_path / "d")
    assert caught.value.remedy.startswith("--splits")


def test_a_folder_with_data_is_kept(tmp_path: Path) -> None:
    run("generate", "--companies", 1, "--out", tmp_path / "d")
    with pytest.raises(StorageError):
        run("generate", "--companies", 1, "--out", tmp_path / "d")


def test_import_counts_what_was_kept_and_why_not(tmp_path: Path) -> None:
    qa = {"question": "q?", "program": "add(1, 2)", "exe_ans": 3.0, "gold_inds": {"table_1": ""}}
    good = {"id": "a", "filename": "V/2008/page_1.pdf", "table": [["", "2008"], ["x", "1"]], "qa": qa}
    rows = [good, {**good, "id": "b", "qa": {**qa, "gold_inds": {"text_1": ""}}}, {"id": "c"}]
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(rows))
    with pytest.raises(DataError, match=r"dev\.json, row 3"):
        run("import", "finqa-json", path, "--out", tmp_path / "d")
    assert not (tmp_path / "d").exists()
    made = json.loads(run("import", "finqa-json", path, "--out", tmp_path / "d", "--skip-bad", "--json"))
    assert (made["rows"], made["kept"], made["malformed"]) == (3, 1, 1)
    assert made["skipped"] == {"needs facts from the text": 1}
    assert "All is well." in run("check", tmp_path / "d")
    assert not json.loads(run("check", path, "--json", code=65))["ok"]
    assert "1 row: needs facts" in run("import", "finqa-json", path, "--out", tmp_path / "e", "--skip-bad")
