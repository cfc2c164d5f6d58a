"""`finqa data import`: other data sets, turned into the layout that finqa reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.datasets.data_texts import (
    DEFAULT_SPLITS,
    Out,
    SkipBad,
    Splits,
    all_went_to_test,
    import_document,
    import_text,
    shares,
)
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit
from finqa_cli.data import (
    ImportReport,
    import_finqa_json,
    import_openenv,
    import_rllm,
    import_snorkel,
    write_layout,
)

app = typer.Typer(
    help="Turn other data sets into the layout that finqa reads.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

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
    as_json: options.AsJson = False,
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
def snorkel(folder: Folder, out: Out, skip_bad: SkipBad = False, as_json: options.AsJson = False) -> None:
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
    as_json: options.AsJson = False,
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
    as_json: options.AsJson = False,
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
