"""`finqa data show`: one question with its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from finqa_cli.commands.shared import options
from finqa_cli.commands.shared.output import emit, plain_table
from finqa_cli.data import LocalSnapshots
from finqa_cli.data.question_files.show_question import Shown, show_in_path, show_in_snapshot
from finqa_cli.errors import UsageError


def show(
    ctx: typer.Context,
    identity: Annotated[str, typer.Argument(metavar="ID", help="Id of the question.")],
    path: Annotated[
        Path | None,
        typer.Option("--data", help="A data folder, a question file or a folder of such, instead of a snapshot."),
    ] = None,
    snapshot: options.Snapshot = None,
    answer: Annotated[bool, typer.Option("--answer", help="Show the answer, too.")] = False,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one question with the tables that it is about. The answer is shown with --answer only.

    Exit codes: 0 ok, 2 usage, 65 there is no such question, snapshot or file.

    Example: finqa data show V/2008/page_17.pdf-1 --data dev.json --answer
    """
    if path is not None and snapshot is not None:
        raise UsageError("--data and --snapshot both say where the question lies.", remedy="give one of them")
    if path is not None:
        shown = show_in_path(path, identity)
    else:
        settings = options.load(ctx, quiet=True).settings
        found, _ = LocalSnapshots(settings.data.home).get_or_build(settings.data.snapshot)
        shown = show_in_snapshot(found, identity)
    emit(shown.document(answer=answer), as_json=as_json, text="\n".join(map(_safe, _lines(shown, answer))))


def _lines(shown: Shown, answer: bool) -> Iterator[str]:
    facts = {**shown.facts, **(shown.solution if answer else {})}
    width = max(map(len, facts))
    yield from (f"{name:<{width}}  {' '.join(value.split())}" for name, value in facts.items() if value)
    if shown.text:
        yield f"\n{shown.text}"
    for table in shown.tables:
        title = str(table.metadata.get("title") or "")
        yield f"\n{table.name}{f': {title}' if title else ''}"
        yield plain_table(table.columns, table.rows)
    if shown.other_tables:
        more = "Other tables" if shown.tables else "Tables"
        yield f"\n{more} of {shown.facts.get('company', 'the company')}: {', '.join(shown.other_tables)}"


def _safe(text: str) -> str:
    """Without control characters: what is in a data file must not drive the terminal."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)
