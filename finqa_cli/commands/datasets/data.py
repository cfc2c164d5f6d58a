"""`finqa data`: generate, fetch, import, check, prepare and show data sets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from finqa_cli.commands.datasets import data_import
from finqa_cli.commands.datasets.data_check import QUICK_ROWS, check
from finqa_cli.commands.datasets.data_fetch import fetch_data
from finqa_cli.commands.datasets.data_show import show
from finqa_cli.commands.datasets.data_texts import (
    DEFAULT_SPLITS,
    Out,
    SkipBad,
    Splits,
    all_went_to_test,
    counts,
    dataset_document,
    next_step,
    shares,
)
from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plural
from finqa_cli.data import GenerateSpec, write_layout
from finqa_cli.data.data_manifest import MANIFEST_FILE, as_text, manifest, write_files
from finqa_cli.data.finqa.finqa_rows import LICENCE, SOURCE
from finqa_cli.data.generated.generate import generate
from finqa_cli.data.question_files.prepare import Preparation, SplitBy, prepare

app = typer.Typer(
    help="Generate, fetch, import, check, prepare and show data sets.",
    epilog=options.EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(data_import.app, name="import")
app.command("fetch")(fetch_data)
app.command("check")(check)
app.command("show")(show)


@app.command("generate")
def generate_data(
    out: Out,
    companies: Annotated[int, typer.Option("--companies", help="How many companies.")] = 60,
    questions: Annotated[int, typer.Option("--questions", help="Questions per company.")] = 14,
    seed: Annotated[int, typer.Option("--seed", help="Seed of every random choice.")] = 7,
    cells: Annotated[
        Literal["numbers", "text"], typer.Option("--cells", help="Plain numbers, or text as in filings: $1,234, $(6).")
    ] = "numbers",
    splits: Splits = DEFAULT_SPLITS,
    as_json: options.AsJson = False,
) -> None:
    """Invent companies, their statements and questions with verified answers. The same options give the same files.

    Exit codes: 0 ok, 2 usage, 65 a number is out of range, 74 writing failed.

    Example: finqa data generate --companies 60 --questions 14 --seed 7 --out my-data
    """
    spec = GenerateSpec(companies=companies, questions=questions, seed=seed, cells=cells, shares=shares(splits))
    dataset = generate(spec)
    write_layout(dataset, out)
    text = f"Generated {counts(dataset)} in {out}\n{next_step(out)}"
    emit(dataset_document(dataset, out), as_json=as_json, text=text)


@app.command("prepare")
def prepare_data(
    files: Annotated[list[Path], typer.Argument(help="Files of the original FinQA (.json, .jsonl, .parquet).")],
    out: Annotated[Path, typer.Option("--out", help="Folder for train.jsonl, val.jsonl, test.jsonl, manifest.json.")],
    split_by: Annotated[
        SplitBy,
        typer.Option(
            "--split-by", help="Keep the files' splits, or give each company to one; auto: as files are named."
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split by company.")] = 0,
    splits: Splits = DEFAULT_SPLITS,
    skip_bad: SkipBad = False,
    quick_test: Annotated[
        bool,
        typer.Option("--quick-test", help=f"The first {QUICK_ROWS} rows of each file, to see that everything works."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write FinQA as JSON lines with whole prompts: id, input_text, target_answer, target_program, question, ...

    The truth is exe_ans. That no question or page is in two splits is checked.

    Exit codes: 0 ok, 2 usage, 65 a file or row is malformed, or splits overlap, 74 writing failed.

    Example: finqa data prepare train.json dev.json test.json --out prepared
    """
    most = QUICK_ROWS if quick_test else None
    prepared = prepare(files, split_by=split_by, seed=seed, shares=shares(splits), skip_bad=skip_bad, most=most)
    document = manifest(
        "data prepare",
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        config={
            "split_by": prepared.split_by,
            "seed": seed,
            "splits": splits,
            "skip_bad": skip_bad,
            "rows_of_each_file": most,
        },
        stats=prepared.stats(),
        inputs=files,
        source=f"{SOURCE}: {', '.join(path.name for path in files)}",
        licence=LICENCE,
        evaluation_only=prepared.evaluation_only,
    )
    document["evaluation_only_splits"] = ["train", "dev", "test"] if prepared.evaluation_only else ["test"]
    texts = prepared.files()
    write_files(out, {**texts, MANIFEST_FILE: as_text(document)})
    emit({"path": str(out), **document}, as_json=as_json, text=_prepared(prepared, files, out))


def _prepared(prepared: Preparation, files: Sequence[Path], out: Path) -> str:
    splits = ", ".join(f"{split} {len(rows)}" for split, rows in prepared.rows.items())
    good = prepared.read - len(prepared.problems)
    lines = [f"Prepared {good} of {prepared.read} rows by {prepared.split_by} ({splits}) in {out}"]
    if prepared.problems:
        lines.append(f"Left out {plural(len(prepared.problems), 'malformed row')}; first: {prepared.problems[0]}")
    if prepared.shared_companies:
        lines.append(
            f"Companies in more than one split, as in the published splits: {len(prepared.shared_companies)}; "
            "--split-by company of the train and dev files keeps them apart."
        )
    if prepared.evaluation_only and prepared.split_by == "company":
        lines.append(all_went_to_test(files))
    return "\n".join(lines)
