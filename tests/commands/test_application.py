"""The command line as a whole: start-up, the error boundary, exit codes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from finqa_cli import app as application
from finqa_cli import errors
from finqa_cli.app import COMMANDS, PANELS, main

pytestmark = pytest.mark.usefixtures("empty_folder")

ROOT = Path(__file__).parents[2]


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}", **variables}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys
from finqa_cli.app import main
assert main(["--help"]) == 0
unwanted = {"pydantic", "rich", "pluggy", "asyncio", "structlog", "yaml", "finqa_plugins", "torch", "click"}
print(sorted(unwanted & set(sys.modules)), file=sys.stderr)
print([name for name in sys.modules if name.startswith("finqa_cli.commands.")], file=sys.stderr)
"""
    done = python(code)
    assert done.stderr.split("\n")[:2] == ["[]", "[]"]
    assert all(f"  {name} " in done.stdout and summary in done.stdout for name, (_, summary) in COMMANDS.items())
    assert all(f"\n{panel}:\n" in done.stdout for panel in PANELS)
    assert sorted(name for names in PANELS.values() for name in names) == sorted(COMMANDS)
    assert "  -h, --help, --help-all  " in done.stdout


def test_the_help_of_groups_names_its_options_in_one_order(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("data", "rewards", "config"):
        assert main([command, "--help"]) == 0
        assert "-h, --help, --help-all " in capsys.readouterr().out


def test_listing_plugins_imports_nothing_heavy() -> None:
    code = """
import sys
from finqa_cli.app import main
assert main(["plugins"]) == 0
heavy = {"torch", "transformers", "peft", "vllm", "openai", "daytona", "openenv", "fastmcp", "gradio"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    assert python(code).stderr.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--help" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from finqa_cli import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"finqa {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "reason", "remedy"),
    [
        (["trian"], "Did you mean 'train'", "finqa --help"),
        (["xyz"], "No such command 'xyz'", "finqa --help"),
        (["--jsn"], "No such option", "finqa --help"),
        (["config", "shw"], "Did you mean 'show'", "finqa config --help"),
        (["config", "show", "--orign"], "--origin", "finqa config show --help"),
        (["plugins", "show"], "Missing argument", "finqa plugins show --help"),
        (["sandbox", "reap", "--older-than", "soon"], "90s, 30m", "fix: finqa sandbox --help"),
        (["train", "--resume", "r", "--set", "train.seed=1"], "--resume does not take --set.", "train --resume r"),
        (["sample", "me", "--resume", "r", "-k", "3"], "does not take --num-candidates, target.", "sample --resume r"),
        (["pipeline", "--resume", "r", "--lr", "1", "--until", "sft"], "does not take --lr.", "pipeline --resume r"),
        (["eval", "scripted", "--environment", "code", "--snapshot", "mine"], "'code' has no snapshot", "--data"),
        (["train", "--iterations"], "requires an argument", "fix: finqa train --help"),
        (["eval", "scripted", "--engine", "openai"], "--engine openai would have no effect", "leave --engine out"),
    ],
)
def test_usage_errors(arguments: list[str], reason: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and reason in captured.err and remedy in captured.err


@pytest.mark.parametrize("arguments", [[], ["config"], ["sandbox"], ["snapshot"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert " COMMAND [ARGS]" in captured.out + captured.err and "error" not in captured.err


def of_finqa(error: BaseException) -> None:
    """Raises from a file of finqa."""
    source, file = "def fail(error): raise error", Path(application.__file__).with_name("fails.py")
    names: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), names)
    names["fail"](error)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`finqa fail [--json]`, which raises what the test wants."""

    def install(error: BaseException) -> None:
        module = ModuleType("a_failing_command")
        module.app = typer.Typer(pretty_exceptions_enable=False)  # type: ignore[attr-defined]

        def fail(as_json: bool = typer.Option(False, "--json")) -> None:
            of_finqa(error)

        module.app.command()(fail)

        monkeypatch.setitem(sys.modules, "a_failing_command", module)
        monkeypatch.setitem(application.COMMANDS, "fail", ("a_failing_command", "Fails."))

    return install


EXIT_CODES = {
    errors.FinqaError: 1,
    errors.UsageError: 2,
    errors.ThresholdError: 3,
    errors.DataError: 65,
    errors.ServiceUnavailableError: 69,
    errors.SandboxError: 69,
    errors.StorageError: 74,
    errors.AuthenticationError: 77,
    errors.ConfigError: 78,
    errors.MissingDependencyError: 78,
}


@pytest.mark.parametrize(("kind", "status"), EXIT_CODES.items())
def test_each_error_has_its_exit_code_on_both_streams(
    kind: type[errors.FinqaError], status: int, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(kind("It broke.", remedy="finqa repair"))
    assert main(["fail"]) == status
    assert capsys.readouterr() == ("", "error: It broke.\nfix: finqa repair\n")
    assert main(["fail", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "error": {"type": kind.__name__, "message": "It broke.", "remedy": "finqa repair", "exit_code": status}
    }


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/run/x"), 74, "The disk is full (/run/x)"),
        (PermissionError(errno.EACCES, "Permission denied", "/run/x"), 74, "Permission denied (/run/x)"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "/run/xxx"), 74, "File name too long (/run/xxx)"),
        (errors.StorageError("Cannot write /run/x: File exists."), 74, "fix: Choose another path"),
        (errors.UsageError("A number is too large."), 2, "fix: finqa fail --help"),
        (ModuleNotFoundError("No module named 'torch'", name="torch.nn"), 78, "pip install 'finqa[train]'"),
        (ImportError("cannot import name 'x'", name="daytona"), 78, "daytona, which does not fit"),
        (ModuleNotFoundError("No module named 'unknown'", name="unknown"), 1, "bug in finqa"),
        (ValueError("odd"), 1, "Unexpected ValueError: odd"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (SystemExit(143), 143, ""),
    ],
)
def test_other_exceptions_are_explained_without_a_traceback(
    error: BaseException, status: int, said: str, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error)
    assert main(["fail"]) == status
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and captured.out == ""


@pytest.mark.parametrize("place", ["before", "after", "variable"])
def test_debug_shows_the_traceback(
    place: str, failing: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(ValueError("odd"))
    if place == "variable":
        monkeypatch.setenv("FINQA_DEBUG", "1")
    arguments = {"before": ["--debug", "fail"], "after": ["fail", "--debug"], "variable": ["fail"]}[place]
    assert main(arguments) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_plugin_explains_an_exception_of_its_library(
    failing: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from finqa_cli.extend import Registry, hookimpl, registry

    class QuotaError(Exception):
        pass

    class Explainer:
        @hookimpl
        def explain_error(self, error: BaseException) -> str | None:
            return "Raise the quota." if isinstance(error, QuotaError) else None

    own = Registry([])
    own.manager.register(Explainer())
    monkeypatch.setattr(sys.modules[registry.__module__], "registry", lambda: own)
    failing(QuotaError("too many"))
    assert main(["fail"]) == 1
    assert capsys.readouterr().err == "error: too many\nfix: Raise the quota.\n"


@pytest.mark.parametrize("command", ["plugins show grpo", "plugins --json", "config list", "--help"])
def test_a_reader_that_leaves_stops_no_command(command: str) -> None:
    line = f"set -o pipefail; '{sys.executable}' -m finqa_cli {command} | true"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("plugins show grpo >&- <&-", 0, ""),
        ("plugins show grpo --json > /dev/full", 74, "error: The disk is full."),
        ("plugins show nothing --json > /dev/full", 78, "error: There is no component"),
    ],
)
def test_streams_that_are_closed_or_full(command: str, status: int, said: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    line = f"'{sys.executable}' -m finqa_cli {command}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == status and done.stderr.startswith(said), done.stderr
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


@pytest.mark.parametrize(
    ("command", "status", "remedy"),
    [
        (None, 65, "finqa train --resume RUN"),
        ("report", 78, "the same command with a folder that `finqa train` wrote"),
        ("eval", 78, "finqa eval --resume r"),
        ("sft", 78, "finqa sft --resume r"),
    ],
)
def test_what_cannot_be_gone_on_with(
    command: str | None, status: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r").mkdir()
    if command is not None:
        Path("r/run.json").write_text(json.dumps({"command": command}), encoding="utf-8")
    assert main(["train", "--resume", "r"]) == status
    assert f"fix: {remedy}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "number", "status"),
    [
        ("wait", signal.SIGTERM, 143),
        ("train", signal.SIGUSR1, 85),
        ("wait", signal.SIGUSR1, -signal.SIGUSR1),  # it cannot be resumed
    ],
)
def test_a_signal_before_the_work_ends_the_command(name: str, number: signal.Signals, status: int) -> None:
    code = """
import sys, time, types, typer
from finqa_cli import app
module = types.ModuleType("waits")
module.app = typer.Typer()
@module.app.command()
def wait():
    print("waiting", flush=True)
    time.sleep(90)
sys.modules["waits"] = module
app.COMMANDS[sys.argv[1]] = ("waits", "Waits.")
sys.exit(app.main([sys.argv[1]]))
"""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen([sys.executable, "-c", code, name], text=True, cwd=ROOT, **streams)
    assert process.stdout is not None and process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (status, "")  # and not after the 90 s of the command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_modules_are_imported_ends_the_command(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "structlog.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-m", "finqa_cli", "ls"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        preexec_fn=lambda: signal.signal(
            number, signal.SIG_DFL
        ),  # a shell ignores SIGINT in what it runs beside itself
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert b"Traceback" not in errors


def test_shell_completion_lists_commands_without_loading_them() -> None:
    code = """
import sys
from finqa_cli.app import main
status = main()
print(any(name.startswith("finqa_cli.commands.") for name in sys.modules), file=sys.stderr)
"""
    done = python(code, _FINQA_COMPLETE="complete_bash", COMP_WORDS="finqa p", COMP_CWORD="1")
    assert done.stdout.split() == ["play", "plan", "prefs", "pipeline", "push", "policy", "plugins"]
