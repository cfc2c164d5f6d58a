"""Imports, checks and preparation of data files."""

from __future__ import annotations

import shutil
from pathlib import Path

from fixtures.data_files import edit_question, finqa_row, write_folder, write_json, write_rllm
from remedies.faults import Fault, new, own, text
from remedies.following import run
from remedies.rows.command_lines import question_file, tables

from finqa_cli.data.openenv_layout.layout import QUESTIONS_FILE

GOOD = [finqa_row("a")]
TABLES = "data import tables tables --questions questions.csv --out p"


def rows(*found: object) -> None:
    write_json(Path("train.json"), list(found))


def one_table(questions: str) -> None:
    text("tables/income.csv", "item,2023\nSales,5\n")()
    text("questions.csv", questions)()


def imported(edited: str = "") -> None:
    tables()
    run(TABLES)
    if edited:
        Path("p", QUESTIONS_FILE).write_text(edited)


def spoilt() -> None:
    own()
    edit_question(Path("own"), 2, "answer", "")


def no_answers() -> None:
    own()
    for row in range(2, 14):
        edit_question(Path("own"), row, "answer", "")


def layout_again() -> None:
    shutil.rmtree("own", ignore_errors=True)
    write_folder(Path("own"))


def no_header() -> None:
    own()
    Path("own", QUESTIONS_FILE).write_text("x\n")


def folder_of_rows() -> None:
    Path("d").mkdir()
    write_json(Path("d/train.json"), GOOD)


def two_of_a_split() -> None:
    write_rllm(Path("r"))
    Path("r/data/train_finqa.parquet").write_text("x")


IMPORTS = {
    "a file that is there": Fault(
        "data prepare rows.json --out p", lambda: (question_file(), text("p/manifest.json", "{}")())
    ),
    "a bad row": Fault(
        "data import finqa-json train.json --out p", lambda: rows(*GOOD, {}), by_hand=lambda: rows(*GOOD)
    ),
    "no row of a table": Fault(
        "data import finqa-json train.json --out p --skip-bad", lambda: rows({}), by_hand=lambda: rows(*GOOD)
    ),
    "shares that are not 1": Fault(
        "data prepare rows.json --out p --split-by company --splits 0.9,0.9,0.9", question_file
    ),
    "no file of FinQA": Fault("data import finqa-json train.json --out p", by_hand=lambda: rows(*GOOD)),
    "too few companies": Fault("data generate --companies 0 --questions 1 --out g"),
    "a data set that is there": Fault("data generate --companies 1 --questions 1 --out own", own),
    "a row of a layout": Fault("snapshot build --data own --snapshot-name mine", spoilt, by_hand=layout_again),
    "a row of a layout that is checked": Fault(
        "data check other --for finqa --against own",
        lambda: (spoilt(), write_folder(Path("other"))),
        by_hand=layout_again,
        then=(0, 65),
    ),
    "a folder for an environment of snapshots": Fault(
        "eval scripted --data own --limit 1 --split train", own, home=True
    ),
    "a header of a layout": Fault(
        "snapshot build --data own --snapshot-name mine", no_header, {"DIR": "q"}, by_hand=layout_again
    ),
    "no folder of data": Fault(
        "snapshot build --data nothere --snapshot-name mine", by_hand=lambda: write_folder(Path("nothere")) and None
    ),
    "a file for a folder": Fault(
        "snapshot build --data train.json --snapshot-name mine",
        lambda: rows(*GOOD),
        {"DIR": "q"},
        again="snapshot build --data q --snapshot-name mine",
    ),
    "a folder of files": Fault(
        "snapshot build --data d --snapshot-name mine",
        folder_of_rows,
        {"DIR": "q"},
        again="snapshot build --data q --snapshot-name mine",
    ),
    "no good question": Fault("data import openenv own --out p --skip-bad", no_answers, by_hand=layout_again),
    "a column that is none": Fault(f"{TABLES} --column question", tables),
    "a decimal point": Fault(
        f"{TABLES} --map m.toml",
        lambda: (tables(), text("m.toml", "decimal = 'x'\n")()),
        by_hand=text("m.toml", "decimal = '.'\n"),
    ),
    "an import that is there": Fault(TABLES, imported),
    "an import over other data": Fault(f"{TABLES.removesuffix('p')}own --overwrite", lambda: (tables(), own())),
    "an import over what was edited": Fault(f"{TABLES} --overwrite", lambda: imported("x\n")),
    "a misspelled column of answers": Fault(
        f"{TABLES} --company name:acme", lambda: one_table("question,anser\nhow?,5\n")
    ),
    "no rule of companies": Fault(f"{TABLES} --company nosuch", tables, then=(65, 0)),
    "tables of an unknown company": Fault(TABLES, lambda: one_table("question,answer\nhow?,5\n"), {"NAME": "acme"}),
    "no column of questions": Fault(
        f"{TABLES} --company name:acme", lambda: one_table("Frage,answer\nhow?,5\n"), {"NAME": "Frage"}
    ),
    "no column of answers": Fault(
        f"{TABLES} --company name:acme", lambda: one_table("question,Antwort\nhow?,5\n"), {"NAME": "Antwort"}
    ),
    "data that is not there": Fault(
        "eval scripted --data nosuch --limit 1", by_hand=new("eval scripted --limit 1 --sandboxes 1")
    ),
    "no questions": Fault(f"{TABLES}", lambda: (tables(), text("questions.csv", "x\n")()), by_hand=tables),
    "no good question of tables": Fault(
        f"{TABLES} --skip-bad",
        lambda: (tables(), text("questions.csv", "question,answer,company\n,,\n")()),
        by_hand=tables,
    ),
    "a file that is no JSON": Fault("data prepare rows.json --out p", text("rows.json", "{"), by_hand=question_file),
    "a file to show": Fault(
        "data show x --data rows.json",
        text("rows.json", "{"),
        by_hand=lambda: question_file() or "data show nosuch --data rows.json",
        then=65,
    ),
    "no folder of rLLM": Fault("data import rllm r --out p", by_hand=lambda: write_rllm(Path("r")) and None),
    "two files of a split": Fault("data import rllm r --out p", two_of_a_split),
    "demonstrations of the test": Fault(
        "sft of-test",
        needs=("of-test", "of-train"),
        by_hand=new("sft of-train --set sft.minimum_reward=9"),
        extra="--set sft.minimum_reward=9",
        then=65,
    ),
}
