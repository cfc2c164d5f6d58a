from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from fixtures.data_files import DATASET, FINQA_ROW, finqa_row, write_folder, write_json, write_rllm
from typer.testing import CliRunner

from finqa_cli.app import main
from finqa_cli.commands.datasets.data import app
from finqa_cli.errors import DataError, StorageError, UsageError

pytestmark = pytest.mark.usefixtures("empty_folder")

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
    assert run("check", out).endswith("No problems found.\n") and list(Path().iterdir()) == [Path("data")]
    assert run("check", out, "--out", "report").endswith("Report: report/check_report.md\n")
    names = {"check_report.json", "check_report.md", "manifest.json"}
    assert {path.name for path in Path("report").iterdir()} == names
    with (out / "benchmark_questions/finqa.csv").open("a") as file:
        file.write("broken\n")
    checked = json.loads(run("check", out, "--json", code=65))
    assert not checked["ok"] and checked["problems"][0]["row"] == 14
    assert "row 14: ragged" in run("check", out, code=65)


def test_text_cells_and_splits(tmp_path: Path) -> None:
    text = run("generate", "--companies", 4, "--cells", "text", "--splits", "0.5,0.25,0.25", "--out", tmp_path / "d")
    assert "4 companies" in text and "train 28, dev 14, test 14" in text and "finqa snapshot build" in text
    assert "$1," in (tmp_path / "d/input_companies/tables_cleaned_all_companies.json").read_text()


@pytest.mark.parametrize("splits", ["1,2", "a,b,c", "0.5,0.5,0.5", "0.5,0.5,nan", "inf,0,0", "nan,nan,nan", ""])
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
    assert "No problems found." in run("check", tmp_path / "d")
    assert not json.loads(run("check", path, "--json", code=65))["ok"]
    assert "1 row: needs facts" in run("import", "finqa-json", path, "--out", tmp_path / "e", "--skip-bad")


def test_every_import_writes_a_folder_that_checks_and_keeps_what_it_may_be_used_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    snorkel = json.loads(run("import", "snorkel", folder, "--out", tmp_path / "snorkel", "--json"))
    assert snorkel["evaluation_only"] and snorkel["splits"] == {"test": len(DATASET.questions)}
    assert "training on it is refused" in run("import", "snorkel", folder, "--out", tmp_path / "again")
    kept = json.loads(run("import", "openenv", folder, "--out", tmp_path / "openenv", "--json"))
    assert not kept["evaluation_only"] and kept["splits"] == DATASET.split_counts()
    rllm = json.loads(run("import", "rllm", write_rllm(tmp_path / "rllm"), "--out", tmp_path / "out", "--json"))
    assert rllm["splits"] == {"train": 1, "dev": 2, "test": 1} and rllm["licence"] == "Apache-2.0"
    for name, expected in (("snorkel", snorkel), ("openenv", kept), ("out", rllm)):
        checked = json.loads(run("check", tmp_path / name, "--json"))
        assert {key: checked[key] for key in ("source", "licence", "evaluation_only")} == {
            key: expected[key] for key in ("source", "licence", "evaluation_only")
        }


