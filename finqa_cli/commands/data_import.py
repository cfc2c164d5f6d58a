"""`finqa data import`: other data sets, turned into the layout that finqa reads; options and texts of `finqa data`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.options import AsJson, CommandApp
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.data import (
    DataSet,
    ImportReport,
    SplitShares,
    import_finqa_json,
    import_openenv,
    import_rllm,
    import_snorkel,
    write_layout,
)
from finqa_cli.errors import UsageError
from finqa_cli.types.splits import split_of_name

app = CommandApp("Turn other data sets into the layout that finqa reads.")

Out = Annotated[Path, typer.Option("--out", help="Folder to write; it must not hold a data set yet.")]
Splits = Annotated[
    str, typer.Option("--splits", help="Shares of the companies for train,dev,test.", metavar="TRAIN,DEV,TEST")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows out instead of failing.")]

DEFAULT_SPLITS = "0.6,0.15,0.25"

Folder = Annotated[Path, typer.Argument(help="Folder with benchmark_questions/finqa.csv and input_companies/.")]


@app.command("finqa-json")
def finqa_json(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of the original FinQA: train.json, dev.json, ...; also .jsonl, .parquet."),
    ],
    out: Out,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split by company.")] = 0,
    splits: Splits = DEFAULT_SPLITS,
    evaluation_only: Annotated[
        bool | None,
        typer.Option(
            "--evaluation-only/--trainable",
            help="Mark the data as not for training.",
            show_default="only when a file is called test",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Import original FinQA rows whose gold facts lie only in the table: one table per filing page, split by company.

    Exit codes: 0 ok, 2 usage, 65 a file or row is missing or malformed, 74 writing failed.

    Example: finqa data import finqa-json dev.json --out finqa-dev
    """
    report = import_finqa_json(
        files, skip_bad=skip_bad, evaluation_only=evaluation_only, seed=seed, shares=shares(splits)
    )
    mixed = evaluation_only is None and report.dataset.evaluation_only and len(files) > 1
    _write(report, out, as_json, note=all_went_to_test(files) if mixed else "")


@app.command()
def snorkel(folder: Folder, out: Out, skip_bad: SkipBad = False, as_json: AsJson = False) -> None:
    """Import Snorkel's 290 questions (snorkelai/finqa-data). They are for evaluation only: all become the split test.

    Exit codes: 0 ok, 2 usage, 65 a file or row is missing or malformed, 74 writing failed.

    Example: finqa data import snorkel downloads/finqa-data --out snorkel
    """
    _write(import_snorkel(folder, skip_bad=skip_bad), out, as_json)


@app.command()
def openenv(
    folder: Folder,
    out: Out,
    evaluation_only: Annotated[
        bool | None,
        typer.Option(
            "--evaluation-only/--trainable",
            help="Mark the data as not for training.",
            show_default="as dataset.json says; else only when answers are boxed, as Snorkel's are",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Import a folder as the stock OpenEnv FinQA server reads it; questions without a split are split by company.

    Exit codes: 0 ok, 2 usage, 65 a file or row is missing or malformed, 74 writing failed.

    Example: finqa data import openenv env/data --evaluation-only --out mine
    """
    _write(import_openenv(folder, skip_bad=skip_bad, evaluation_only=evaluation_only), out, as_json)


@app.command()
def rllm(
    folder: Annotated[
        Path, typer.Argument(help="Unpacked data.tar.gz of rLLM/finqa: train_finqa.csv, ..., company_tables/.")
    ],
    out: Out,
    tables: Annotated[
        Path | None,
        typer.Option("--tables", help="Folder with a folder per company.", show_default="company_tables/ in DIR"),
    ] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Import rLLM-FinQA, the trainable sibling of Snorkel's set, with its own splits; multi-table questions too.

    Exit codes: 0 ok, 2 usage, 65 a file or row is missing or malformed, or columns do not fit, 74 writing failed.

    Example: finqa data import rllm downloads/rllm-finqa --out rllm
    """
    _write(import_rllm(folder, tables=tables, skip_bad=skip_bad), out, as_json)


def _write(report: ImportReport, out: Path, as_json: bool, *, note: str = "") -> None:
    write_layout(report.dataset, out)
    text = "\n".join(filter(None, (import_text(report, out), note)))
    emit(import_document(report, out), as_json=as_json, text=text)


def shares(text: str) -> SplitShares:
    """Return the shares that `--splits` names.

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
    """Return a data set in a folder for JSON."""
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
    """Return an import into a folder for JSON."""
    return {
        **dataset_document(report.dataset, folder),
        "rows": report.rows,
        "kept": report.kept,
        "skipped": dict(report.skipped),
        "malformed": len(report.problems),
        "problems": [problem.document() for problem in report.problems],
    }


def counts(dataset: DataSet) -> str:
    """Return the numbers of companies, tables and questions, with the splits."""
    splits = ", ".join(f"{split} {count}" for split, count in dataset.split_counts().items())
    companies = len(dataset.companies())
    return (
        f"{companies} {'company' if companies == 1 else 'companies'}, {plural(len(dataset.tables), 'table')}, "
        f"{plural(len(dataset.questions), 'question')} ({splits or 'no split'})"
    )


def next_step(folder: Path) -> str:
    """Return the command that compiles the written data set."""
    return f"Next: finqa snapshot build --snapshot-name {folder.name or 'mine'} --data {folder}"


def all_went_to_test(files: Sequence[Path]) -> str:
    """Return why a split by company has only the split test: a file of FinQA's test split is among its files."""
    held_out = ", ".join(str(path) for path in files if split_of_name(path) == "test")
    return f"All rows went to test: {held_out} is FinQA's test split. Leave it out to get training data."


def import_text(report: ImportReport, out: Path) -> str:
    """Return an import as text."""
    skipped = [f"  {plural(count, 'row')}: {reason}" for reason, count in report.skipped.items()]
    if report.problems:
        skipped.append(f"  {plural(len(report.problems), 'row')}: malformed; first: {report.problems[0]}")
    kept = f"Kept {report.kept} of {report.rows} rows: {counts(report.dataset)} in {out}"
    use = ["For evaluation only: training on it is refused."] if report.dataset.evaluation_only else []
    return "\n".join([kept, *(["Left out:"] if skipped else []), *skipped, *use, next_step(out)])
