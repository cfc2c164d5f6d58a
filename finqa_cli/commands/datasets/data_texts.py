"""What the data commands share: options, and how a data set or an import is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.output import plural
from finqa_cli.data import DataSet, ImportReport, SplitShares
from finqa_cli.errors import UsageError
from finqa_cli.types.splits import split_of_name

Out = Annotated[Path, typer.Option("--out", help="Folder to write; it must not hold a data set yet.")]
Splits = Annotated[
    str, typer.Option("--splits", help="Shares of the companies for train,dev,test.", metavar="TRAIN,DEV,TEST")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows out instead of failing.")]

DEFAULT_SPLITS = "0.6,0.15,0.25"


def shares(text: str) -> SplitShares:
    """The shares that `--splits` names.

    Raises:
        UsageError: It is not three numbers.
        DataError: They do not sum to 1.
    """
    try:
        train, dev, test = (float(part) for part in text.split(","))
    except ValueError as error:
        remedy = f"--splits {DEFAULT_SPLITS}"
        raise UsageError(f"--splits takes three numbers, but got {text!r}.", remedy=remedy) from error
    return SplitShares(train=train, dev=dev, test=test)


def dataset_document(dataset: DataSet, folder: Path) -> dict[str, Any]:
    """A data set in a folder, for JSON."""
    return {
        "path": str(folder),
        "companies": len(dataset.companies()),
        "tables": len(dataset.tables),
        "questions": len(dataset.questions),
        "splits": dataset.split_counts(),
        "source": dataset.source,
        "licence": dataset.licence,
        "evaluation_only": dataset.evaluation_only,
    }


def import_document(report: ImportReport, folder: Path) -> dict[str, Any]:
    """An import into a folder, for JSON."""
    return {
        **dataset_document(report.dataset, folder),
        "rows": report.rows,
        "kept": report.kept,
        "skipped": dict(report.skipped),
        "malformed": len(report.problems),
        "problems": [problem.document() for problem in report.problems],
    }


def counts(dataset: DataSet) -> str:
    """Companies, tables and questions, with the splits."""
    splits = ", ".join(f"{split} {count}" for split, count in dataset.split_counts().items())
    companies = len(dataset.companies())
    return (
        f"{companies} {'company' if companies == 1 else 'companies'}, {plural(len(dataset.tables), 'table')}, "
        f"{plural(len(dataset.questions), 'question')} ({splits or 'no split'})"
    )


def next_step(folder: Path) -> str:
    """The command that compiles what was just written."""
    return f"Next: finqa snapshot build --snapshot-name {folder.name or 'mine'} --data {folder}"


def all_went_to_test(files: Sequence[Path]) -> str:
    """Why a split by company has only the split test: a file of FinQA's test split is among its files."""
    held_out = ", ".join(str(path) for path in files if split_of_name(path) == "test")
    return f"All rows went to test: {held_out} is FinQA's test split. Leave it out to get training data."


def import_text(report: ImportReport, out: Path) -> str:
    """An import for a person."""
    skipped = [f"  {plural(count, 'row')}: {reason}" for reason, count in report.skipped.items()]
    if report.problems:
        skipped.append(f"  {plural(len(report.problems), 'row')}: malformed; first: {report.problems[0]}")
    kept = f"Kept {report.kept} of {report.rows} rows: {counts(report.dataset)} in {out}"
    use = ["For evaluation only: training on it is refused."] if report.dataset.evaluation_only else []
    return "\n".join([kept, *(["Left out:"] if skipped else []), *skipped, *use, next_step(out)])
