"""`finqa top`: one run, live."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finqa_cli.commands.recorded.list_runs import WIDEST, document_of, score_text
from finqa_cli.commands.recorded.show_run import event_text, node_text
from finqa_cli.commands.shared.command_line import CommandLine
from finqa_cli.commands.shared.options import EXIT_CODES, CommandApp, offers
from finqa_cli.commands.shared.output import age_text, emit, screen_width, size_text
from finqa_cli.errors import printable
from finqa_cli.masking import mask_text
from finqa_cli.runs.live_run import LiveRun, LiveState
from finqa_cli.runs.run_summary import RUNNING, Progress, locate_run

if TYPE_CHECKING:
    from rich.console import Group

app = CommandApp()

INTERVAL_S = 1.0
_BAR = 30
_BLOCKS = "▁▂▃▄▅▆▇█"
_SANDBOXES = ("size", "starting", "idle", "leased", "sessions_active", "waiting", "lost", "replaced", "start_failures")


@app.command(epilog=f"Example: finqa top RUN. {EXIT_CODES}")
@offers(general=("as_json",))
def main(
    line: CommandLine,
    run: Annotated[Path, typer.Argument(help="Folder of a run, or its name below ./runs.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Print one frame. Default if there is no terminal.")] = False,
) -> None:
    """Watch a run: phase, progress, remaining time, rates, rewards, sandboxes, engine, cost and the last errors.

    It reads the files of the run every second and ends with the run; Ctrl-C ends it earlier, and the run continues.
    """
    live = LiveRun(locate_run(run))
    state = live.look()
    if line.as_json:
        emit({**asdict(state), "summary": document_of(state.summary)}, as_json=True, text="")
        return
    moving = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if once or not moving or state.summary.status != RUNNING:
        _print(state)
        return
    _watch(live, state)


def _print(state: LiveState) -> None:
    from rich.console import Console

    Console(width=screen_width() or WIDEST, highlight=False).print(frame(state))


def _watch(live: LiveRun, state: LiveState) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    try:
        with Live(frame(state), console=console, auto_refresh=False) as screen:
            while state.summary.status == RUNNING:
                time.sleep(INTERVAL_S)
                state = live.look()
                screen.update(frame(state), refresh=True)
    except KeyboardInterrupt:
        return


def frame(state: LiveState) -> Group:
    """Return a state as the terminal shows it: a title and a table of facts."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in _rows(state):
        table.add_row(Text(label), Text(mask_text(printable(text))))
    summary = state.summary
    return Group(Text(printable(f"{summary.path}: {summary.command}, {summary.state}"), style="bold"), table)


def _rows(state: LiveState) -> Iterator[tuple[str, str]]:
    summary = state.summary
    if (progress := summary.progress) is not None and progress.total:
        remaining = "" if state.remaining_s is None else f"  {age_text(state.remaining_s)} to go"
        yield "progress", f"{_bar(progress)}{remaining}"
    if state.phase:
        yield "phase", state.phase
    if summary.seconds is not None:
        yield "time", f"{age_text(summary.seconds)}; {size_text(summary.size)} on disk"
    if state.phases:
        names = {name: name.removesuffix("_s").replace("_", " ") for name in state.phases}
        yield "seconds", ", ".join(f"{names[name]} {value:.1f}" for name, value in state.phases.items())
    rates = [f"{state.episodes} episodes"]
    if state.episodes_per_minute is not None:
        rates.append(f"{state.episodes_per_minute:.0f} a minute")
    if state.tokens_per_second is not None:
        rates.append(f"{state.tokens_per_second:.0f} sampled tokens a second")
    yield "rates", ", ".join(rates)
    if state.rewards:
        yield "reward", f"{state.rewards[-1]:.3f}  {_curve(state.rewards)}"
    if (score := score_text(summary.score)) is not None:
        yield "score", score
    if state.sandboxes:
        pool = {name: state.sandboxes[name] for name in _SANDBOXES if name in state.sandboxes}
        shown = {name: value for name, value in pool.items() if value or name in ("size", "leased")}
        yield "sandboxes", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())
    if state.engine:
        yield "engine", event_text(state.engine)
    for place, node in enumerate(state.nodes):
        yield "nodes" if place == 0 else "", node_text(node)
    trained = f"{state.sampled_tokens:,} sampled tokens, {state.trained_tokens:,} trained tokens"
    hours = f"{state.sandbox_hours:.2f} sandbox hours"
    if costs := [*([trained] if state.trained_tokens else []), *([hours] if state.sandbox_hours else [])]:
        yield "cost", ", ".join(costs)
    if state.use is not None:
        yield "usage", state.use.text()
    if state.troubles:
        yield "events", ", ".join(f"{count} {name}" for name, count in state.troubles.items())
    yield from _last(state.last_troubles)


def _last(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for place, record in enumerate(reversed(records)):
        yield "last" if place == 0 else "", event_text(record)


def _bar(progress: Progress) -> str:
    share = min(progress.done / progress.total, 1.0) if progress.total else 0.0
    full = round(share * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {progress.done} of {progress.total} {progress.unit}s"


def _curve(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    return "".join(_BLOCKS[int((value - low) / spread * (len(_BLOCKS) - 1))] for value in values)
