"""The error boundary: an exception of a command becomes two lines on stderr, without secrets, and an exit status."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Collection, Sequence

import typer

from finqa_cli.errors import (
    BudgetReachedError,
    DataError,
    FinqaError,
    InterruptedRun,
    MissingDependencyError,
    StorageError,
    UsageError,
    legible,
    printable,
)
from finqa_cli.masking import Masker

REPORT = "This is a bug in finqa. Please report it with the output of the same command with --debug."

_ON = ("1", "true", "yes", "on")

ANOTHER_PATH = "Choose another path, or change its permissions."

UNUSABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
"""Error codes of the operating system that mean a problem with the path."""

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "peft": "train",
    "safetensors": "train",
    "openenv": "openenv",
    "fastmcp": "openenv",
    "daytona": "daytona",
    "huggingface_hub": "data",
    "pyarrow": "data",
    "vllm": "vllm",
    "matplotlib": "report",
}
"""Optional package -> the extra of `finqa` that installs it."""


def report(error: BaseException, arguments: Sequence[str], commands: Collection[str]) -> int:
    """Print an error to stderr, with `--json` also as a JSON document to stdout; return the exit status.

    Args:
        error: The exception of the command.
        arguments: The command line.
        commands: Names of all commands.
    """
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return 1
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):  # outside a command, or at a prompt
        print("Interrupted.", file=sys.stderr)
        return 130
    if type(error).__name__ == "NoArgsIsHelpError":  # Typer does not export it; with rich the help is printed already
        print(Masker()(str(error)), file=sys.stderr)
        return 2
    if "--debug" in arguments or os.environ.get("FINQA_DEBUG", "").strip().lower() in _ON:
        print(Masker()(printable("".join(traceback.format_exception(error)))), end="", file=sys.stderr)
    return _show(explain(error) or _unexpected(error), arguments, commands)


def explain(error: BaseException) -> FinqaError | None:
    """Return the exception as a FinqaError; None if it cannot be explained, so that it is a bug."""
    if isinstance(error, FinqaError):
        return error
    if isinstance(error, typer.TyperException):
        return UsageError(error.format_message() or "Something is missing.", remedy=_help_of(error))
    if isinstance(error, ImportError) and (root := (error.name or "").partition(".")[0]) in EXTRAS:
        verb = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not fit: {error}"
        return MissingDependencyError(
            f"This needs {root}, which {verb}.", remedy=f"pip install 'finqa[{EXTRAS[root]}]'"
        )
    if isinstance(error, OSError):
        return _storage(error)
    if isinstance(error, MemoryError):
        return FinqaError(
            "This process needs more memory than it can get.",
            remedy="raise its limit (ulimit -v unlimited), or use smaller files and fewer sandboxes at once",
        )
    return _by_plugins(error)


def _storage(error: OSError) -> FinqaError | None:
    place = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"The disk is full{place}.", remedy="Free some space and run the same command again.")
    if error.errno in UNUSABLE and error.filename:
        return StorageError(f"{error.strerror}{place}.", remedy=ANOTHER_PATH)
    return None


def _by_plugins(error: BaseException) -> FinqaError | None:
    """Let the plugins explain the error, but only if the command has already loaded them."""
    loaded = sys.modules.get("finqa_cli.extend.registry")
    if loaded is None:
        return None
    try:
        remedy = loaded.registry().first("explain_error", str, error=error)
    except Exception:  # a plugin that fails to explain must not hide the error itself
        return None
    return FinqaError(str(error) or type(error).__name__, remedy=str(remedy)) if remedy else None


def _unexpected(error: BaseException) -> FinqaError:
    calls = sys.modules.get("finqa_cli.extend.plugin_calls")  # loaded by every command that runs code of plugins
    if calls is None or calls.is_of_finqa(error):
        return FinqaError(f"Unexpected {type(error).__name__}: {error}", remedy=REPORT)
    place = calls.find_place(error, None, None)
    return FinqaError(f"{calls.describe(error)} ({place}), which is not part of finqa.", remedy=f"correct {place}")


def _help_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context else ""


def _show(error: FinqaError, arguments: Sequence[str], commands: Collection[str]) -> int:
    mask = Masker()
    message = legible(mask(error.message))
    remedy = mask(error.remedy or _usual_remedy(error, arguments, commands))
    try:
        sys.stdout.flush()
    except OSError:  # stdout may be what failed
        _discard_stdout()
    stopped = isinstance(error, InterruptedRun) and not isinstance(error, BudgetReachedError)  # wanted, so no error
    print(message if stopped else f"error: {message}", file=sys.stderr)
    if remedy:
        print(f"{'Next' if stopped else 'fix'}: {remedy}", file=sys.stderr)
    if "--json" in arguments:
        document = {
            "type": type(error).__name__,
            "message": message,
            "remedy": remedy,
            "exit_code": error.exit_code,
        }
        if isinstance(error, DataError) and error.problems:
            document["problems"] = [
                {name: legible(mask(value)) if isinstance(value, str) else value for name, value in problem.items()}
                for problem in error.problems
            ]
        try:
            print(json.dumps({"error": document}, indent=2, ensure_ascii=False), flush=True)
        except OSError:  # stdout may be what failed
            _discard_stdout()
    return error.exit_code


def _usual_remedy(error: FinqaError, arguments: Sequence[str], commands: Collection[str]) -> str:
    """Return the usual remedy for a kind of error, for an error without a remedy."""
    if isinstance(error, StorageError):
        return ANOTHER_PATH
    if isinstance(error, UsageError):
        command = next((word for word in arguments if not word.startswith("-")), "")
        return f"finqa {command} --help" if command in commands else "finqa --help"
    return ""


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's last flush does not raise another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
