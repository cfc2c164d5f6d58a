"""`finqa view [RUN|FOLDER ...]`: the pages of runs in the browser, live while a run continues."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finqa_cli.commands.recorded.list_runs import RUNS
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import emit
from finqa_cli.errors import DataError, MissingDependencyError, UsageError
from finqa_cli.publishing.report.report_control import check_control
from finqa_cli.publishing.report.report_records import RunRecords
from finqa_cli.runs.run_folder import read_run, read_settings
from finqa_cli.runs.run_summary import is_run, locate_run

if TYPE_CHECKING:
    from finqa_cli.publishing.view.view_server import ViewAddress

app = CommandApp()


@app.command(epilog=f"Example: finqa view; finqa view runs/a runs/b. {EXIT_CODES}")
@offers(general=("as_json",))
def main(
    line: CommandLine,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, runs, or names of runs below ./runs.", show_default="runs"),
    ] = None,
    control: Annotated[
        Path | None, typer.Option("--control", help="The control of RUN: the same training run with --shuffle-rewards.")
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0: a free one.", min=0, max=65_535)] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address without opening the browser.")
    ] = False,
) -> None:
    """Show runs in the browser: a list of them, the pages of finqa report for each, and two compared.

    Pages update while a run is in progress. They are served on 127.0.0.1, at an address with a secret token that is
    printed once. Ctrl-C stops the server, with status 0. On a terminal with a screen, the browser opens by itself. Runs
    are never modified.
    """
    places = [_located(place) for place in runs or (RUNS,)]
    if len({place.resolve() for place in places}) < len(places):
        raise UsageError("The same folder is named twice.")
    beside = None if control is None else _control_of(places, control)
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise MissingDependencyError(
            f"finqa view needs {' and '.join(missing)}, not installed here; finqa report needs neither.",
            remedy="pip install 'finqa[view]'",
        )
    from finqa_cli.publishing.view.view_server import serve_view

    shown = [*places, *([] if beside is None else [beside])]

    def ready(address: ViewAddress) -> None:
        text = f"View: {address.url}\nCtrl-C ends it."
        emit({"url": address.url, "runs": [str(place) for place in shown]}, as_json=line.as_json, text=text)
        sys.stdout.flush()
        if not (no_browser or line.as_json) and shows_browser(os.environ, terminal=sys.stdout.isatty()):
            # in a thread, because the call may block until the browser is closed
            threading.Thread(target=webbrowser.open, args=(address.opening,), daemon=True).start()

    try:
        serve_view(places, control=beside, port=port, ready=ready)
    except KeyboardInterrupt:
        return


def shows_browser(environment: Mapping[str, str], *, terminal: bool, platform: str = sys.platform) -> bool:
    """Return whether a browser can be expected here: a terminal and a screen, and no CI."""
    if not terminal or environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return platform in ("darwin", "win32") or any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _control_of(places: list[Path], control: Path) -> Path:
    """Return the folder of a control, which is checked against the run that it belongs to.

    Raises:
        UsageError: Not exactly one run is shown, it is its own control, or one of the two is not a training run.
        ConfigError: It is not a control of the run.
    """
    found = _located(control)
    if len(places) != 1 or not is_run(places[0]):
        raise UsageError("A control needs exactly one run.", remedy=f"finqa view RUN --control {control}")
    check_control(
        *(RunRecords(path=path, facts=read_run(path), settings=read_settings(path)) for path in (places[0], found))
    )
    return found


def _located(place: Path) -> Path:
    """Return a folder of runs or a run.

    Raises:
        DataError: There is no such folder.
    """
    if place.is_dir():
        return place
    if place == RUNS:
        raise DataError("There are no runs in ./runs.", remedy="finqa view FOLDER, with a folder of runs")
    return locate_run(place)
