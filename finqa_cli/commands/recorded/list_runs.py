"""`finqa ls`: the runs in a folder."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import age_text, aligned, emit, plural, screen_width, size_text
from finqa_cli.errors import DataError, UsageError, printable
from finqa_cli.runs.run_summary import RunSummary, Score, summarize_runs
from finqa_cli.types.token_use import dollars

app = CommandApp()

RUNS = Path("runs")
"""Folder of runs if a command is called without --run-dir."""

CHECK_REPORT = "check_report.json"
"""File in a folder that `finqa data check` wrote."""

WIDEST = 120
"""Width of texts if neither a terminal nor COLUMNS sets another."""

_COLUMNS = ("run", "command", "policy", "data", "status", "score", "cost", "age", "time", "size")

_LONGEST_POLICY = 40

_FILTERS: dict[str, Callable[[RunSummary], Iterable[str]]] = {
    "command": lambda run: [run.command],
    "status": lambda run: [run.status],
    "policy": lambda run: [run.policy],
    "data": lambda run: [run.data],
    "environment": lambda run: [run.environment],
    "grader": lambda run: [run.grader],
    "tag": lambda run: run.tags,
}


@app.command(epilog=f"Example: finqa ls --all. {EXIT_CODES}")
@offers(general=("as_json",))
def main(
    line: CommandLine,
    folder: Annotated[Path | None, typer.Argument(help="Folder of runs, or a run.", show_default="runs")] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also the runs inside pipelines, experiments and policies.")
    ] = False,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="<name=text>",
            help=f"Only runs whose {', '.join(_FILTERS)} contains the text; repeatable.",
        ),
    ] = None,
) -> None:
    """List runs, newest first: policy, data, status, score with its 95 % interval, cost, age, time and size on disk.

    A run whose process is gone has crashed, at the last iteration that was finished; one of another machine is unknown
    here. The score is the accuracy of the last evaluation, and n its graded episodes, with the number of questions
    where they are fewer; without an evaluation it is the mean reward of the last iteration. Folders that
    are no runs are named below.
    """
    place = folder or RUNS
    wanted = [_filter(text) for text in filters or ()]
    if not place.is_dir():
        if folder is not None:
            raise DataError(f"There is no folder {folder}.", remedy="finqa ls FOLDER, with a folder of runs")
        text = f"There are no runs in ./runs of {printable(str(Path.cwd()))}."
        emit({"folder": str(place), "runs": [], "others": []}, as_json=line.as_json, text=text)
        return
    runs, others = summarize_runs(place)
    runs = [run for run in runs if all(matches(run) for matches in wanted)]
    document = {
        "folder": str(place),
        "runs": [document_of(each) for each in runs],
        "others": [str(path) for path in others],
    }
    emit(document, as_json=line.as_json, text=lambda: _text(place, runs, others, everything=everything))


def _filter(text: str) -> Callable[[RunSummary], bool]:
    """Return the test of a run that `--filter` names.

    Raises:
        UsageError: It is not NAME=TEXT with a known name.
    """
    name, equals, wanted = text.partition("=")
    if name not in _FILTERS or not equals:
        raise UsageError(
            f"--filter {text!r} is not NAME=TEXT with one of: {', '.join(_FILTERS)}.",
            remedy="finqa ls --filter policy=embedded",
        )
    return lambda run: any(wanted.casefold() in value.casefold() for value in _FILTERS[name](run))


def document_of(summary: RunSummary) -> dict[str, Any]:
    """Return the `--json` form of a summary."""
    facts = {name: value for name, value in asdict(summary).items() if name != "nested"}
    nested = [document_of(each) for each in summary.nested]
    return {**facts, "path": str(summary.path), "state": summary.state, "nested": nested}


def score_text(score: Score | None) -> str | None:
    """Return a score with its interval and the numbers behind it: `0.960 [0.900, 0.985] n=448 questions=224`.

    The number of questions is included if it differs from the number of graded episodes. Without graded episodes there
    is no score.
    """
    if score is None:
        return None
    if score.graded == 0:
        return "- (all faulted)"
    interval = f" [{score.low:.3f}, {score.high:.3f}]" if score.low is not None and score.high is not None else ""
    name = "" if score.name == "accuracy" else f"{score.name} "
    asked = "" if score.questions in (None, score.graded) else f" questions={score.questions}"
    return f"{name}{score.value:.3f}{interval} n={score.graded}{asked}"


def _text(folder: Path, runs: Sequence[RunSummary], others: Sequence[Path], *, everything: bool) -> str:
    screen = screen_width()
    width = screen or WIDEST
    rows = [row for each in runs for row in _rows(each, folder, "", everything=everything)]
    lines = [_fitted(rows, screen)] if rows else [f"There are no runs in {printable(str(folder))}."]
    lines += [wrapped(f"{each.path.name}: {each.reason}", width) for each in _with_reasons(runs, everything)]
    if others:
        reports = {path for path in others if (path / CHECK_REPORT).is_file()}
        kinds = {"report": [path for path in others if path in reports]}
        kinds["folder"] = [path for path in others if path not in reports]
        notes = {"report": "of finqa data check", "folder": "without a run.json"}
        for noun, paths in kinds.items():
            if paths:
                names = ", ".join(path.name for path in paths)
                lines.append(wrapped(f"{plural(len(paths), noun)} {notes[noun]}: {names}", width))
    return "\n".join(lines)


def _rows(each: RunSummary, folder: Path, indent: str, *, everything: bool) -> Iterator[tuple[str, ...]]:
    name = str(each.path.relative_to(folder)) if each.path != folder else str(folder)
    now = time.time()
    cells = (
        each.command or None,
        _short(each.policy) or None,
        each.data or None,
        each.state,
        score_text(each.score),
        None if each.use is None or each.use.cost_usd is None else dollars(each.use.cost_usd),
        None if each.created is None else age_text(now - each.created),
        None if each.seconds is None else age_text(each.seconds),
        size_text(each.size),
    )
    yield (f"{indent}{printable(name)}", *("-" if cell is None else printable(cell) for cell in cells))
    for nested in each.nested if everything else ():
        yield from _rows(nested, each.path, f"{indent}  ", everything=everything)


def _fitted(rows: Sequence[tuple[str, ...]], width: int | None) -> str:
    """Return a table of runs; if it is wider than the screen, a block of two or more lines for each run."""
    names = ["run", *(row[0] for row in rows)]
    longest = max(map(len, names))
    kept = [at for at, name in enumerate(_COLUMNS) if at and (name != "cost" or any(row[at] != "-" for row in rows))]
    others = aligned([_COLUMNS[at] for at in kept], [[row[at] for at in kept] for row in rows])
    table = [f"{name:{longest}}  {line}" for name, line in zip(names, others, strict=True)]
    if width is None or max(map(len, table)) <= width:
        return "\n".join(table)
    blocks = []
    for name, command, policy, data, state, score, cost, age, taken, size in rows:
        indent = len(name) - len(name.lstrip())
        paid = "" if cost == "-" else f"{cost}  "
        facts = f"{command}  {policy} on {data}  {score}  {paid}{age} ago  {taken}  {size}"
        head = wrapped(f"{name.strip()}  {state}", width, indent)
        blocks.append(f"{head}\n{wrapped(facts, width, indent + 2)}")
    return "\n".join(blocks)


def _short(policy: str) -> str:
    """Return the end of a long name, which tells more than its beginning."""
    return policy if len(policy) <= _LONGEST_POLICY else f"...{policy[3 - _LONGEST_POLICY :]}"


def wrapped(text: str, width: int, indent: int = 0) -> str:
    """Wrap a text. Lines are at most `width` columns, indented by `indent`, and after the first by two more."""
    lead = " " * indent
    return textwrap.fill(
        printable(text), width, initial_indent=lead, subsequent_indent=f"{lead}  ", break_on_hyphens=False
    )


def _with_reasons(runs: Sequence[RunSummary], everything: bool) -> Iterator[RunSummary]:
    for each in runs:
        if each.reason:
            yield each
        yield from _with_reasons(each.nested if everything else (), everything)
