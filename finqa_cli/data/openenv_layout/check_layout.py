"""Facts about a data folder: counts, odd cells, repeated questions, companies in several splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finqa_cli.data.data_problems import Problem
from finqa_cli.data.dataset import DataSet
from finqa_cli.data.finqa.quirks import odd_cells
from finqa_cli.data.openenv_layout.layout_reader import scan_layout
from finqa_cli.data.question_files.row_profile import Finding, counted, finding, repeated_questions, sizes


def layout_facts(folder: Path) -> tuple[DataSet, tuple[Problem, ...], dict[str, Any], tuple[Finding, ...]]:
    """The good part of a data folder, the problems of the rest, statistics and findings.

    Raises:
        DataError: A file that everything depends on is missing or unreadable.
    """
    reading = scan_layout(folder)
    dataset = reading.dataset
    statistics = {
        "rows": len(dataset.questions) + sum(problem.row > 0 for problem in reading.problems),
        "companies": len(dataset.companies()),
        "tables": len(dataset.tables),
        "cells": sum(len(table.rows) * len(table.columns) for table in dataset.tables),
        "questions": len(dataset.questions),
        "splits": dataset.split_counts(),
        "question_types": counted(question.type or "unnamed" for question in dataset.questions),
        "multi_table_questions": sum(len(question.table_names) > 1 for question in dataset.questions),
        "prompt_characters": sizes(len(question.user_query) for question in dataset.questions),
    }
    return dataset, reading.problems, statistics, tuple(_findings(dataset))


def _findings(dataset: DataSet) -> list[Finding]:
    cells = [
        f"{table.company}/{table.name} row {row}, column {column!r}: {cell!r}"
        for table in dataset.tables
        for row, column, cell in odd_cells(table.columns, table.rows)
    ]
    asked = [(question.id, question.company, question.user_query) for question in dataset.questions]
    splits: dict[str, set[str]] = {}
    for question in dataset.questions:
        splits.setdefault(question.company, set()).add(question.split)
    crossing = [f"{company}: {', '.join(sorted(names))}" for company, names in splits.items() if len(names) > 1]
    repeats = [", ".join(ids) for ids in repeated_questions(asked)]
    return [
        *finding("odd_cell", "cells are no numbers in columns of numbers", cells),
        *finding("repeated_question", "questions are asked more than once of a company", repeats),
        *finding("company_in_splits", "companies are in more than one split, so training on it is refused", crossing),
    ]
