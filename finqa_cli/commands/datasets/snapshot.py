"""`finqa snapshot`: compiled data sets, and the images of them that sandboxes in a cloud start from."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from finqa_cli.commands.datasets.snapshot_texts import counts_text, replaced_snapshot, replaced_text, short_digest
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit, plural, print_table, progress
from finqa_cli.commands.shared.perform import perform
from finqa_cli.data.snapshots.snapshot_store import DEFAULT_NAME, LocalSnapshots
from finqa_cli.errors import DataError
from finqa_cli.provisioning import remote_images as remote
from finqa_cli.provisioning.served_snapshot import serve_snapshot
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import EMBEDDED
from finqa_cli.types import ImageInfo, Snapshot
from finqa_cli.wiring.command_settings import with_grader_of_data

app = CommandApp("Build, list, show, serve and delete compiled data sets.", epilog=EXIT_CODES)

GENERAL = ("config", "assign", "as_json")

Name = Annotated[str, typer.Argument(help="Name of the snapshot.")]
Provider = Annotated[
    str | None,
    typer.Option("--sandbox", help="Provider of the images, such as docker or daytona.", show_default="this machine"),
]


@app.command()
@offers("environment.name")
def build(
    line: CommandLine,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot-name", help="Name for the snapshot.", show_default="openenv-finqa"),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Data folder written by finqa data, or downloaded; `embedded` for the embedded data set.",
            show_default="the embedded set, under its own name only",
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip malformed rows instead of failing.")] = False,
    sandbox: Annotated[
        str | None,
        typer.Option("--sandbox", help="Also build the image of this provider's sandboxes.", show_default="none"),
    ] = None,
) -> None:
    """Compile a data set into one read-only store with a manifest. Building the same source twice changes nothing.

    The embedded set gets a name other than openenv-finqa, or replaces other data of that name, with --data embedded
    only. With --sandbox, and without --data, an existing snapshot of the name is used unchanged.

    With --sandbox daytona or docker an image with it and finqa itself is built there as well, and plays one episode in
    a fresh sandbox before it counts as ready; so is one with the folder of an OpenEnv environment. Images of earlier
    versions stay until finqa snapshot delete.

    Exit codes: 0 ok, 1 the image cannot be built, 2 --data is left out beside a name of your own, 65 a file or row is
    missing or malformed, 69 the provider cannot be reached or the boot test failed, 74 writing failed, 77 its key is
    missing or refused.

    Example: finqa snapshot build --snapshot-name mine --data my-data --sandbox daytona
    """
    settings = line.load({"data.snapshot": snapshot, "data.path": data, "sandbox.name": sandbox}, quiet=True).settings
    if not remote.has_snapshot(settings) and sandbox is not None and remote.needs_image(settings, Reporter()):
        made = perform(
            line, lambda reporter, _: remote.build(settings, reporter), remedy="the same command", patient=False
        )
        text = f"Sandboxes of {sandbox} need no image." if made is None else _image_text(made)
        emit({"image": None if made is None else _ready(made)}, as_json=line.as_json, text=text)
        return
    if not remote.has_snapshot(settings):
        name = settings.environment.name
        text = f"Nothing to build: environment {name} has no snapshot, and its sandboxes need no image of finqa."
        emit({"environment": name, "new": False}, as_json=line.as_json, text=text)
        return
    store, name = LocalSnapshots(settings.data.home), settings.data.snapshot
    before = store.current(name)
    with progress(as_json=line.as_json, quiet=line.quiet) as reporter:
        built, new = _compile(store, name, settings.data.path, skip_bad, sandbox is not None, reporter)
    verb = "Built" if new else "Nothing to do, already built:"
    text = f"{verb} snapshot {built.name} {short_digest(built)} ({counts_text(built)})"
    replaced = replaced_snapshot(before, built)
    document = {**_document(built), "new": new, "replaced": None if replaced is None else str(replaced.path)}
    lines = [text, str(built.path)]
    if replaced is not None:
        lines.append(replaced_text(replaced))
    if sandbox is not None:
        again = f"finqa snapshot build --sandbox {sandbox} --snapshot-name {built.name} continues from there"
        ready = perform(line, lambda reporter, _: remote.build(settings, reporter), remedy=again, patient=False)
        document |= {"image": None if ready is None else _ready(ready)}
        lines.append(f"Sandboxes of {sandbox} need no image." if ready is None else _image_text(ready))
    emit(document, as_json=line.as_json, text="\n".join(lines))


def _compile(
    store: LocalSnapshots, name: str, data: Path | None, skip_bad: bool, for_image: bool, reporter: Reporter
) -> tuple[Snapshot, bool]:
    """Compile the data of --data. Without it, compile the embedded set, or for an image reuse a snapshot of the name.

    Returns:
        The snapshot, and whether it is new.

    Raises:
        UsageError: No data is named, and the embedded set would get another name or replace other data.
    """
    if data is None and for_image and (name != DEFAULT_NAME or store.holds_other_data()):
        with contextlib.suppress(DataError):  # there is no snapshot of this name, or it is damaged
            return store.get(name), False
    embedded = data == Path(EMBEDDED) and not data.exists()
    if data is None or embedded:
        made = store.build_embedded(name, named=embedded)
        reporter.line(f"Compiled the embedded data set into snapshot {name}.")
        return made
    reporter.line(f"Compiling {data} into snapshot {name}.")
    return store.build(name, data, skip_bad=skip_bad)


@app.command()
@offers(*("environment", "generation.max_steps"), general=GENERAL)
def serve(
    line: CommandLine,
    name: Name = DEFAULT_NAME,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0: all of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0: a free one.", min=0, max=65_535)] = 8000,
) -> None:
    """Serve a snapshot to the trainers and agents of others: OpenEnv's protocol, and MCP at /mcp.

    Clients of OpenEnv list its questions, reset to one of them and call the tools; docs/server.md has the requests.
    FINQA_TOKEN is the token that they send. A server that others can reach has one: without FINQA_TOKEN it is made, and
    printed once. FINQA_REQUIRE_TOKEN=0 serves without one. Ctrl-C ends the server.

    Exit codes: 0 ended, 65 there is no such snapshot, 69 the address cannot be used, 78 a setting is wrong.

    Example: finqa snapshot serve openenv-finqa --host 0.0.0.0 --port 8000
    """
    settings = with_grader_of_data(line.load({"data.snapshot": name}, quiet=True)).settings
    with progress(as_json=line.as_json, quiet=line.quiet) as reporter:
        server = serve_snapshot(settings, host, port, os.environ, reporter)
    document = {"url": server.url, "mcp": f"{server.url}/mcp", "snapshot": name, "token": server.made_token or None}
    shown = f"\nToken, shown once: {server.made_token}" if server.made_token else ""
    text = f"Serving snapshot {name} at {server.url}, and for MCP at {server.url}/mcp. Ctrl-C ends it.{shown}"
    # Not by `emit`, which masks secrets: the new token is shown here and nowhere else.
    print(json.dumps(document) if line.as_json else text, flush=True)
    server.become()


@app.command("list")
@offers(general=GENERAL)
def list_snapshots(
    line: CommandLine,
    sandbox: Provider = None,
) -> None:
    """List the snapshots on this machine; a damaged one is marked. With --sandbox, the images at that provider instead.

    Exit codes: 0 ok, 69 the provider cannot be reached, 77 its key is missing or refused.

    Example: finqa snapshot list --sandbox daytona
    """
    settings = line.load({"sandbox.name": sandbox}, quiet=True).settings
    if sandbox is not None:
        images = asyncio.run(remote.list_all(settings))
        document = {"provider": settings.sandbox.name, "images": [asdict(image) for image in images]}
        emit(document, as_json=line.as_json, text=lambda: _print_images(images, settings.sandbox.name))
        return
    found = LocalSnapshots(settings.data.home).list()

    def text() -> None:
        if found:
            rows = [(one.name, short_digest(one), one.metadata.get("error") or counts_text(one)) for one in found]
            print_table(("name", "digest", "holds"), rows)
        else:
            print("There are no snapshots. Build one: finqa snapshot build")

    emit({"snapshots": [_document(one) for one in found]}, as_json=line.as_json, text=text)


@app.command()
@offers(general=GENERAL)
def show(
    line: CommandLine,
    name: Name = "openenv-finqa",
) -> None:
    """Show one snapshot: its counts, splits, source and licence. Every file is checked against its sha256.

    Exit codes: 0 ok, 65 there is none of this name, or it is damaged.

    Example: finqa snapshot show openenv-finqa
    """
    store = LocalSnapshots(line.load(quiet=True).settings.data.home)
    found, versions = store.get(name, naming="finqa snapshot show"), store.versions(name)

    def text() -> None:
        rows = [(key, _readable(value)) for key, value in found.metadata.items() if key not in ("files", "digest")]
        head = [("name", found.name), ("digest", found.digest), ("path", found.path), ("versions", ", ".join(versions))]
        print_table(("field", "value"), [*head, *rows])

    emit({**_document(found), "versions": list(versions)}, as_json=line.as_json, text=text)


@app.command()
@offers(general=GENERAL)
def delete(
    line: CommandLine,
    name: Name,
    sandbox: Provider = None,
) -> None:
    """Delete every version of a snapshot on this machine. With --sandbox, its images at that provider instead.

    Images belong to the whole organisation: those that a colleague built of a snapshot of this name go as well.

    Exit codes: 0 ok, 65 there is none of this name, 69 the provider cannot be reached, 74 it cannot be removed.

    Example: finqa snapshot delete mine --sandbox daytona
    """
    settings = line.load({"sandbox.name": sandbox}, quiet=True).settings
    if sandbox is not None:
        images = list(asyncio.run(remote.delete(settings, name)))
        text = f"Deleted {plural(len(images), 'image')} of snapshot {name} at {settings.sandbox.name}."
        emit({"name": name, "provider": settings.sandbox.name, "deleted": images}, as_json=line.as_json, text=text)
        return
    versions = list(LocalSnapshots(settings.data.home).delete(name))
    text = f"Deleted snapshot {name} ({plural(len(versions), 'version')})."
    emit({"name": name, "deleted": versions}, as_json=line.as_json, text=text)


def _ready(ready: remote.Ready) -> dict[str, Any]:
    trial = ready.trial
    tested = None if trial is None else {"question": trial.task.id, "turns": len(trial.turns), "reward": trial.reward}
    return {**asdict(ready.image), "new": ready.new, "boot_test": tested}


def _image_text(ready: remote.Ready) -> str:
    if ready.trial is None:
        return f"Nothing to do: image {ready.image.name} was built and tested before. It is ready."
    verb = "Built image" if ready.new else "Image exists already:"
    calls = plural(len(ready.trial.turns), "turn")
    return f"{verb} {ready.image.name}; its boot test played {calls} (reward {ready.trial.reward:g}). It is ready."


def _print_images(images: Sequence[ImageInfo], provider: str) -> None:
    if not images:
        print(f"There are no images. Build one: finqa snapshot build --sandbox {provider}")
        return
    rows = [(one.name, one.snapshot, one.state, _day(one.created)) for one in images]
    print_table(("image", "snapshot", "state", "built"), rows)


def _day(created: float) -> str | None:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(created)) if created else None


def _document(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "name": snapshot.name,
        "digest": snapshot.digest,
        "path": str(snapshot.path),
        "manifest": dict(snapshot.metadata),
    }


def _readable(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return value
