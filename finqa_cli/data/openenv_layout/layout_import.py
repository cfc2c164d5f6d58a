"""Imports a folder in the layout of the OpenEnv FinQA environment: Snorkel's finqa-data, or one made for its server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from finqa_cli.data.import_report import ImportReport, finished, for_evaluation
from finqa_cli.data.openenv_layout.layout_reader import scan_layout

SNORKEL_SOURCE = "SnorkelFinance (https://huggingface.co/datasets/snorkelai/finqa-data)"
SNORKEL_LICENCE = "Apache-2.0"


def import_snorkel(folder: Path, *, skip_bad: bool = False) -> ImportReport:
    """Snorkel's 290 questions. Their owner says: for evaluation only, so all of them go to the split `test`.

    Raises:
        DataError: Something is missing or malformed, or no question is left.
    """
    report = import_openenv(folder, skip_bad=skip_bad, evaluation_only=True)
    dataset = replace(report.dataset, source=SNORKEL_SOURCE, licence=SNORKEL_LICENCE)
    return replace(report, dataset=dataset)


def import_openenv(folder: Path, *, skip_bad: bool = False, evaluation_only: bool | None = None) -> ImportReport:
    r"""A folder as the stock OpenEnv server reads it; questions without a split are split by company.

    Args:
        folder: Holds `benchmark_questions/finqa.csv` and `input_companies/`.
        skip_bad: Leave out bad rows and tables instead of failing.
        evaluation_only: Mark the data as not for training (all of it becomes `test`), or as trainable; by default as
            its `dataset.json` says, and without one exactly when answers are `\boxed`, as Snorkel's are.

    Raises:
        DataError: Something is missing or malformed, or no question is left.
    """
    reading = scan_layout(folder)
    dataset = reading.dataset
    if evaluation_only if evaluation_only is not None else dataset.evaluation_only:
        dataset = for_evaluation(dataset)
    else:
        dataset = replace(dataset, evaluation_only=False)
    return finished(
        dataset,
        rows=len(dataset.questions) + sum(problem.row > 0 for problem in reading.problems),
        problems=reading.problems,
        skipped={},
        skip_bad=skip_bad,
        nothing=f"There is no good question in {folder}.",
    )