def test_a_check_writes_its_report_once(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dev.json", [FINQA_ROW, finqa_row("b", answer="")])
    out = tmp_path / "report"
    text = run("check", path, "--out", out)
    assert "answers are empty: 1, for example b" in text and "Report: --out" not in text
    report, manifest = (json.loads((out / name).read_text()) for name in ("check_report.json", "manifest.json"))
    assert (
        report["ok"] and report["statistics"] == manifest["stats"] and report["findings"][0]["code"] == "empty_answer"
    )
    assert manifest["inputs"] == [{"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}]
    assert (manifest["module"], manifest["evaluation_only"]) == ("data check", False)
    assert manifest["licence"].startswith("MIT") and manifest["timestamp"].endswith("+00:00")
    text = (out / "check_report.md").read_text()
    assert (
        "## Findings" in text
        and "answers are empty: 1 (`empty_answer`)" in text
        and "| qa.exe_ans | number 2 | 0 |" in text
    )
    with pytest.raises(StorageError, match=r"check_report\.json already exists"):
        run("check", path, "--out", out)


def test_a_check_of_a_folder_digests_all_its_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    run("check", folder, "--out", tmp_path / "a")
    table = next((folder / "input_companies").glob("*/*.json"))
    table.write_text(table.read_text() + "\n")
    run("check", folder, "--out", tmp_path / "b")
    digests = [json.loads((tmp_path / name / "manifest.json").read_text())["inputs"][0]["sha256"] for name in "ab"]
    assert digests[0] != digests[1]


def test_prepare_writes_three_files_and_a_manifest(tmp_path: Path) -> None:
    path = write_json(tmp_path / "rows.json", [FINQA_ROW, {"id": "bad"}])
    out = tmp_path / "prepared"
    text = run("prepare", path, "--out", out, "--skip-bad", "--splits", "1,0,0")
    assert "Prepared 1 of 2 rows by company (train 1)" in text and "Left out 1 malformed row" in text
    assert sorted(file.name for file in out.iterdir()) == ["manifest.json", "test.jsonl", "train.jsonl", "val.jsonl"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["stats"]["splits"] == {"train": 1} and manifest["config"]["split_by"] == "company"
    assert manifest["evaluation_only_splits"] == ["test"] and not manifest["evaluation_only"]
    checked = json.loads(run("check", out / "train.jsonl", "--json"))
    assert checked["kind"] == "questions" and checked["statistics"]["rows"] == 1
    with pytest.raises(StorageError, match="not overwritten"):
        run("prepare", path, "--out", out, "--skip-bad")


def test_a_split_by_company_says_why_it_has_only_test_rows(tmp_path: Path) -> None:
    rows = [finqa_row(f"{ticker}/1", filename=f"{ticker}/2018/page_1.pdf") for ticker in ("AAL", "BAC", "CAT")]
    names = ("train.json", "dev.json", "test.json")
    files = [write_json(tmp_path / name, [row]) for name, row in zip(names, rows, strict=True)]
    why = f"All rows are in split test: {files[2]} is FinQA's test split. Leave it out to get training data."
    text = run("prepare", *files, "--split-by", "company", "--out", tmp_path / "a")
    assert "by company (test 3)" in text and why in text
    assert why in run("import", "finqa-json", *files, "--out", tmp_path / "b")
    assert "All rows are in split" not in run("prepare", *files, "--out", tmp_path / "c")
    assert "All rows are in split" not in run("prepare", *files[:2], "--split-by", "company", "--out", tmp_path / "d")
    assert "All rows are in split" not in run("import", "finqa-json", *files[:2], "--out", tmp_path / "e")


def test_companies_in_two_splits_are_counted_with_a_remedy_that_works(tmp_path: Path) -> None:
    rows = [finqa_row(f"AAL/{page}", filename=f"AAL/2018/page_{page}.pdf") for page in (1, 2)]
    files = [write_json(tmp_path / f"{split}.json", [row]) for split, row in zip(("train", "dev"), rows, strict=True)]
    text = run("prepare", *files, "--out", tmp_path / "by-file")
    assert "published splits): 1; --split-by company of the train and dev files separates them" in text
    run("prepare", *files, "--split-by", "company", "--out", tmp_path / "by-company")
    counts = json.loads((tmp_path / "by-company/manifest.json").read_text())["stats"]
    assert counts["companies_in_several_splits"] == 0 and list(counts["splits"].values()) == [2]


def test_a_folder_of_prepared_files_is_shown_and_a_check_names_its_files(tmp_path: Path) -> None:
    path = write_json(tmp_path / "rows.json", [FINQA_ROW])
    out = tmp_path / "prepared"
    run("prepare", path, "--out", out, "--splits", "0,1,0")
    assert "what was the fuel cost?" in run("show", FINQA_ROW["id"], "--data", out)
    with pytest.raises(DataError, match="no question 'nope' among the 1 of"):
        run("show", "nope", "--data", out)
    with pytest.raises(DataError, match=r"is not a data folder: .* its question files are val\.jsonl$") as caught:
        run("check", out)
    assert f"finqa data check {out / 'val.jsonl'}" in caught.value.remedy
    run("check", out / "val.jsonl")


def test_show_prints_the_table_and_hides_the_answer(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dev.json", [FINQA_ROW])
    text = run("show", FINQA_ROW["id"], "--data", path)
    assert "what was the fuel cost?" in text and "fuel cost  2457" in text and "2456.7" not in text
    assert "answer       2456.7" in run("show", FINQA_ROW["id"], "--data", path, "--answer")
    shown = json.loads(run("show", FINQA_ROW["id"], "--data", path, "--json", "--answer"))
    assert shown["answer"] == "2456.7" and shown["tables"][0]["columns"][0] == "line_item"
    with pytest.raises(UsageError):
        run("show", "x", "--data", path, "--snapshot", "y")


def test_show_takes_the_snapshot_of_the_settings(capsys: pytest.CaptureFixture[str], empty_folder: Path) -> None:
    assert main(["data", "show", "nope"]) == 65
    errors = capsys.readouterr().err
    identity = errors.split("The first is ")[1].split(".")[0]
    assert main(["data", "show", identity, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["id"] == identity and shown["tables"] and shown["other_tables"] and "answer" not in shown
