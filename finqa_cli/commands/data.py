"""`finqa data`: generate, import and check data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from finqa_cli.commands import _options as options
from finqa_cli.commands._output import emit, plural
from finqa_cli.data import (
    DataSet,
    GenerateSpec,
    ImportReport,
    Problem,
    SplitShares,
    generate,
    import_finqa_json,
    scan_layout,
    write_layout,
)
from finqa_cli.errors import UsageError

_SHOWN_PROBLEMS = 20

app = typer.Typer(
    help="Generate, import and check data sets.",
    epilog=options.EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
imports = typer.Typer(
    help="Turn other data sets into the layout that finqa reads.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(imports, name="import")

Out = Annotated[Path, typer.Option("--out", help="Folder to write; it must not hold a data set yet.")]
Splits = Annotated[
    str, typer.Option("--splits", help="Shares of the companies for train,dev,test.", metavar="TRAIN,DEV,TEST")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of every random choice.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave malformed rows out instead of failing.")]


@app.command("generate")
def generate_data(
    out: Out,
    companies: Annotated[int, typer.Option("--companies", help="How many companies.")] = 60,
    questions: Annotated[int, typer.Option("--questions", help="Questions per company.")] = 14,
    seed: Seed = 7,
    cells: Annotated[
        Literal["numbers", "text"], typer.Option("--cells", help="Plain numbers, or text as in filings: $1,234, $(6).")
    ] = "numbers",
    splits: Splits = "0.6,0.15,0.25",
    as_json: options.AsJson = False,
) -> None:
    """Invent companies, their statements and questions with verified answers. The same options give the same files.

    Exit codes: 0 ok, 2 usage, 65 a number is out of range, 74 writing failed.

    Example: finqa data generate --companies 60 --questions 14 --seed 7 --out my-data
    """
    spec = GenerateSpec(companies=companies, questions=questions, seed=seed, cells=cells, shares=_shares(splits))
    dataset = generate(spec)
    write_layout(dataset, out)
    emit(_document(dataset, out), as_json=as_json, text=f"Generated {_counts(dataset)} in {out}\n{_next(out)}")


@imports.command("finqa-json")
def import_finqa(
    files: Annotated[list[Path], typer.Argument(help="Files of the original FinQA: train.json, dev.json, test.json.")],
    out: Out,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split by company.")] = 0,
    splits: Splits = "0.6,0.15,0.25",
    evaluation_only: Annotated[
        bool | None,
        typer.Option(
            "--evaluation-only/--trainable",
            help="Mark the data as not for training.",
            show_default="only when a file is called test.json",
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
        files, skip_bad=skip_bad, evaluation_only=evaluation_only, seed=seed, shares=_shares(splits)
    )
    write_layout(report.dataset, out)
    emit({**_document(report.dataset, out), **_import_counts(report)}, as_json=as_json, text=_import_text(report, out))


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A data folder, or a file of the original FinQA.")],
    as_json: options.AsJson = False,
) -> None:
    """Check every table and row, and list what is wrong: file, row, field, reason.

    Exit codes: 0 all is well, 65 something is missing or malformed.

    Example: finqa data check my-data
    """
    if path.is_file():
        report = import_finqa_json([path], skip_bad=True)
        dataset, problems = report.dataset, report.problems
    else:
        reading = scan_layout(path)
        dataset, problems = reading.dataset, reading.problems
    document = {**_document(dataset, path), "ok": not problems, "problems": [_problem(one) for one in problems]}
    emit(document, as_json=as_json, text=_check_text(dataset, problems, path))
    if problems:
        raise typer.Exit(65)


def _shares(text: str) -> SplitShares:
    try:
        train, dev, test = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"--splits takes three numbers, but got {text!r}.", remedy="--splits 0.6,0.15,0.25") from error
    return SplitShares(train=train, dev=dev, test=test)


def _document(dataset: DataSet, folder: Path) -> dict[str, Any]:
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


def _counts(dataset: DataSet) -> str:
    splits = ", ".join(f"{split} {count}" for split, count in dataset.split_counts().items())
    companies = len(dataset.companies())
    return (
        f"{companies} {'company' if companies == 1 else 'companies'}, {plural(len(dataset.tables), 'table')}, "
        f"{plural(len(dataset.questions), 'question')} ({splits or 'no split'})"
    )


def _next(folder: Path) -> str:
    return f"Next: finqa snapshot build --snapshot-name {folder.name or 'mine'} --data {folder}"


def _import_counts(report: ImportReport) -> dict[str, Any]:
    return {
        "rows": report.rows,
        "kept": report.kept,
        "skipped": dict(report.skipped),
        "malformed": len(report.problems),
        "problems": [_problem(problem) for problem in report.problems],
    }


def _import_text(report: ImportReport, out: Path) -> str:
    skipped = [f"  {plural(count, 'row')}: {reason}" for reason, count in report.skipped.items()]
    bad = (
        [f"  {plural(len(report.problems), 'row')}: malformed; first: {report.problems[0]}"] if report.problems else []
    )
    kept = f"Kept {report.kept} of {report.rows} rows: {_counts(report.dataset)} in {out}"
    return "\n".join([kept, *(["Left out:"] if skipped or bad else []), *skipped, *bad, _next(out)])


def _problem(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "row": problem.row or None, "field": problem.field or None, "reason": problem.reason}


def _check_text(dataset: DataSet, problems: tuple[Problem, ...], path: Path) -> str:
    lines = [f"{path}: {_counts(dataset)}", *map(str, problems[:_SHOWN_PROBLEMS])]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"... and {len(problems) - _SHOWN_PROBLEMS} more; --json lists all")
    lines.append(f"{plural(len(problems), 'problem')}." if problems else "All is well.")
    return "\n".join(lines)
