"""`finqa data`: generate, fetch, import, check, prepare and show data sets."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finqa_cli.commands.datasets import data_import
from finqa_cli.commands.datasets.data_import import (
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
from finqa_cli.commands.datasets.episodes_import import harness
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, AsJson, CommandApp, Quiet, offers
from finqa_cli.commands.shared.output import emit, next_lines, plain_table, plural, progress
from finqa_cli.commands.shared.perform import perform
from finqa_cli.data import GenerateSpec, LocalSnapshots, write_layout
from finqa_cli.data.check_data import (
    CheckReport,
    check_path,
    report_refusal,
    report_tasks,
    summary,
    write_report,
)
from finqa_cli.data.data_manifest import MANIFEST_FILE, as_text, manifest, write_files
from finqa_cli.data.dataset import Cell, Table
from finqa_cli.data.finqa.finqa_rows import LICENCE, SOURCE
from finqa_cli.data.generated.embedded import embedded_layout
from finqa_cli.data.generated.generate import generate
from finqa_cli.data.import_advice import imports_as_finqa
from finqa_cli.data.question_files.prepare import Preparation, SplitBy, prepare, read_finqa, rows_of_tasks
from finqa_cli.data.question_files.question_rows import finqa_files
from finqa_cli.data.question_files.row_profile import finding
from finqa_cli.data.question_files.show_question import Shown, find_table, show_in_path, show_in_snapshot
from finqa_cli.data.snapshots.compile import storage, table_info
from finqa_cli.deletion import temporary_folder
from finqa_cli.errors import DataError, UsageError, printable
from finqa_cli.extend import registry
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import EMBEDDED, Settings, dotenv_variables
from finqa_cli.types import Task
from finqa_cli.wiring.build import try_environment

if TYPE_CHECKING:
    from finqa_cli.data.fetch import FetchReport, Source

app = CommandApp("Generate, fetch, import, check, prepare and show data sets.", epilog=EXIT_CODES)
data_import.app.command("harness")(harness)
app.add_typer(data_import.app, name="import")

QUICK_ROWS = 64

_PHASE = "download (kB)"
_SHOWN_FILES = 3


@app.command("fetch")
def fetch_data(
    name: Annotated[
        Literal["snorkel", "rllm", "finqa", "convfinqa", "tatqa", "mbpp"],
        typer.Argument(metavar="SOURCE", help="Data set: snorkel, rllm, finqa, convfinqa, tatqa or mbpp."),
    ],
    revision: Annotated[
        str | None,
        typer.Option("--revision", help="Commit, branch or tag.", show_default="the pinned commit, else main"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder to fill.", show_default="data/SOURCE")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="URL",
            help="A mirror of the hub (as HF_ENDPOINT), or for finqa a GitHub Enterprise Server.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Download a public data set at a pinned commit, with checksums in DIR/fetch.json.

    The same command again checks every file, fetches damaged ones and resumes what was interrupted. Gated data needs
    HF_TOKEN or `hf auth login`.

    Exit codes: 0 ok, 2 usage, 65 unknown revision or wrong bytes, 69 host unreachable, 74 writing failed, 77 no access,
    78 huggingface_hub is missing.

    Example: finqa data fetch snorkel --out data/snorkel
    """
    from finqa_cli.data.fetch import SOURCES, fetch  # its HTTP client is not needed by the other data commands

    dotenv_variables()  # HF_TOKEN may be there
    source = SOURCES[name]
    folder = out or Path("data") / name
    with progress(as_json=as_json, quiet=quiet) as reporter:
        watch = _Watch(reporter)
        try:
            report = fetch(source, folder, revision=revision, endpoint=endpoint, observer=watch)
        finally:
            reporter.finish(_PHASE)
    emit(_fetch_document(source, folder, report), as_json=as_json, text=_fetch_text(source, folder, report))


