"""The command line: a lazy table of commands and the boundary that turns errors into exit codes.

To add a command: one line in `COMMANDS`, and a module with a Typer instance named `app`. The module is imported only
when its command is called, so `finqa --help` stays fast independently of what commands need.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer
import typer.main
from typer.core import CompletionItem  # type: ignore[attr-defined]  # part of its signatures, not of its stubs

from finqa_cli import __version__
from finqa_cli.errors import RequeuedRun
from finqa_cli.help_order import HelpGroup
from finqa_cli.masking import find_secret

COMMANDS: dict[str, tuple[str, str]] = {
    "play": ("finqa_cli.commands.play", "Play one episode and show it as a readable transcript."),
    "train": ("finqa_cli.commands.train", "Train a policy by reinforcement learning in sandboxes."),
    "eval": ("finqa_cli.commands.eval", "Evaluate a run, a checkpoint, a model or the scripted expert."),
    "compare": ("finqa_cli.commands.compare", "Compare runs on held-out questions, with plots and a report."),
    "report": ("finqa_cli.commands.report", "Write an HTML report about a run, or a comparison of two runs."),
    "view": ("finqa_cli.commands.recorded.view_runs", "Show runs in the browser with live updates; compare two runs."),
    "ls": ("finqa_cli.commands.recorded.list_runs", "List runs with their status, score, age and size."),
    "show": ("finqa_cli.commands.recorded.show_run", "Show a run, or one of its episodes as a transcript."),
    "top": ("finqa_cli.commands.recorded.watch_run", "Monitor a run: progress, rates, sandboxes, failures."),
    "gc": ("finqa_cli.commands.recorded.clean_up", "Delete old checkpoints and files of killed processes."),
    "plan": ("finqa_cli.commands.plan", "Plan an evaluation."),
    "launch": (
        "finqa_cli.commands.clusters.print_recipe",
        "Print a recipe that starts a training run on a cluster.",
    ),
    "sample": ("finqa_cli.commands.sample", "Sample several candidates per question, with their rewards."),
    "prefs": ("finqa_cli.commands.prefs", "Make preference pairs from candidates or attempts of a run."),
    "sft": ("finqa_cli.commands.sft", "Train a policy to imitate recorded demonstrations (SFT)."),
    "dpo": ("finqa_cli.commands.dpo", "Train a policy on preference pairs (DPO)."),
    "pipeline": ("finqa_cli.commands.pipeline", "Run all steps of a training method, from data to a report."),
    "export": ("finqa_cli.commands.export", "Export a policy or its attempts in formats of other tools."),
    "push": ("finqa_cli.commands.push", "Push policies to the Hugging Face hub, with model cards."),
    "experiment": ("finqa_cli.commands.experiment", "Run a matrix of training runs and answer its research questions."),
    "data": ("finqa_cli.commands.datasets.data", "Generate, import and check data sets."),
    "snapshot": ("finqa_cli.commands.datasets.snapshot", "Build, list, show and delete compiled data sets."),
    "score": ("finqa_cli.commands.score", "Score a file of predictions with a published evaluation."),
    "rewards": ("finqa_cli.commands.rewards", "Show, test and apply rewards."),
    "sandbox": ("finqa_cli.commands.sandbox", "List sandboxes and remove those that were left behind."),
    "doctor": ("finqa_cli.commands.doctor", "Check machine, settings and services, and print fixes."),
    "setup": ("finqa_cli.commands.setup", "Install the virtual environment of a component, such as vllm."),
    "model": ("finqa_cli.commands.model", "Inspect a model's architecture and write settings for it."),
    "policy": ("finqa_cli.commands.policy", "Create small policies that learn on a CPU within minutes."),
    "plugins": ("finqa_cli.commands.plugin_kit", "Show, check and create plugins."),
    "config": ("finqa_cli.commands.config", "Show the resolved settings and where each comes from."),
}

PANELS: dict[str, tuple[str, ...]] = {
    "Play and evaluate": ("play", "eval", "sample", "compare", "plan", "rewards", "score"),
    "Train": ("train", "sft", "prefs", "dpo", "pipeline", "experiment", "policy", "launch"),
    "Runs": ("ls", "show", "top", "report", "view", "export", "push", "gc"),
    "Data": ("data", "snapshot"),
    "Machine, sandboxes and components": ("doctor", "setup", "sandbox", "plugins", "model", "config"),
}
"""Headings of the help with their commands; docs/reference/commands.md has the same."""

REQUEUED = ("train", "sft", "dpo", "sample", "eval", "pipeline", "experiment", "policy")
"""Commands that SIGUSR1 stops with exit code 85, because a scheduler can start them again. SIGUSR1 kills others."""

INTERRUPTED = 130
NEW_OBJECTS = 10_000
"""Threshold of Python's garbage collector in new objects. With the default of 700, the import of torch and
transformers, which creates 2 million permanent objects, takes an eighth longer."""


_BUILT: dict[typer.Typer, Any] = {}
"""Parsers of commands. They are cached, because building that of `train` takes longer than most calls in a process."""


class LazyGroup(HelpGroup):
    """Lists commands from the static table and imports a command's module when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # suggestions for misspelt commands are made from the keys

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the loaded command; None if there is no command with this name."""
        if cmd_name not in COMMANDS:
            return None
        application = importlib.import_module(COMMANDS[cmd_name][0]).app
        if application not in _BUILT:
            _BUILT[application] = typer.main.get_command(application)
            _BUILT[application].name = cmd_name
        return _BUILT[application]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, without importing any command."""
        column = max(map(len, COMMANDS))  # the same for all panels
        for panel, names in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(column), COMMANDS[name][1]) for name in names])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Complete command names from the table."""
        return [
            CompletionItem(name, help=summary) for name, (_, summary) in COMMANDS.items() if name.startswith(incomplete)
        ]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"finqa {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="finqa",
    cls=LazyGroup,
    help="Evaluate and train LLM agents on financial question answering in sandboxes.",
    epilog="First run: finqa play. Exit codes: 0 ok, 1 failed, 2 usage, 3 too many faults, 4 nothing to learn, "
    "65 data, 69 service, 70 learner process, 71 device memory, 74 storage, 75 budget, 77 key, 78 settings, "
    "85 queue again, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich cuts long flags off in 80 columns; commands group their options as plain text
    context_settings={
        "help_option_names": ["-h", "--help", "--help-all"],
        "max_content_width": 100,
        "token_normalize_func": lambda name: name.replace("_", "-"),  # published scripts write --batch_size
    },
)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; allowed anywhere. Same as FINQA_DEBUG=1.")
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status; never raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(NEW_OBJECTS)
    _open_closed_streams()
    _outlive_reader()
    signal.signal(signal.SIGTERM, _terminate)
    if next((word for word in given if not word.startswith("-")), "") in REQUEUED:
        signal.signal(signal.SIGUSR1, _terminate)
    try:
        _refuse_secrets(given)
        _prepare_torchrun(given)
        status = app(args=[word for word in given if word != "--debug"], prog_name="finqa", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        from finqa_cli import boundary

        return boundary.report(error, given, COMMANDS)
    if status == INTERRUPTED:  # Typer turns Ctrl-C into this status
        print("Interrupted.", file=sys.stderr)
    return status if isinstance(status, int) else 0


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed (`finqa plugins >&-`), which are None in Python."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


class _Output(io.FileIO):
    """Standard output whose reader may end first (`finqa plugins | head -1`); further output is then discarded.

    The command continues, for example a training run whose pager was closed, and returns its own exit status.
    """

    def write(self, data: Any, /) -> int:
        """Write to the file; if its reader has ended, discard this and all later output."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return len(data)


def _outlive_reader() -> None:
    """Use `_Output` for standard output, unless it was replaced or is a terminal."""
    stream = sys.stdout
    if stream is not sys.__stdout__:
        return
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # with PYTHONUNBUFFERED the file itself is the buffer
    if type(raw) is not io.FileIO or not isinstance(stream, io.TextIOWrapper) or raw.fileno() != 1 or raw.isatty():
        return
    stream.flush()
    output = _Output(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        output if buffer is raw else io.BufferedWriter(output),  # as Python itself does
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _refuse_secrets(arguments: Sequence[str]) -> None:
    """Raise ConfigError for a command line with a secret, which other users of the machine can read."""
    if any(map(find_secret, arguments)):
        from finqa_cli.settings.secret_values import refuse_arguments

        refuse_arguments(arguments)


def _prepare_torchrun(arguments: Sequence[str]) -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        importlib.import_module("finqa_cli.commands.shared.perform").begin(arguments)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(RequeuedRun.exit_code if number == signal.SIGUSR1 else 128 + number)
