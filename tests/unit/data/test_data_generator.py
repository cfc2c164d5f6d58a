from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finqa_cli.data import EMBEDDED_SPEC, DataSet, GenerateSpec, SplitShares, embedded_layout, read_layout
from finqa_cli.data.generated.embedded import EMBEDDED_FILE
from finqa_cli.data.generated.generate import generate, run_query
from finqa_cli.data.generated.questions import QUESTION_TYPES
from finqa_cli.data.openenv_layout.layout import layout_files, write_layout
from finqa_cli.errors import DataError, StorageError

SMALL = GenerateSpec(companies=8, questions=30, seed=5)


@pytest.fixture(scope="module")
def small() -> DataSet:
    return generate(SMALL)


def test_the_same_spec_gives_the_same_files_and_another_seed_others(small: DataSet) -> None:
    assert list(layout_files(generate(SMALL))) == list(layout_files(small))
    other = generate(replace(SMALL, seed=6))
    assert not set(other.companies()) & set(small.companies())


def test_more_companies_leave_the_first_ones_as_they_are(small: DataSet) -> None:
    more = generate(replace(SMALL, companies=12))
    assert more.tables[: len(small.tables)] == small.tables


def test_every_question_type_comes_and_ids_and_queries_are_distinct(small: DataSet) -> None:
    kinds = Counter(question.type for question in small.questions)
    assert set(kinds) == set(QUESTION_TYPES) and min(kinds.values()) >= 8 * 3
    assert len({question.id for question in small.questions}) == len(small.questions) == 8 * 30


@pytest.mark.parametrize("cells", ["numbers", "text"])
def test_gold_queries_obey_the_rules_and_yield_the_answers(cells: str) -> None:
    dataset = generate(replace(SMALL, cells="text" if cells == "text" else "numbers"))
    tables = {(table.company, table.name): table for table in dataset.tables}
    for question in dataset.questions:
        table = tables[question.company, question.table_name]
        result = run_query(table, question.gold_sql)
        assert question.answer == (result if isinstance(result, str) else json.dumps(result))
        assert "SELECT *" not in question.gold_sql and " WHERE " in question.gold_sql
        assert re.findall(r"FROM (\w+)", question.gold_sql) == [table.name]


def test_text_cells_look_like_filings_and_give_the_same_answers(small: DataSet) -> None:
    text = generate(replace(SMALL, cells="text"))
    assert [question.answer for question in text.questions] == [question.answer for question in small.questions]
    cells = [cell for table in text.tables for row in table.rows for cell in row[1:]]
    assert all(isinstance(cell, str) for cell in cells)
    assert any(str(cell).startswith("$(") for cell in cells) and any(str(cell).startswith("$1,") for cell in cells)


def test_subtotals_add_up_and_values_are_plausible(small: DataSet) -> None:
    for table in small.tables:
        rows = {str(row[0]): row[1:] for row in table.rows}
        assert 6 <= len(rows) <= 9 and 3 <= len(table.columns) - 1 <= 4
        assert all(2012 <= int(year) <= 2024 for year in table.columns[1:])
        assert all(isinstance(cell, int) and abs(cell) < 10_000 for row in rows.values() for cell in row)
        for total in ("total_segment_revenue", "total_tax", "total_borrowings"):
            if total in rows:
                parts = [row for label, row in rows.items() if label != total]
                assert [sum(column) for column in zip(*parts, strict=True)] == list(rows[total])


def test_splits_are_by_company_and_sizes_follow_the_shares() -> None:
    dataset = generate(GenerateSpec(companies=20, questions=2, shares=SplitShares(train=0.5, dev=0.25, test=0.25)))
    by_company: dict[str, set[str]] = {}
    for question in dataset.questions:
        by_company.setdefault(question.company, set()).add(question.split)
    assert all(len(splits) == 1 for splits in by_company.values())
    assert Counter(min(splits) for splits in by_company.values()) == {"train": 10, "dev": 5, "test": 5}


@given(total=st.integers(1, 200), train=st.integers(0, 10), dev=st.integers(0, 10))
def test_split_counts_always_sum_to_the_total(total: int, train: int, dev: int) -> None:
    parts = train + dev + 1
    counts = SplitShares(train=train / parts, dev=dev / parts, test=1 / parts).counts(total)
    assert sum(counts.values()) == total and min(counts.values()) >= 0
    assert abs(counts["train"] - total * train / parts) <= 1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(), companies=st.integers(1, 4), questions=st.integers(1, 100))
def test_any_seed_generates_what_it_promises(seed: int, companies: int, questions: int) -> None:
    dataset = generate(GenerateSpec(companies=companies, questions=questions, seed=seed))
    assert len(dataset.questions) == companies * questions and len(dataset.companies()) == companies


@pytest.mark.parametrize("wrong", [{"companies": 0}, {"questions": 101}, {"companies": 20_001}], ids=str)
def test_a_spec_out_of_range_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DataError) as caught:
        GenerateSpec(**wrong)  # type: ignore[arg-type]
    assert next(iter(wrong)) in caught.value.message and caught.value.remedy.startswith("--")


def test_shares_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(DataError, match="sum to 1"):
        SplitShares(train=0.5, dev=0.5, test=0.5)


def test_the_embedded_data_set_is_what_the_generator_makes(tmp_path: Path) -> None:
    with zipfile.ZipFile(EMBEDDED_FILE) as archive:
        packed = {name: archive.read(name).decode() for name in archive.namelist()}
    dataset = generate(EMBEDDED_SPEC)
    assert packed == dict(layout_files(dataset)), "run: python -m finqa_cli.data.generated.embedded"
    read = read_layout(embedded_layout(tmp_path))
    assert read.questions == dataset.questions
    companies = {split: {q.company for q in read.questions if q.split == split} for split in read.split_counts()}
    assert {split: len(names) for split, names in companies.items()} == {"train": 36, "dev": 8, "test": 16}


def test_a_folder_with_data_is_not_overwritten(small: DataSet, tmp_path: Path) -> None:
    write_layout(small, tmp_path)
    with pytest.raises(StorageError, match="not overwritten"):
        write_layout(small, tmp_path)


def test_a_failed_write_is_a_storage_error(small: DataSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError):
        write_layout(small, tmp_path / "file" / "data")