class _Watch:
    """Shows the download as one phase, which begins with the first byte."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._started = False

    def line(self, text: str) -> None:
        self._reporter.line(text)

    def moved(self, done: int, total: int) -> None:
        if not self._started:
            self._started = True
            self._reporter.start(_PHASE, _kilobytes(total))
        self._reporter.advance(_PHASE, _kilobytes(done))


def _kilobytes(size: int) -> int:
    return (size + 999) // 1000


def _fetch_document(source: Source, folder: Path, report: FetchReport) -> dict[str, Any]:
    return {
        "path": str(folder),
        **report.manifest.model_dump(mode="json"),
        "downloaded": report.downloaded,
        "resumed": report.resumed,
        "mended": report.repaired,
        "next": _next_commands(source, folder),
    }


def _fetch_text(source: Source, folder: Path, report: FetchReport) -> str:
    manifest = report.manifest
    size = sum(record.bytes for record in manifest.files)
    what = f"{manifest.repository} at {manifest.revision[:12]}, licence {manifest.licence}, in {folder}"
    files = f"{plural(len(manifest.files), 'file')}, {size / 1e6:.1f} MB"
    if report.downloaded:
        lines = [f"Fetched {len(report.downloaded)} of {files}: {what}"]
    else:
        lines = [f"{'Repaired' if report.repaired else 'Nothing to do'}: {files}, every checksum is right: {what}"]
    if report.repaired:
        lines.append(f"Damaged or missing, now right: {_names(report.repaired)}")
    if report.resumed:
        lines.append(f"Resumed: {_names(report.resumed)}")
    if manifest.unpacked:
        lines.append(f"Unpacked {plural(manifest.unpacked.files, 'file')} from {manifest.unpacked.archive}")
    if held_out := [record.path for record in manifest.files if record.evaluation_only]:
        lines.append(f"For evaluation only: {'all of it' if manifest.evaluation_only else _names(held_out)}")
    if manifest.terms:
        lines.append(f"Terms: {manifest.terms}")
    following = _next_commands(source, folder)
    return "\n".join([*lines, *([next_lines(*following)] if following else [])])


def _names(paths: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    return ", ".join(paths[:_SHOWN_FILES]) + more


def _next_commands(source: Source, folder: Path) -> list[str]:
    return [step.format(folder=shlex.quote(str(folder))) for step in source.next_steps]


@app.command("check")
@offers(general=("config", "assign", "as_json"))
def check(
    line: CommandLine,
    path: Annotated[
        Path,
        typer.Argument(
            help="A data folder, a file of the original FinQA, any question file, or `embedded`: the "
            "embedded data, which --out also writes, to DIR/data."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for check_report.json, check_report.md and manifest.json.",
            show_default="none: nothing is written",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 65 for warnings, too.")] = False,
    quick_test: Annotated[
        bool,
        typer.Option("--quick-test", help=f"Read only the first {QUICK_ROWS} rows of a file, as a quick test."),
    ] = False,
    environment: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="ENVIRONMENT",
            help="Read the data with this environment, as in a run.",
            show_default="none",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help="Report companies, questions and ids that are also in the training split of this data; needs --for.",
            show_default="none",
        ),
    ] = None,
    solutions: Annotated[
        bool,
        typer.Option(
            "--solutions",
            help="Also run the data's own solutions in a sandbox, and report those that fail and imports that the "
            "sandbox lacks; needs --for.",
        ),
    ] = False,
) -> None:
    """Check every table and row. Reports counts and quirks, and lists what is wrong: file, row, field, reason.

    With --for the exit code shows whether that environment accepts the data; --set environment.options.KEY=VALUE sets
    its options. Code in the data is only executed with --solutions.

    With --out the whole report is written, and a manifest with the checksums of what was checked.

    Exit codes: 0 nothing is wrong (quirks are errors with --strict only), 65 something is missing or malformed, 74
    writing failed, 78 there is no such environment, or an option of it is wrong.

    Example: finqa data check my-data --for finqa --out report
    """
    if environment is None and not quick_test and path.is_dir() and imports_as_finqa(file := finqa_files([path])[0]):
        path, environment = file.parent, "finqa-text"  # a folder or checkout of FinQA, which no other environment reads
    else:
        _refuse_idle_flags(line, path)
    embedded = path == Path(EMBEDDED) and not path.exists()
    with temporary_folder("finqa-check-") as temporary:
        data = embedded_layout((out or Path(temporary)) / "data") if embedded else path
        if environment is None:
            report = check_path(data, most=QUICK_ROWS if quick_test else None)
        else:
            loaded = line.load({"environment.name": environment, "data.path": data}, quiet=True)
            report = _check_for(loaded.settings, data, against)
            if solutions and not report.problems:
                report = _with_solutions(line, report, loaded.settings, Path(temporary))
        if out is not None:
            write_report(report, out, timestamp=datetime.now(UTC).isoformat(timespec="seconds"))
    if embedded and out is None:
        report = replace(report, path=path)
    lines = [summary(report)]
    lines += [f"fix: {report.remedy}"] if report.remedy else []
    lines += [f"At most {QUICK_ROWS} rows were checked."] if quick_test else []
    lines += [f"Report: {out / 'check_report.md'}"] if out is not None else []
    document = {**report.document(), "report": None if out is None else str(out)}
    emit(document, as_json=line.as_json, text="\n".join(lines))
    if report.problems or (strict and report.findings):
        raise typer.Exit(65)


def _refuse_idle_flags(line: CommandLine, path: Path) -> None:
    """Raise a UsageError for a flag that would have no effect on this data, or without --for."""
    given = line.context.params
    environment = given["environment"]
    if environment is None and (line.assignments or given["config"]):
        raise UsageError(
            "--set and --config apply to the environment, but --for is not given.",
            remedy="--for finqa-text" if path.is_file() else "--for finqa",
        )
    if given["solutions"] and (environment is None or not registry().find("environment", environment).snapshotless):
        raise UsageError(
            "--solutions runs code of question files, which needs an environment that reads them; gold SQL is run when "
            "tables are imported.",
            remedy="--for mbpp",
        )
    if environment is None and given["against"] is not None:
        raise UsageError(
            "--against needs an environment that reads both, but --for is not given.", remedy="--for finqa-text"
        )
    if environment is not None and given["quick_test"]:
        raise UsageError(
            "With --for the environment reads all rows, so --quick-test would have no effect.",
            remedy=f"finqa data check {shlex.quote(str(path))} --for {environment}",
        )
    if given["quick_test"] and (path.is_dir() or (path == Path(EMBEDDED) and not path.exists())):
        raise UsageError(
            "--quick-test applies to files only: the tables of a data folder belong together.",
            remedy=f"finqa data check {path}",
        )


def _check_for(settings: Settings, path: Path, against: Path | None) -> CheckReport:
    """Have the environment of the settings read the data at a path, as a run would.

    Raises:
        DataError: The environment cannot read the data of `against`.
    """
    name = settings.environment.name
    trained: Sequence[Task] = ()
    if against is not None:
        with temporary_folder("finqa-check-") as home:
            trained = try_environment(settings, against, Path(home)).tasks(settings.data.train_split)
    try:
        with temporary_folder("finqa-check-") as home:
            environment = try_environment(settings, path, Path(home))
            tasks = {split: environment.tasks(split) for split in environment.splits()}
            for task in itertools.chain.from_iterable(tasks.values()):
                environment.opening(task)
            return report_tasks(path, name, tasks, environment.data(), trained=trained, other=against)
    except DataError as refusal:
        return report_refusal(path, name, refusal)


def _with_solutions(line: CommandLine, report: CheckReport, settings: Settings, folder: Path) -> CheckReport:
    """Add what the data's own solutions do in the sandbox of the settings."""
    from finqa_cli.evaluation.own_solutions import run_solutions  # other commands about data need no rollouts

    ran = perform(
        line, lambda reporter, stopper: run_solutions(settings, folder / "runs", reporter=reporter, stopper=stopper)
    )
    found = finding("failing_solution", "solutions of the data fail their own tests", ran.failed)
    found += finding("missing_import", "modules that solutions import are not in the sandbox", ran.missing)
    statistics = {**report.statistics, "solutions": ran.played, "solutions that pass": ran.played - len(ran.failed)}
    return replace(report, statistics=statistics, findings=(*report.findings, *found))


