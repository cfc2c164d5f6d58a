"""Prepared files for text training, and questions as they are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures import convfinqa_dialogues, tatqa_pages
from fixtures.data_files import DATASET, FINQA_ROW, finqa_row, write_folder, write_json, write_jsonl

from finqa_cli.app import main
from finqa_cli.data import LocalSnapshots, SplitShares
from finqa_cli.data.question_files.prepare import FILES, prepare
from finqa_cli.data.question_files.show_question import show_in_path, show_in_snapshot
from finqa_cli.errors import DataError, UsageError
from finqa_plugins.environments.forecast import make_rows

REAL = Path(__file__).parents[3] / "../shared/data/finqa"


def page(company: str, number: int = 1, **changes: Any) -> dict[str, Any]:
    filename = f"{company}/2018/page_{number}.pdf"
    return finqa_row(f"{filename}-1", filename=filename, **changes)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_prepared_row_has_the_whole_prompt_and_the_truth(tmp_path: Path) -> None:
    rows = [page("AAL", answer="3 %", exe_ans=0.03), page("BAC", exe_ans="yes"), page("CAT", exe_ans=94.0)]
    path = write_json(tmp_path / "rows.json", rows)
    files = prepare([path], shares=SplitShares(train=1, dev=0, test=0)).files()
    first, second, third = records(files["train.jsonl"])
    assert files["val.jsonl"] == files["test.jsonl"] == ""
    assert first["input_text"] == (
        "Context:\nfuel is dear .\n\nTable:\n| ( in millions ) | 2018 | 2017 |\n| fuel cost | $ 2457 | -0.3 ( 0.3 ) |\n"
        "| other | 7 | 6.4% |\n\nso is maintenance .\n\nQuestion: what was the fuel cost?"
    )
    assert (first["target_answer"], first["exe_ans"], first["percent"]) == ("0.03", 0.03, True)
    assert (second["target_answer"], second["exe_ans"], second["percent"]) == ("Yes", "yes", False)
    assert (third["target_answer"], third["target_program"]) == ("94", "subtract(2457, 0.3)")
    assert (third["company"], third["table"], third["split"]) == ("CAT", FINQA_ROW["table"], "train")
    assert not any(row["evaluation_only"] for row in (first, second, third))


def test_companies_stay_in_one_split_whatever_the_order(tmp_path: Path) -> None:
    rows = [page(f"C{number % 20:02d}", number) for number in range(60)]
    prepared = prepare([write_json(tmp_path / "rows.json", rows)], seed=3)
    again = prepare([write_json(tmp_path / "again.json", rows[::-1])], seed=3)
    splits = {row.company: split for split, part in prepared.rows.items() for row in part}
    assert prepared.split_by == "company" and set(splits.values()) == {"train", "dev", "test"}
    assert splits == {row.company: split for split, part in again.rows.items() for row in part}
    assert sum(map(len, prepared.rows.values())) == 60 and not prepared.shared_companies


def test_rows_without_a_page_stay_together_by_their_content(tmp_path: Path) -> None:
    rows = [finqa_row(str(number), filename=None, question=f"what is {number}?") for number in range(20)]
    prepared = prepare([write_json(tmp_path / "rows.json", rows)])
    assert len(prepared.rows) == 1


def test_rows_without_a_page_share_it_across_files_and_company_splits(tmp_path: Path) -> None:
    leak = [finqa_row(name, filename=None, question=f"what is {name}?") for name in ("a", "b")]
    files = [write_json(tmp_path / f"{split}.json", [row]) for split, row in zip(("train", "dev"), leak, strict=True)]
    with pytest.raises(DataError, match="The splits train and dev share 1 page") as caught:
        prepare(files)
    assert "of the train and dev files" in caught.value.remedy
    assert len(prepare(files, split_by="company").rows) == 1
    rows = [finqa_row(f"AAL/{number}", filename=None, pre_text=[f"page {number}"]) for number in range(20)]
    assert len(prepare([write_json(tmp_path / "rows.json", rows)]).rows) == 1, "their ids name one company"


def test_files_named_by_split_keep_it(tmp_path: Path) -> None:
    files = [
        write_json(tmp_path / "train.json", [page("AAL", 1)]),
        write_json(tmp_path / "dev.json", [page("AAL", 2), page("BAC", 3)]),
        write_jsonl(tmp_path / "test.jsonl", [page("CAT", 4)]),
    ]
    prepared = prepare(files)
    assert prepared.split_by == "file" and prepared.shared_companies == ("AAL",)
    texts = prepared.files()
    assert [len(records(texts[name])) for name in ("train.jsonl", "val.jsonl", "test.jsonl")] == [1, 2, 1]
    assert [row["evaluation_only"] for row in records(texts["val.jsonl"]) + records(texts["test.jsonl"])] == [
        False,
        False,
        True,
    ]
    with pytest.raises(UsageError, match="names no split"):
        prepare([write_json(tmp_path / "rows.json", [page("X")])], split_by="file")


def test_a_split_by_company_never_makes_test_data_trainable(tmp_path: Path) -> None:
    files = [write_json(tmp_path / "test.json", [page(f"C{number}", number) for number in range(9)])]
    prepared = prepare(files, split_by="company", shares=SplitShares(train=1, dev=0, test=0))
    assert set(prepared.rows) == {"test"} and prepared.evaluation_only


@pytest.mark.parametrize(
    ("leak", "words"),
    [
        (page("AAL", 1), "1 page"),
        (page("AAL", 1) | {"id": "other"}, "1 page"),
        (page("ZZZ", 9) | {"id": "AAL/2018/page_1.pdf-1"}, "1 task id"),
    ],
)
def test_a_leak_between_splits_is_refused(tmp_path: Path, leak: dict[str, Any], words: str) -> None:
    files = [write_json(tmp_path / "train.json", [page("AAL", 1)]), write_json(tmp_path / "dev.json", [leak])]
    with pytest.raises(DataError, match=f"The splits train and dev share .*{words}"):
        prepare(files)


def test_malformed_rows_are_refused_or_left_out(tmp_path: Path) -> None:
    path = write_json(tmp_path / "rows.json", [page("AAL"), {"id": "b"}, page("AAL")])
    with pytest.raises(DataError, match=r"rows\.json, row 2, .*1 more problem"):
        prepare([path])
    assert prepare([path], skip_bad=True).stats()["malformed"] == 2
    with pytest.raises(DataError, match="no valid row"):
        prepare([write_json(tmp_path / "bad.json", [{}])], skip_bad=True)


@pytest.mark.skipif(not REAL.is_dir(), reason="the original FinQA data is not on this machine")
def test_the_published_splits_share_companies_but_no_page() -> None:
    prepared = prepare([REAL / "train_partial.json", REAL / "dev.json", REAL / "test.json"])
    assert {split: len(rows) for split, rows in prepared.rows.items()} == {"train": 589, "dev": 883, "test": 1147}
    assert len(prepared.shared_companies) > 50


def test_a_question_is_shown_from_wherever_it_lies(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    question = DATASET.questions[0]
    snapshot, _ = LocalSnapshots(tmp_path / "home").build("mine", folder)
    for shown in (show_in_path(folder, question.id), show_in_snapshot(snapshot, question.id)):
        assert shown.facts["question"] == question.user_query and shown.solution["answer"] == question.answer
        (table,) = shown.tables
        source = next(one for one in DATASET.tables if (one.company, one.name) == (table.company, table.name))
        assert (table.columns, table.rows, table.name) == (source.columns, source.rows, question.table_name)
        assert len(shown.other_tables) == len([one for one in DATASET.tables if one.company == question.company]) - 1
        assert question.answer not in json.dumps({**shown.document(answer=False), "tables": []})
        assert shown.document(answer=True)["answer"] == question.answer


def test_a_finqa_row_and_a_prepared_row_are_shown(tmp_path: Path) -> None:
    path = write_json(tmp_path / "rows.json", [page("AAL")])
    shown = show_in_path(path, "AAL/2018/page_1.pdf-1")
    assert shown.tables[0].rows[0] == ("fuel cost", 2457, -0.3) and "fuel is dear" in shown.text
    assert shown.solution["program"] == "subtract(2457, 0.3)"
    prepared = tmp_path / "train.jsonl"
    prepared.write_text(prepare([path], shares=SplitShares(train=1, dev=0, test=0)).files()["train.jsonl"])
    again = show_in_path(prepared, "AAL/2018/page_1.pdf-1")
    assert again.text.endswith("Question: what was the fuel cost?") and again.solution["target_answer"] == "2456.7"
    assert "2456.7" not in json.dumps(again.document(answer=False))


def test_an_unknown_question_names_near_ones(tmp_path: Path) -> None:
    first, last = DATASET.questions[0].id, DATASET.questions[-1].id
    with pytest.raises(DataError, match=rf"no question .* The first is {first}\. Similar ids: .*{last}"):
        show_in_path(write_folder(tmp_path / "data"), last + "x")
    with pytest.raises(DataError, match=rf"The first is {first}\.$"):
        show_in_path(tmp_path / "data", "1")


def test_the_only_table_of_a_company_is_shown_also_where_the_question_names_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, count in (("one", 1), ("two", 2)):
        tables = tmp_path / folder / "acme"
        tables.mkdir(parents=True)
        for number in range(count):
            (tables / f"income{number}.csv").write_text('item,2023\nRevenue,"1,240.5"\nCost,123456.75\n')
        questions = tmp_path / f"{folder}.csv"
        questions.write_text("company,question,answer\nacme,What was the revenue?,13\n")
        out = str(tmp_path / f"{folder}-data")
        assert (
            main(["data", "import", "tables", str(tmp_path / folder), "--questions", str(questions), "--out", out]) == 0
        )
    shown = show_in_path(tmp_path / "one-data", "q00002")
    assert [table.name for table in shown.tables] == ["income0"] and shown.other_tables == ()
    capsys.readouterr()
    assert main(["data", "show", "q00002", "--data", str(tmp_path / "one-data")]) == 0
    assert "Revenue  1240.5\nCost     123456.75\n" in capsys.readouterr().out
    several = show_in_path(tmp_path / "two-data", "q00002")
    assert several.tables == () and several.other_tables == ("income0", "income1")


def test_files_of_an_environment_are_divided_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dialogues = []
    for number in range(40):
        dialogue = convfinqa_dialogues.original(1)
        company = f"C{number // 2}"
        dialogues.append({**dialogue, "id": f"Single_{company}/2018/page_{number}.pdf-1"})
    write_json(Path("train.json"), dialogues)
    assert main(["data", "prepare", "train.json", "--for=convfinqa", "--out=out"]) == 0
    found = {split: records(Path("out", name).read_text()) for split, name in FILES.items()}
    assert all(found.values()) and sum(map(len, found.values())) == 40
    for split, rows in found.items():
        for row in rows:
            assert (row.pop("split"), row.pop("evaluation_only")) == (split, split == "test") and row in dialogues
    companies = [{row["id"].split("/")[0] for row in rows} for rows in found.values()]
    assert sum(map(len, companies)) == 20, "dialogues of a company stay together"
    assert main(["data", "check", "out", "--for=convfinqa", "--out=report"]) == 0

    pages = [tatqa_pages.page(number) for number in range(1, 31)]
    write_json(Path("tatqa_dataset_train.json"), pages)
    asked = ["data", "prepare", "tatqa_dataset_train.json", "--split-by=company"]
    assert main([*asked, "--for=tatqa", "--out=pages"]) == 0
    assert sum(len(records(Path("pages", name).read_text())) for name in FILES.values()) == 30
    assert main(["data", "check", "pages", "--for=tatqa", "--out=pages-report"]) == 0

    write_json(Path("bad.json"), [*dialogues, {"id": "x"}])
    capsys.readouterr()
    for words, status, said in (
        (["data", "prepare", "train.json", "--out=none"], 65, "--for convfinqa or --for tatqa, for their files"),
        (["data", "prepare", "bad.json", "--for=convfinqa", "--out=none"], 65, "bad.json, row 41"),
        (["data", "prepare", "train.json", "--for=finqa", "--out=none"], 2, "cannot read question files"),
        (["data", "prepare", "train.json", "--set=environment.options.seed=1", "--out=none"], 2, "--for convfinqa"),
        (["data", "prepare", "gone.json", "--out=none"], 65, "fix: finqa data fetch finqa"),
    ):
        assert main(words) == status
        assert said in capsys.readouterr().err
    assert not Path("none").exists()
    assert main(["data", "prepare", "bad.json", "--for=convfinqa", "--skip-bad", "--out=kept"]) == 0
    assert "Left out 1 malformed row" in capsys.readouterr().out


@pytest.mark.parametrize("below", ["", "dataset"])
def test_a_checkout_of_finqa_is_read_at_any_level(below: str, tmp_path: Path) -> None:
    (tmp_path / "finqa" / below).mkdir(parents=True)
    for split in ("train", "dev", "test", "private_test"):
        write_json(tmp_path / "finqa" / below / f"{split}.json", [page(f"{split[:3].upper()}A", 1)])
    root = str(tmp_path / "finqa")
    assert main(["data", "prepare", root, "--out", str(tmp_path / "prepared")]) == 0
    assert [len(records((tmp_path / "prepared" / name).read_text())) for name in ("train.jsonl", "test.jsonl")] == [
        1,
        1,
    ]
    assert main(["data", "check", root]) == 0
    assert main(["data", "import", "finqa-json", root, "--out", str(tmp_path / "made")]) == 0
    assert not json.loads((tmp_path / "made" / "dataset.json").read_text())["evaluation_only"]


def test_forecasts_are_divided_by_date(tmp_path: Path) -> None:
    make_rows.main(["--out", str(tmp_path / "made"), "--format", "jsonl"])
    file, out = str(tmp_path / "made" / "train.jsonl"), tmp_path / "divided"
    flags = ("--set", "environment.options.cluster=date", "--split-by", "cluster", "--out", str(out))
    assert main(["data", "prepare", file, "--for", "forecast", *flags]) == 0
    dates = {
        name: {row["extra_info"]["date"] for row in records((out / name).read_text())}
        for name in ("train.jsonl", "val.jsonl", "test.jsonl")
    }
    assert all(dates.values()) and sum(map(len, dates.values())) == len(set.union(*dates.values()))
    assert sum(len(records((out / name).read_text())) for name in dates) == len(Path(file).read_text().splitlines())
