"""`finqa data import`: convert other data sets to finqa's layout. `finqa data` uses its options and texts, too."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.datasets.snapshot_texts import replaced_snapshot, replaced_text
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import AsJson, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.data import (
    DataSet,
    ImportReport,
    LocalSnapshots,
    SplitShares,
    import_finqa_json,
    import_openenv,
    import_rllm,
    import_snorkel,
    write_layout,
)
from finqa_cli.data.data_problems import ProblemError, as_data_error
from finqa_cli.data.import_advice import snapshot_name
from finqa_cli.data.openenv_layout.replace_layout import write_import
from finqa_cli.data.own_tables.import_options import (
    COMPANY_RULES,
    FIELDS,
    ImportOptions,
    check_encoding,
    make_cell_rules,
    make_table_rules,
    parse_columns,
    read_mapping,
)
from finqa_cli.data.own_tables.table_region import MOST_HEADER_ROWS
from finqa_cli.data.own_tables.tables_import import TablesReport, import_tables
from finqa_cli.data.question_files.question_rows import finqa_files
from finqa_cli.data.table_findings import FINDINGS
from finqa_cli.errors import UsageError
from finqa_cli.types.splits import split_of_name

app = CommandApp("Convert other data sets to the layout of finqa.")

Out = Annotated[Path, typer.Option("--out", help="Folder to write; it must not contain a data set.")]
Splits = Annotated[
    str, typer.Option("--splits", help="Shares of the companies for train,dev,test.", metavar="TRAIN,DEV,TEST")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip malformed rows instead of failing.")]

DEFAULT_SPLITS = "0.6,0.15,0.25"
_LISTED = 5

Folder = Annotated[Path, typer.Argument(help="Folder with benchmark_questions/finqa.csv and input_companies/.")]


@app.command("finqa-json")
def finqa_json(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of the original FinQA: train.json, dev.json, ...; also .jsonl, .parquet, or its folder, whose "
            "test file is left out."
        ),
    ],
    out: Out,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split by company.")] = 0,
    splits: Splits = DEFAULT_SPLITS,
    evaluation_only: Annotated[
        bool | None,
        typer.Option(
            "--evaluation-only/--trainable",
            help="Mark the data as for evaluation only.",
            show_default="only if a file is named test",
        ),
    ] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Import original FinQA rows whose gold facts are only in the table: one table per filing page, split by company.

    Exit codes: 0 ok, 2 usage, 65 a file or row is missing or malformed, 74 writing failed.

    Example: finqa data import finqa-json dev.json --out finqa-dev
    """
    found = finqa_files(files)
    if found != files and any(split_of_name(file) != "test" for file in found):
        found = [file for file in found if split_of_name(file) != "test" or file in files]
    files = found
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
            help="Mark the data as for evaluation only.",
            show_default="as in dataset.json; else only if answers are boxed, as in Snorkel's data",
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
        typer.Option("--tables", help="Folder with one folder per company.", show_default="company_tables/ in DIR"),
    ] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Import rLLM-FinQA, the trainable sibling of Snorkel's set, with its own splits; multi-table questions too.

    Exit codes: 0 ok, 2 usage, 65 a file or row is missing or malformed, or columns do not fit, 74 writing failed.

    Example: finqa data import rllm downloads/rllm-finqa --out rllm
    """
    _write(import_rllm(folder, tables=tables, skip_bad=skip_bad), out, as_json)


Source = Annotated[
    Path,
    typer.Argument(
        help="Folder of .csv, .tsv, .json, .jsonl, .parquet, .xlsx, .html, SQLite and DuckDB files, or one such file."
    ),
]
OwnOut = Annotated[
    Path, typer.Option("--out", help="Folder to write; it must not contain a data set, except with --overwrite.")
]
Questions = Annotated[Path, typer.Option("--questions", help="Questions: .csv, .json, .jsonl or .parquet.")]
MappingFile = Annotated[
    Path | None,
    typer.Option(
        "--map", metavar="FILE", help="TOML file with these options and a table [columns].", show_default="none"
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="FIELD=COLUMN",
        help=f"Column of the question file for one of the fields {', '.join(FIELDS)}.",
    ),
]
CompanyRule = Annotated[
    str | None,
    typer.Option(
        "--company", metavar="RULE", help=f"Company of a table: {', '.join(COMPANY_RULES)}.", show_default="auto"
    ),
]
TableSplits = Annotated[
    str | None,
    typer.Option(
        "--splits",
        help="Shares of the companies for train,dev,test, if questions have no split.",
        metavar="TRAIN,DEV,TEST",
        show_default=DEFAULT_SPLITS,
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of the split by company.", show_default="0")]
Decimal = Annotated[
    str | None,
    typer.Option(
        "--decimal",
        metavar="auto|.|,",
        help="Decimal mark of numbers in texts; auto: as the numbers of a column or table prove, else the point.",
        show_default="auto",
    ),
]
Dash = Annotated[
    str | None,
    typer.Option(
        "--dash", metavar="empty|zero", help="What a dash or nil in a column of numbers is.", show_default="empty"
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="NAME",
        help="Encoding of CSV and HTML files, such as latin-1.",
        show_default="by their bytes",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail for everything that looks wrong in tables.")]
Percent = Annotated[
    str | None,
    typer.Option(
        "--percent", metavar="fraction|text", help="What 12.5% becomes: 0.125, or a text.", show_default="fraction"
    ),
]
Dates = Annotated[
    str | None,
    typer.Option(
        "--dates",
        metavar="auto|day-first|month-first",
        help="Order of day and month in dates such as 3/4/2024; auto: as other dates of the column show.",
        show_default="auto",
    ),
]
HeaderRows = Annotated[
    int | None,
    typer.Option(
        "--header-rows",
        min=1,
        max=MOST_HEADER_ROWS,
        help="Lines of each header in CSV and HTML files and workbooks; auto: one to three, as the cells show.",
        show_default="auto",
    ),
]
Convert = Annotated[
    bool | None,
    typer.Option("--convert/--no-convert", help="Convert texts to numbers and dates.", show_default="convert"),
]
EvaluationOnly = Annotated[
    bool | None,
    typer.Option(
        "--evaluation-only/--trainable", help="Mark the data as for evaluation only.", show_default="trainable"
    ),
]
WithExpert = Annotated[
    bool | None,
    typer.Option("--with-expert/--all", help="Keep only questions that the expert can play.", show_default="all"),
]
SkipBadTables = Annotated[bool, typer.Option("--skip-bad", help="Skip malformed tables and questions.")]
SnapshotName = Annotated[
    str | None,
    typer.Option("--snapshot-name", help="Also compile a snapshot with this name.", show_default="none"),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the files that an earlier import wrote to --out, if they are unchanged since."
    ),
]


@app.command()
@offers(general=("config", "assign", "as_json"))
def tables(
    line: CommandLine,
    source: Source,
    questions: Questions,
    out: OwnOut,
    mapping: MappingFile = None,
    column: Columns = None,
    company: CompanyRule = None,
    splits: TableSplits = None,
    seed: Seed = None,
    decimal: Decimal = None,
    percent: Percent = None,
    dates: Dates = None,
    dash: Dash = None,
    encoding: Encoding = None,
    header_rows: HeaderRows = None,
    convert: Convert = None,
    evaluation_only: EvaluationOnly = None,
    with_expert: WithExpert = None,
    skip_bad: SkipBadTables = False,
    strict: Strict = False,
    snapshot: SnapshotName = None,
    overwrite: Overwrite = False,
) -> None:
    """Import own tables and questions, in the forms in which people keep them; docs/own-tables.md describes them.

    Exit codes: 0 ok, 2 usage, 65 a file, row or column is missing or malformed, 74 writing failed, 78 a reader of
    Excel, Parquet or DuckDB files is missing.

    Example: finqa data import tables my-tables --questions questions.csv --out mine --snapshot-name mine
    """
    try:
        given = read_mapping(mapping) if mapping else {}
    except ProblemError as error:
        raise as_data_error([error.problem], remedy="finqa data import tables --help") from error
    options = _import_options(line.context.params, given)
    snapshots = LocalSnapshots(line.load(quiet=True).settings.data.home) if snapshot else None
    if snapshot and snapshots:
        snapshots.versions(snapshot)  # an invalid name is an error before anything is written
    report = import_tables(
        source, questions, options, skip_bad=skip_bad, strict=strict, leave_out=[mapping] if mapping else []
    )
    overwritten = write_import(report.report.dataset, out, overwrite=overwrite)
    document = {**import_document(report.report, out), **_tables_document(report), "overwritten": overwritten}
    following = next_step(out)
    if snapshot and snapshots:
        before = snapshots.current(snapshot)
        built, _ = snapshots.build(snapshot, out)
        replaced = replaced_snapshot(before, built)
        document |= {"snapshot": built.name, "digest": built.digest}
        document |= {"replaced": None if replaced is None else str(replaced.path)}
        split = list(report.report.dataset.split_counts())[-1]
        player = "scripted" if report.experts == report.report.kept else "MODEL"
        following = f"Next: finqa eval {player} --snapshot {built.name} --split {split}"
        if replaced is not None:
            following = f"{replaced_text(replaced)}\n{following}"
    notes = [f"The data set that an import wrote to {out} before was replaced."] if overwritten else []
    text = "\n".join([import_text(report.report, out), *notes, *_tables_lines(report), following])
    emit(document, as_json=line.as_json, text=text)


def _import_options(params: Mapping[str, Any], given: Mapping[str, Any]) -> ImportOptions:
    """Return the options of the import. A flag takes precedence over the file of `--map`."""
    names = ("company", "decimal", "percent", "dates", "dash", "encoding", "header_rows", "convert", "seed", "splits")
    flags = (*names, "evaluation_only", "with_expert")
    chosen = {**given, **{name: params[name] for name in flags if params[name] is not None}}
    return ImportOptions(
        columns={**given.get("columns", {}), **parse_columns(params["column"] or [])},
        header_rows=chosen.get("header_rows", 0),
        encoding=check_encoding(chosen.get("encoding", "")),
        tables=make_table_rules(given.get("tables", {})),
        company=chosen.get("company", "auto"),
        cells=make_cell_rules(chosen),
        seed=chosen.get("seed", 0),
        shares=shares(chosen.get("splits", DEFAULT_SPLITS)),
        with_expert=chosen.get("with_expert", False),
        evaluation_only=chosen.get("evaluation_only", False),
        source=chosen.get("source", ""),
        licence=chosen.get("licence", "unknown"),
    )


def _tables_document(report: TablesReport) -> dict[str, Any]:
    return {
        "company_rule": report.rule,
        "columns": dict(report.columns),
        "conversions": [dict(each) for each in report.conversions],
        "findings": [asdict(each) for each in report.findings],
        "left_out": [problem.document() for problem in report.left_out],
        "experts": report.experts,
        "unused": [asdict(each) for each in report.unused],
        "not_read": list(report.not_read),
    }


def _tables_lines(report: TablesReport) -> list[str]:
    out = report.not_read
    not_read = [f"Not read: {plural(len(out), 'other file or table')}, for example {out[0]}"] if out else []
    changes = [f"  {each['kind']}: {each['count']}, for example {each['example']}" for each in report.conversions]
    by_code = {code: [str(each) for each in report.findings if each.code == code] for code in FINDINGS}
    warnings = [line for code, rows in by_code.items() for line in _listed(f"Warning: {FINDINGS[code]}:", rows)]
    unused = [f"question {each.id}: {each.reason}" for each in report.unused]
    kept = plural(report.report.kept, "question")
    expert = f"The expert (finqa eval scripted) can play the solutions of {report.experts} of {kept}."
    none = "No question has gold SQL or a FinQA program that returns its answer: finqa has no expert for them."
    renamed = [f"{field} from {column!r}" for field, column in report.columns.items() if field != column]
    splits: dict[str, set[str]] = {}
    for question in report.report.dataset.questions:
        splits.setdefault(question.company, set()).add(question.split)
    crossing = [company for company, names in splits.items() if len(names) > 1]
    refused = (
        "Companies in more than one split, so that training on this data is refused: "
        f"{', '.join(crossing[:3])} ({len(crossing)})."
    )
    return [
        f"Companies by rule {report.rule}.",
        *([f"Questions: {', '.join(renamed)}."] if renamed else []),
        *not_read,
        *(["Changes during the import:"] if changes else []),
        *changes,
        *warnings,
        *_listed("Warning: tables that cannot be used, and that no question needs:", list(map(str, report.left_out))),
        *_listed("Gold SQL and programs that are not used:", unused),
        *([refused] if crossing else []),
        expert if report.experts else none,
    ]


def _listed(title: str, rows: Sequence[str]) -> list[str]:
    """Return the first rows of a list below its title, with the number of the others."""
    more = [f"  and {len(rows) - _LISTED} more: --json lists all"] if len(rows) > _LISTED else []
    return [title, *(f"  {row}" for row in rows[:_LISTED]), *more] if rows else []


def _write(report: ImportReport, out: Path, as_json: bool, *, note: str = "") -> None:
    write_layout(report.dataset, out)
    text = "\n".join(filter(None, (import_text(report, out), next_step(out), note)))
    emit(import_document(report, out), as_json=as_json, text=text)


def shares(text: str) -> SplitShares:
    """Return the shares that `--splits` names.

    Raises:
        UsageError: The text is not three numbers.
        DataError: They do not sum to 1.
    """
    try:
        train, dev, test = (float(part) for part in text.split(","))
    except ValueError as error:
        remedy = f"--splits {DEFAULT_SPLITS}"
        raise UsageError(f"--splits needs three numbers, but got {text!r}.", remedy=remedy) from error
    return SplitShares(train=train, dev=dev, test=test)


def dataset_document(dataset: DataSet, folder: Path) -> dict[str, Any]:
    """Return the `--json` form of a data set that was written to a folder."""
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
    """Return the `--json` form of an import into a folder."""
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
    return f"Next: finqa snapshot build --snapshot-name {snapshot_name(folder)} --data {shlex.quote(str(folder))}"


def all_went_to_test(files: Sequence[Path]) -> str:
    """Return the notice that all rows are in the split test, because FinQA's test split is among the files."""
    held_out = ", ".join(str(path) for path in files if split_of_name(path) == "test")
    return f"All rows are in split test: {held_out} is FinQA's test split. Leave it out to get training data."


def import_text(report: ImportReport, out: Path) -> str:
    """Return an import as text."""
    skipped = [f"  {plural(count, 'row')}: {reason}" for reason, count in report.skipped.items()]
    if report.problems:
        skipped.append(f"  {plural(len(report.problems), 'row')}: malformed; first: {report.problems[0]}")
        skipped += [f"    {problem}" for problem in report.problems[1:_LISTED]]
    kept = f"Kept {report.kept} of {report.rows} rows: {counts(report.dataset)} in {out}"
    use = ["For evaluation only: training on it is refused."] if report.dataset.evaluation_only else []
    return "\n".join([kept, *(["Left out:"] if skipped else []), *skipped, *use])