@app.command("show")
@offers("data.snapshot", general=("config", "assign", "as_json"))
def show(
    line: CommandLine,
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the question; before TABLE, the data folder of the table.")
    ],
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE", help="Table to show, `company/table` or its name alone.", show_default="show a question"
        ),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option(
            "--data", help="A data folder, a question file or a folder of question files, instead of a snapshot."
        ),
    ] = None,
    answer: Annotated[bool, typer.Option("--answer", help="Show the answer, too.")] = False,
) -> None:
    """Show one question with the tables that it is about. The answer is shown with --answer only.

    `finqa data show DIR TABLE` shows a table as an agent sees it: the description that get_table_info returns, the type
    of each column in SQL, and the stored cells.

    Exit codes: 0 ok, 2 usage, 65 there is no such question, table, snapshot or file.

    Example: finqa data show V/2008/page_17.pdf-1 --data dev.json --answer
    """
    if table is not None:
        if path is not None or answer or "data.snapshot" in line.flags:
            raise UsageError(
                "A table is shown from a data folder, without --data, --snapshot or --answer.",
                remedy=f"finqa data show {shlex.quote(identity)} {shlex.quote(table)}",
            )
        _show_table(find_table(Path(identity), table), as_json=line.as_json)
        return
    if path is not None and "data.snapshot" in line.flags:
        raise UsageError("--data and --snapshot both name the data of the question.", remedy="give one of them")
    if path is not None:
        shown = show_in_path(path, identity)
    else:
        settings = line.load(quiet=True).settings
        found, _ = LocalSnapshots(settings.data.home).get_or_build(settings.data.snapshot)
        shown = show_in_snapshot(found, identity)
    emit(shown.document(answer=answer), as_json=line.as_json, text="\n".join(map(printable, _lines(shown, answer))))


