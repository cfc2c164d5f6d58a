"""Own tables in every form reach an evaluation in two commands, and the expert plays their gold solutions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.own_tables import FORMS, NEEDS, as_csv, question_rows, write_questions

from finqa_cli.app import main

pytestmark = pytest.mark.usefixtures("empty_folder")


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


@pytest.mark.parametrize("form", FORMS)
def test_every_form_reaches_an_evaluation_in_two_commands(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    if form in NEEDS:
        pytest.importorskip(NEEDS[form], reason="needs finqa[tables]")
    write, rule, name = FORMS[form]
    source, questions = write(Path(form)), write_questions(Path(name))
    chosen = ["--company", rule] if rule else []
    command = ["data", "import", "tables", str(source), "--questions", str(questions), *chosen]
    made = document(capsys, *command, "--out=mine", "--snapshot-name=mine")
    assert (made["companies"], made["tables"], made["questions"], made["experts"]) == (3, 6, 12, 12)
    assert made["splits"] == {"train": 8, "test": 4}
    kinds = {each["kind"]: each["count"] for each in made["conversions"]}
    assert kinds == {
        "thousands separators": 18,
        "negative numbers in brackets": 9,
        "percentages": 6,
        "currency signs": 3,
        "markers for missing values": 3,
        **({"titles above the header, kept as title": 6} if form == "excel" else {}),
    }
    report = document(capsys, "eval", "scripted", "--snapshot=mine", "--split=train", "--run-dir=run", "--sandboxes=2")
    assert (report["accuracy"], report["episodes"], report["faults"]) == (1.0, 8, 0)
    assert report["sql_error_rate"] == 0


def test_the_written_folder_is_checked_and_built_by_the_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    source, questions = as_csv(Path("own")), write_questions(Path("questions.csv"))
    assert main(["data", "import", "tables", str(source), "--questions", str(questions), "--out=mine"]) == 0
    assert "Next: finqa snapshot build --snapshot-name mine --data mine" in capsys.readouterr().out
    assert document(capsys, "data", "check", "mine")["problems"] == []
    assert document(capsys, "snapshot", "build", "--snapshot-name=checked", "--data=mine")["new"] is True
    shown = document(capsys, "data", "show", "corvane-3", "--data=mine", "--answer")
    assert shown["answer"] == "0.00727" and "SELECT ROUND(" in shown["gold_sql"]


def test_gold_sql_that_joins_tables_plays_where_queries_may_join(capsys: pytest.CaptureFixture[str]) -> None:
    joined = 'SELECT i."2023" + b."2022" FROM income i, balance b WHERE i."line item" = \'Net sales\' AND b."2022" = 75'
    rows = [{**row, "sql": joined, "program": "", "answer": "", "split": "test"} for row in question_rows()[::4]]
    rows = [{**row, "table": json.dumps(["income", "balance"])} for row in rows]
    source, questions = as_csv(Path("own")), write_questions(Path("questions.json"), rows)
    made = document(
        capsys,
        *("data", "import", "tables", str(source), "--questions", str(questions)),
        *("--out=mine", "--snapshot-name=joined"),
    )
    assert made["experts"] == 3
    play = ["eval", "scripted", "--snapshot=joined", "--split=test", "--sandboxes=1"]
    assert main([*play, "--run-dir=apart"]) == 78
    assert "fix: --set environment.options.joins=true" in capsys.readouterr().err
    report = document(capsys, *play, "--run-dir=run", "--set", "environment.options.joins=true")
    assert (report["accuracy"], report["sql_error_rate"], report["turns_mean"]) == (1.0, 0, 5.0)


def test_demonstrations_of_the_expert_are_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    source, questions = as_csv(Path("own")), write_questions(Path("questions.csv"))
    command = ["data", "import", "tables", str(source), "--questions", str(questions)]
    document(capsys, *command, "--out=mine", "--snapshot-name=demonstrated")
    sampled = document(
        capsys, "sample", "scripted", "--snapshot=demonstrated", "--split=train", "--run-dir=run", "--sandboxes=2"
    )
    assert sampled["reward_mean"] == 1.0, sampled
    again = ["sample", "scripted", "--snapshot=demonstrated", "--split=train", "--run-dir=again", "--sandboxes=2"]
    assert main(again) == 0
    assert "Next: finqa sft again\n" in capsys.readouterr().out  # no pair can be made of what is all right


def test_without_gold_sql_and_programs_the_expert_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    source = as_csv(Path("own"))
    rows = [{**row, "answer": row["answer"] or "1", "sql": "", "program": ""} for row in question_rows()]
    questions = write_questions(Path("questions.jsonl"), rows)
    command = ["data", "import", "tables", str(source), "--questions", str(questions)]
    assert main([*command, "--out=mine", "--snapshot-name=mine"]) == 0
    said = capsys.readouterr().out
    assert "has no expert for them" in said and "Next: finqa eval MODEL --snapshot mine" in said
    assert main(["eval", "scripted", "--snapshot=mine", "--split=test", "--run-dir=run", "--sandboxes=1"]) == 78
    error = capsys.readouterr().err
    assert "There is no expert for" in error and "(0 of 12 questions have)" in error
    assert "finqa data import tables --with-expert" in error


def test_where_only_some_questions_have_an_expert_play_suggests_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "answer": row["answer"] or "1", "program": "", "split": "test"} for row in question_rows()[:4]]
    source, questions = as_csv(Path("own")), write_questions(Path("questions.csv"), rows)
    command = ["data", "import", "tables", str(source), "--questions", str(questions)]
    for name, more, target in (("some", [], "MODEL"), ("all", ["--with-expert"], "scripted")):
        assert main([*command, f"--out={name}", f"--snapshot-name={name}", *more]) == 0
        played = ["play", f"--snapshot={name}", "--engine=scripted", "--split=test", "--question=ardenhill-1"]
        assert main(played) == 0
        assert f"Next: finqa eval {target} --snapshot {name}" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "grader"), [([], "strict-3"), (["--grader=openenv"], "openenv")])
def test_imported_questions_are_graded_strictly_unless_the_user_says_otherwise(
    flags: list[str], grader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source, questions = as_csv(Path("own")), write_questions(Path("questions.csv"))
    imported = ["data", "import", "tables", str(source), "--questions", str(questions), "--out=mine"]
    assert main([*imported, "--snapshot-name=mine"]) == 0
    capsys.readouterr()
    assert main(["eval", "scripted", "--snapshot=mine", "--split=test", "--run-dir=run", *flags]) == 0
    said = capsys.readouterr().out
    assert said.startswith("scripted on mine/test (environment finqa, grader " + grader + "): accuracy 1.000")
    assert json.loads(Path("run/settings.json").read_text())["environment"]["options"]["grader"] == grader
    document(capsys, "data", "import", "tables", str(source), f"--questions={questions}", "--out=mine", "--overwrite")
    again = document(capsys, "eval", "--resume=run")
    assert again["accuracy"] == 1.0, "a finished evaluation is shown, with its own data and grader"
