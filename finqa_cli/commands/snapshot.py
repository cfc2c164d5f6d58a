"""`finqa snapshot`: compiled data sets, as sandboxes of every provider start from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands import _options as options
from finqa_cli.commands._output import emit, plural, print_table
from finqa_cli.commands._progress import progress
from finqa_cli.types import Snapshot
from finqa_cli.workflows import snapshot as workflow

app = typer.Typer(
    help="Build, list, show and delete compiled data sets.",
    epilog=options.EXIT_CODES,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Name of the snapshot.")]


@app.command()
def build(
    ctx: typer.Context,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot-name", help="Name for the snapshot.", show_default="openenv-finqa"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder made by finqa data, or downloaded.", show_default="the embedded set"),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out instead of failing.")] = False,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compile a data set into one read-only store with a manifest. Building the same source twice changes nothing.

    Exit codes: 0 ok, 65 a file or row is missing or malformed, 74 writing failed.

    Example: finqa snapshot build --snapshot-name mine --data my-data
    """
    settings = options.load(ctx, quiet=True).settings
    with progress(as_json=as_json, quiet=quiet) as reporter:
        built = workflow.build(settings, settings.data.snapshot, data, skip_bad=skip_bad, reporter=reporter)
    verb = "Built" if built.new else "Nothing to do: there was already"
    text = f"{verb} snapshot {built.snapshot.name} {_short(built.snapshot)} ({_counts(built.snapshot)})"
    emit({**_document(built.snapshot), "new": built.new}, as_json=as_json, text=f"{text}\n{built.snapshot.path}")


@app.command("list")
def list_snapshots(
    ctx: typer.Context,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """List the snapshots on this machine; a damaged one says so.

    Example: finqa snapshot list --json
    """
    found = workflow.list_all(options.load(ctx, quiet=True).settings)

    def text() -> None:
        if found:
            rows = [(one.name, _short(one), one.metadata.get("error") or _counts(one)) for one in found]
            print_table(("name", "digest", "holds"), rows)
        else:
            print("There are no snapshots yet. Make one: finqa snapshot build")

    emit({"snapshots": [_document(one) for one in found]}, as_json=as_json, text=text)


@app.command()
def show(
    ctx: typer.Context,
    name: Name = "openenv-finqa",
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """Show one snapshot: its counts, splits, source and licence. Every file is checked against its sha256.

    Exit codes: 0 ok, 65 there is none of this name, or it is damaged.

    Example: finqa snapshot show openenv-finqa
    """
    found, versions = workflow.look_up(options.load(ctx, quiet=True).settings, name)

    def text() -> None:
        rows = [(key, _readable(value)) for key, value in found.metadata.items() if key not in ("files", "digest")]
        head = [("name", found.name), ("digest", found.digest), ("path", found.path), ("versions", ", ".join(versions))]
        print_table(("field", "value"), [*head, *rows])

    emit({**_document(found), "versions": list(versions)}, as_json=as_json, text=text)


@app.command()
def delete(
    ctx: typer.Context,
    name: Name,
    config: options.Config = None,
    assign: options.Assign = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete every version of a snapshot.

    Exit codes: 0 ok, 65 there is none of this name, 74 it cannot be removed.

    Example: finqa snapshot delete mine
    """
    versions = list(workflow.delete(options.load(ctx, quiet=True).settings, name))
    text = f"Deleted snapshot {name} ({plural(len(versions), 'version')})."
    emit({"name": name, "deleted": versions}, as_json=as_json, text=text)


def _document(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "name": snapshot.name,
        "digest": snapshot.digest,
        "path": str(snapshot.path),
        "manifest": dict(snapshot.metadata),
    }


def _short(snapshot: Snapshot) -> str:
    return snapshot.digest.removeprefix("sha256:")[:12] or "damaged"


def _counts(snapshot: Snapshot) -> str:
    manifest = snapshot.metadata
    return (
        f"{manifest.get('companies')} companies, {manifest.get('tables')} tables, {manifest.get('questions')} questions"
    )


def _readable(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return value