def _show_table(table: Table, *, as_json: bool) -> None:
    columns = [storage(table, place) for place in range(len(table.columns))]
    rows = [list(cells) for cells in zip(*(cells for _, cells in columns), strict=True)]
    types = {name: kind for name, (kind, _) in zip(table.columns, columns, strict=True)}
    name = f"{table.company}/{table.name}"
    document = {"table": name, "info": json.loads(table_info(table)), "types": types, "rows": rows}
    about = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in table.metadata.items()]
    headed = [f"{column} ({kind})" for column, kind in types.items()]
    shown = plain_table(headed, [["NULL" if cell is None else _exact(cell) for cell in row] for row in rows])
    text = "\n".join(filter(None, (plain_table((), [("table", name), *about]), "", shown)))
    emit(document, as_json=as_json, text="\n".join(map(printable, text.splitlines())))


def _lines(shown: Shown, answer: bool) -> Iterator[str]:
    facts = {**shown.facts, **(shown.solution if answer else {})}
    yield plain_table((), [(name, value) for name, value in facts.items() if value])
    if shown.text:
        yield f"\n{shown.text}"
    for table in shown.tables:
        title = str(table.metadata.get("title") or "")
        yield f"\n{table.name}{f': {title}' if title else ''}"
        yield plain_table(table.columns, [[_exact(cell) for cell in row] for row in table.rows])
    if shown.other_tables:
        more = "Other tables" if shown.tables else "Tables"
        yield f"\n{more} of {shown.facts.get('company', 'the company')}: {', '.join(shown.other_tables)}"


def _exact(cell: Cell) -> Cell:
    """Return a cell with all digits of its number, which `plain_table` would round."""
    return repr(cell) if isinstance(cell, float) else cell


