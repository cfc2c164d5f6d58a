"""Rows of question files, the imports that read them, and what a check tells about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixtures.data_files import (
    DATASET,
    FINQA_ROW,
    edit_question,
    finqa_row,
    rllm_question,
    write_csv,
    write_folder,
    write_json,
    write_jsonl,
    write_rllm,
)
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.data import (
    LocalSnapshots,
    import_finqa_json,
    import_openenv,
    import_rllm,
    import_snorkel,
    read_layout,
    write_layout,
)
from finqa_cli.data.check_data import check_path, summary
from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.finqa.check_finqa import disagreement, odd_cells
from finqa_cli.data.finqa.finqa_rows import finqa_row as read_finqa_row
from finqa_cli.data.openenv_layout.layout import ABOUT_FILE
from finqa_cli.data.question_files.question_rows import read_rows
from finqa_cli.data.worded_answers import is_odd, is_worded
from finqa_cli.errors import DataError, MissingDependencyError
from finqa_cli.grading import openenv
from finqa_cli.types.splits import choose_split, split_of_name

REAL = Path(__file__).parents[3] / "../shared/data/finqa"


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="needs finqa[data]")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(rows), path)
    return path


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    rows = [{"id": "a", "question": 'what, "exactly"?\nand when?'}, {"id": "b", "question": "wie groß?"}]
    for path in (
        write_json(tmp_path / "rows.json", rows),
        write_jsonl(tmp_path / "rows.jsonl", rows),
        write_csv(tmp_path / "rows.csv", rows),
        write_parquet(tmp_path / "rows.parquet", rows),
    ):
        read = [item for item in read_rows(path) if not isinstance(item, Problem)]
        assert [fields for _, fields in read] == rows, path
        assert [number for number, _ in read] == ([2, 4] if path.suffix == ".csv" else [1, 2])


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv", ".parquet"])
@given(content=st.binary(max_size=200))
def test_garbage_is_a_problem_or_rows(tmp_path_factory: pytest.TempPathFactory, suffix: str, content: bytes) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="needs finqa[data]")
    path = tmp_path_factory.mktemp("garbage") / f"rows{suffix}"
    path.write_bytes(content)
    try:
        for item in read_rows(path):
            assert isinstance(item, Problem) or all(isinstance(name, str) for name in item[1])
    except ProblemError as error:
        assert error.problem.file == str(path) and error.problem.reason


def test_without_pyarrow_a_parquet_file_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError) as caught:
        list(read_rows(tmp_path / "rows.parquet"))
    assert caught.value.remedy == "pip install 'finqa[data]'" and caught.value.exit_code == 78


def test_finqa_rows_come_from_jsonl_nested_and_flat_parquet_too(tmp_path: Path) -> None:
    flat = {**{key: value for key, value in FINQA_ROW.items() if key != "qa"}, **FINQA_ROW["qa"]}
    flat |= {"gold_inds": json.dumps(flat["gold_inds"]), "exe_ans": str(flat["exe_ans"])}
    reference = import_finqa_json([write_json(tmp_path / "dev.json", [FINQA_ROW])]).dataset
    for path in (
        write_jsonl(tmp_path / "dev.jsonl", [FINQA_ROW]),
        write_parquet(tmp_path / "nested.parquet", [FINQA_ROW]),
        write_parquet(tmp_path / "flat.parquet", [flat]),
    ):
        read = import_finqa_json([path]).dataset
        assert (read.questions, read.tables) == (reference.questions, reference.tables), path


def test_facts_that_a_parquet_struct_leaves_out_do_not_count(tmp_path: Path) -> None:
    text_fact = finqa_row(gold_inds={"text_1": "..."})
    path = write_parquet(tmp_path / "dev.parquet", [FINQA_ROW, text_fact])
    report = import_finqa_json([path])
    assert report.kept == 1 and dict(report.skipped) == {"needs facts from the text": 1}


def test_the_same_id_in_two_files_is_named(tmp_path: Path) -> None:
    files = [write_json(tmp_path / f"{name}.json", [FINQA_ROW]) for name in ("a", "b")]
    with pytest.raises(DataError, match=r"b\.json, row 1, field 'id': .* is in an earlier file too"):
        import_finqa_json(files)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train.json", "train"),
        ("val_finqa.csv", "dev"),
        ("test-00000-of-00001.parquet", "test"),
        ("finqa_test.jsonl", "test"),
        ("validation.parquet", "dev"),
        ("train_partial.json", "train"),
        ("latest.json", ""),
        ("contest.json", ""),
        ("train_test.json", "test"),
        ("finqa test.json", "test"),
        ("finqa-test (1).json", "test"),
        ("test2.json", "test"),
        ("private_test.json", "test"),
        ("rows.json", ""),
    ],
)
def test_the_split_in_a_file_name(name: str, split: str) -> None:
    assert split_of_name(Path(name)) == split


def test_snorkels_questions_are_all_for_evaluation(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "download")
    (folder / ABOUT_FILE).unlink()
    dataset = import_snorkel(folder).dataset
    assert dataset.evaluation_only and dataset.split_counts() == {"test": len(DATASET.questions)}
    assert dataset.licence == "Apache-2.0" and "snorkelai/finqa-data" in dataset.source
    write_layout(dataset, tmp_path / "out")
    assert read_layout(tmp_path / "out") == replace(dataset, tables=read_layout(tmp_path / "out").tables)
    snapshot, _ = LocalSnapshots(tmp_path / "home").build("snorkel", tmp_path / "out")
    kept = {name: snapshot.metadata[name] for name in ("source", "licence", "evaluation_only")}
    assert kept == {"source": dataset.source, "licence": "Apache-2.0", "evaluation_only": True}


def test_an_openenv_folder_keeps_its_splits_unless_it_is_for_evaluation(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    assert import_openenv(folder).dataset.questions == DATASET.questions
    assert import_openenv(folder, evaluation_only=True).dataset.split_counts() == {"test": len(DATASET.questions)}
    about = json.loads((folder / ABOUT_FILE).read_text())
    write_json(folder / ABOUT_FILE, {**about, "evaluation_only": True})
    assert import_openenv(folder).dataset.evaluation_only
    trainable = import_openenv(folder, evaluation_only=False).dataset
    assert not trainable.evaluation_only and trainable.questions == DATASET.questions


def test_rllm_keeps_its_splits_and_all_tables_of_a_question(tmp_path: Path) -> None:
    report = import_rllm(write_rllm(tmp_path / "rllm"))
    dataset = report.dataset
    assert (report.rows, report.kept, dataset.split_counts()) == (4, 4, {"train": 1, "dev": 2, "test": 1})
    assert [question.id for question in dataset.questions] == ["test_0", "train_0", "dev_0", "multi_dev_0"]
    assert dataset.questions[-1].table_names == ("ba_Orders", "ba_Backlog")
    assert not dataset.evaluation_only and dataset.licence == "Apache-2.0"
    claims = next(table for table in dataset.tables if table.name == "elv_Claims")
    assert claims.columns == ("claims", "2022", "col_2") and claims.metadata == {"description": "d"}
    assert not [table for table in dataset.tables if table.name == "elv_Empty"], "empty tables are left out"
    write_layout(dataset, tmp_path / "out")
    assert read_layout(tmp_path / "out").questions == dataset.questions
    assert LocalSnapshots(tmp_path / "home").build("rllm", tmp_path / "out")[1]


def test_rllm_reads_registered_rows_and_tables_elsewhere(tmp_path: Path) -> None:
    write_rllm(tmp_path / "rllm")
    row = rllm_question("Boeing", "", answer=528)
    registered = {
        "question": row["user_query"],
        "core_question": row["question"],
        "ground_truth": row["answer"],
        "company": "Boeing",
        "question_id": "7",
        "question_type": "Lookup",
        "explanation": "",
        "table_name": ["ba_Orders", "ba_Backlog"],
    }
    (tmp_path / "other").mkdir()
    write_parquet(tmp_path / "other" / "train-00000-of-00001.parquet", [registered])
    (question,) = import_rllm(tmp_path / "other", tables=tmp_path / "rllm/data/company_tables").dataset.questions
    assert (question.id, question.company, question.answer) == ("train_7", "boeing", "528")
    assert question.question == row["question"] and question.table_names == ("ba_Orders", "ba_Backlog")


def test_a_question_about_an_empty_table_is_skipped_and_counted(tmp_path: Path) -> None:
    folder = write_rllm(tmp_path / "rllm")
    write_csv(folder / "data/test_finqa.csv", [rllm_question("anthem", "elv_Empty")])
    report = import_rllm(folder)
    assert dict(report.skipped) == {"its table is empty": 1} and report.kept == 3


def test_two_files_of_one_split_are_refused(tmp_path: Path) -> None:
    folder = write_rllm(tmp_path / "rllm")
    write_json(folder / "data/train_finqa.json", [])
    with pytest.raises(DataError, match="both contain the split train"):
        import_rllm(folder)


def label(answer: object, exe_ans: object) -> str | None:
    return disagreement(read_finqa_row("f", 1, finqa_row(answer=answer, exe_ans=exe_ans)))


@pytest.mark.parametrize(
    ("answer", "exe_ans", "kind"),
    [
        ("14%", 0.14464, None),
        ("127.40", 127.4, None),
        ("$ 1,234.5 million", 1234.5, None),
        ("", 5.0, None),
        ("yes", "yes", None),
        ("in words", 5.0, None),
        ("-35", -35.0, None),
        ("(35)", -35.0, None),
        ("2%", 0.0174, "rounding"),
        ("11.9%", -0.11825, "sign"),
        ("16.93%", 16.93811, "scale"),
        ("196.67", 1.9667, "scale"),
        ("25%", 0.19495, "other"),
    ],
)
def test_how_a_label_disagrees(answer: str, exe_ans: object, kind: str | None) -> None:
    assert label(answer, exe_ans) == kind


@given(answer=st.text(max_size=40), exe_ans=st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_is_judged(answer: str, exe_ans: float) -> None:
    assert label(answer.replace("\0", ""), exe_ans) in (None, "rounding", "sign", "scale", "other")


def test_odd_cells_are_those_in_columns_of_numbers() -> None:
    columns = ("line_item", "2024", "notes")
    rows = [("a", "$1,234", "see b"), ("b", "-32 ( 32 )", "x"), ("c", "$(6)", "1"), ("d", "n/a", ""), ("e", "two", "-")]
    rows += [("f", "6.4%", "y"), ("g", None, None), ("h", 7, "—"), ("i", "9" * 100_000, "z")]
    assert [(row, column) for row, column, _ in odd_cells(columns, rows)] == [(5, "2024"), (9, "2024")]


def test_quirks_are_findings_and_no_problems(tmp_path: Path) -> None:
    rows = [finqa_row(str(number)) for number in range(3)]
    rows += [
        finqa_row("empty", answer=""),
        finqa_row("scale", answer="24.567"),
        finqa_row("program", program="add(1, 1)"),
    ]
    report = check_path(write_json(tmp_path / "dev.json", rows))
    found = {finding.code: finding.count for finding in report.findings}
    assert not report.problems and report.kind == "finqa"
    assert found == {"empty_answer": 1, "answer_scale": 1, "program_truth": 1, "repeated_question": 1}
    statistics = report.statistics
    assert (statistics["rows"], statistics["tables"], statistics["cells"]) == (6, 1, 9)
    assert statistics["program_operations"] == {"subtract": 5, "add": 1}
    columns = {column["column"]: column for column in report.schema}
    assert columns["qa.answer"] == {"column": "qa.answer", "types": {"text": 5}, "missing": 1}


def test_a_check_of_a_folder_tells_companies_that_cross_splits(tmp_path: Path) -> None:
    first, *others = DATASET.questions
    crossing = replace(DATASET, questions=(replace(first, split="test" if first.split != "test" else "dev"), *others))
    write_layout(crossing, tmp_path / "data")
    report = check_path(tmp_path / "data")
    assert not report.problems and report.kind == "layout"
    assert [finding.code for finding in report.findings] == ["company_in_splits"]
    assert report.statistics["rows"] == len(DATASET.questions) and report.source == DATASET.source


def test_a_check_of_a_folder_lists_answers_that_are_a_number_with_words(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data")
    assert "worded_answer" not in [each.code for each in check_path(folder).findings]
    edit_question(folder, 2, "answer", "9875 EUR thousands")
    (found,) = [each for each in check_path(folder).findings if each.code == "worded_answer"]
    assert found.count == 1 and found.examples[0].endswith(": '9875 EUR thousands'")
    assert "write the number alone" in found.text
    edit_question(folder, 3, "answer", "540.100.5")
    report = check_path(folder)
    assert {"worded_answer", "odd_answer"} <= {each.code for each in report.findings}
    assert summary(report).count("warning: ") == len(report.findings) and "No errors, but " in summary(report)


@pytest.mark.parametrize(
    "text",
    [
        "9875 EUR thousands",
        "9.8 million",
        "$9.8 million",
        "EUR 9,875",
        "€9,875",
        "$9.8m",
        "9.8bn",
        "12 percent",
        "12 % of sales",
    ],
)
def test_numbers_with_words_are_compared_as_text(text: str) -> None:
    number = "".join(each for each in text if each in "0123456789,.")
    assert is_worded(text) and not openenv.grade(number, text).reward and openenv.grade(text, text).reward


@pytest.mark.parametrize("text", ["2023: 59, 2024: 58", "5; 6", "1,234", "(5)", "\\boxed{12345678}", "3M", ""])
def test_numbers_and_lists_of_numbers_are_not_odd(text: str) -> None:
    assert not is_odd(text) and is_odd("1.234.56")


@given(st.decimals(allow_nan=False, allow_infinity=False).map(str), st.text(max_size=99))
def test_numbers_alone_have_no_words_and_what_has_is_graded_as_text(number: str, text: str) -> None:
    assert not is_worded(number)
    assert not is_worded(text) or openenv.grade(text, text).reward


@pytest.mark.parametrize("text", ["9875", "$9.8", "12 %", "3M", "Q3", "Table 3", "2019 and 2020", "yes", "1.5e3", ""])
def test_numbers_names_and_texts_are_no_numbers_with_words(text: str) -> None:
    assert not is_worded(text)


def test_a_check_of_plain_questions(tmp_path: Path) -> None:
    rows = [{"id": str(number), "input_text": "x" * number, "company": "a"} for number in (1, 2, 3)]
    report = check_path(write_jsonl(tmp_path / "train.jsonl", [*rows, rows[0], {"id": "9", "input_text": ""}]))
    assert [(problem.row, problem.field) for problem in report.problems] == [(4, "id"), (5, "input_text")]
    assert report.kind == "questions" and report.statistics["prompt_characters"]["max"] == 3
    assert report.statistics["rows"] == 5
    with pytest.raises(DataError, match="it contains no rows"):
        check_path(write_jsonl(tmp_path / "none.jsonl", []))
    with pytest.raises(DataError, match="it has: a, b"):
        check_path(write_jsonl(tmp_path / "other.jsonl", [{"a": 1, "b": 2}]))


@pytest.mark.skipif(not REAL.is_dir(), reason="the original FinQA data is not on this machine")
def test_the_real_files_have_the_published_counts() -> None:
    report = check_path(REAL / "test.json")
    found = {finding.code: finding.count for finding in report.findings}
    assert not report.problems and report.evaluation_only and "program_truth" not in found
    assert report.statistics["rows"] == 1147 and found["empty_answer"] == 14
    assert (report.statistics["percent_answers"], report.statistics["yes_no_answers"]) == (652, 20)
    assert report.statistics["program_operations"]["divide"] == 820
    differing = sum(count for code, count in found.items() if code.startswith("answer_"))
    assert 100 <= differing <= 130


@pytest.mark.parametrize(
    ("wanted", "available", "chosen"),
    [
        ("dev,test,train", ("train", "dev", "test"), "dev"),
        ("dev,test,train", ("train", "test"), "test"),
        ("test, dev,train", ("train",), "train"),
        ("validation", ("train", "dev"), "dev"),
        ("test", ("train", "dev"), "test"),
        ("final", ("final",), "final"),
        ("dev,test", ("other",), "dev"),
    ],
)
def test_of_several_splits_the_first_that_there_is_is_chosen(
    wanted: str, available: tuple[str, ...], chosen: str
) -> None:
    assert choose_split(wanted, available) == chosen