@app.command("generate")
def generate_data(
    out: Out,
    companies: Annotated[int, typer.Option("--companies", help="How many companies.")] = 60,
    questions: Annotated[int, typer.Option("--questions", help="Questions per company.")] = 14,
    seed: Annotated[int, typer.Option("--seed", help="Seed of every random choice.")] = 7,
    cells: Annotated[
        Literal["numbers", "text"],
        typer.Option("--cells", help="Format of the numbers: plain, or text as in filings ($1,234, $(6))."),
    ] = "numbers",
    splits: Splits = DEFAULT_SPLITS,
    as_json: AsJson = False,
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
@offers(general=("config", "assign", "as_json"))
def prepare_data(
    line: CommandLine,
    files: Annotated[
        list[Path],
        typer.Argument(help="Files of the original FinQA (.json, .jsonl, .parquet) or its folder, or files of --for."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for train.jsonl, val.jsonl, test.jsonl, manifest.json.")],
    environment: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="ENVIRONMENT",
            help="Divide files of this environment, such as convfinqa or tatqa, without changes of their rows.",
            show_default="none",
        ),
    ] = None,
    split_by: Annotated[
        SplitBy,
        typer.Option(
            "--split-by",
            help="Keep the splits of the files, or assign each company (with --for: each cluster, such as a date) to "
            "one split; auto: use the names of the files.",
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the split by company.")] = 0,
    splits: Splits = DEFAULT_SPLITS,
    skip_bad: SkipBad = False,
    quick_test: Annotated[
        bool,
        typer.Option("--quick-test", help=f"Use the first {QUICK_ROWS} rows of each file, as a quick test."),
    ] = False,
) -> None:
    """Write FinQA as JSON lines with whole prompts: id, input_text, target_answer, target_program, question, ...

    The truth is exe_ans. That no question or page is in two splits is checked. With --for, rows stay as they are, and
    those of one company, or of what else rows of the environment share, go to one split.

    Exit codes: 0 ok, 2 usage, 65 a file or row is malformed, or splits overlap, 74 writing failed, 78 there is no such
    environment.

    Example: finqa data prepare train.json dev.json test.json --out prepared
    """
    if environment is None and (line.assignments or line.context.params["config"]):
        raise UsageError(
            "--set and --config apply to the environment, but --for is not given.", remedy="--for convfinqa"
        )
    most, files = QUICK_ROWS if quick_test else None, finqa_files(files)
    read = read_finqa if environment is None else rows_of_tasks(_tasks_of(line, environment, files, skip_bad=skip_bad))
    prepared = prepare(files, read, split_by=split_by, seed=seed, shares=shares(splits), skip_bad=skip_bad, most=most)
    origin = SOURCE if environment is None else environment
    document = manifest(
        "data prepare",
        timestamp=datetime.now(UTC).isoformat(timespec="seconds"),
        config={
            "environment": environment,
            "split_by": prepared.split_by,
            "seed": seed,
            "splits": splits,
            "skip_bad": skip_bad,
            "rows_of_each_file": most,
        },
        stats=prepared.stats(),
        inputs=files,
        source=f"{origin}: {', '.join(path.name for path in files)}",
        licence=LICENCE if environment is None else "unknown",
        evaluation_only=prepared.evaluation_only,
    )
    document["evaluation_only_splits"] = ["train", "dev", "test"] if prepared.evaluation_only else ["test"]
    texts = prepared.files()
    write_files(out, {**texts, MANIFEST_FILE: as_text(document)})
    emit({"path": str(out), **document}, as_json=line.as_json, text=_prepared(prepared, files, out))


def _tasks_of(
    line: CommandLine, environment: str, files: Sequence[Path], *, skip_bad: bool
) -> dict[Path, Sequence[Task]]:
    """Return the tasks of all splits that an environment reads from each file, by file.

    Raises:
        UsageError: The environment cannot read question files.
        DataError: The environment rejects a file.
    """
    found: dict[Path, Sequence[Task]] = {}
    for path in files:
        options = {"environment.options.skip_bad": True} if skip_bad else {}
        settings = line.load({"environment.name": environment, "data.path": path, **options}, quiet=True).settings
        if not registry().find("environment", environment).snapshotless:
            raise UsageError(f"The environment {environment} cannot read question files.", remedy="--for convfinqa")
        made = try_environment(settings, path, path.parent)
        found[path] = [task for split in made.splits() for task in made.tasks(split)]
    return found


def _prepared(prepared: Preparation, files: Sequence[Path], out: Path) -> str:
    splits = ", ".join(f"{split} {len(rows)}" for split, rows in prepared.rows.items())
    good = prepared.read - len(prepared.problems)
    lines = [f"Prepared {good} of {prepared.read} rows by {prepared.split_by} ({splits}) in {out}"]
    if prepared.problems:
        lines.append(f"Left out {plural(len(prepared.problems), 'malformed row')}; first: {prepared.problems[0]}")
    if prepared.shared_companies:
        lines.append(
            f"Companies in more than one split (as in the published splits): {len(prepared.shared_companies)}; "
            "--split-by company of the train and dev files separates them."
        )
    if prepared.evaluation_only and prepared.split_by != "file":
        lines.append(all_went_to_test(files))
    return "\n".join(lines)
