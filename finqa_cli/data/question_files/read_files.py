"""Reads whole files. Whatever keeps one from being read is a problem that names it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError

MAX_BYTES = 2**30


def require_file(path: Path) -> None:
    """Insists on a plain file of bounded size: a folder cannot be read, and a pipe would wait for ever.

    Raises:
        ProblemError: It is missing, something else, or too large.
    """
    try:
        facts = path.stat()
    except FileNotFoundError as error:
        raise ProblemError(Problem(file=str(path), reason="the file is missing")) from error
    except (OSError, ValueError) as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {_reason(error)}")) from error
    if stat.S_ISDIR(facts.st_mode):
        raise ProblemError(Problem(file=str(path), reason="is a folder, not a file"))
    if not stat.S_ISREG(facts.st_mode):
        raise ProblemError(Problem(file=str(path), reason="is not a plain file"))
    if facts.st_size > MAX_BYTES:
        raise ProblemError(
            Problem(file=str(path), reason=f"holds {facts.st_size} bytes, at most {MAX_BYTES} are taken")
        )


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        ProblemError: It is missing or unreadable.
    """
    require_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProblemError(Problem(file=str(path), reason=f"cannot be read: {_reason(error)}")) from error


def read_text(path: Path) -> str:
    """The text of a file, without byte order mark.

    Raises:
        ProblemError: It is missing, unreadable or not UTF-8.
    """
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = error.object.count(b"\n", 0, error.start) + 1
        raise ProblemError(Problem(file=str(path), row=row, reason="is not valid UTF-8")) from error


def read_json(path: Path) -> object:
    """The JSON value in a file.

    Raises:
        ProblemError: It is missing, unreadable, or not JSON.
    """
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ProblemError(Problem(file=str(path), reason=str(error))) from error


def parse_json(text: str) -> object:
    """The JSON value of a text.

    Raises:
        ValueError: It is none; the message says what is wrong and where.
    """
    if not text.strip():
        raise ValueError("is empty")
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"is not valid JSON: {error.msg} at {place}") from error
    except ValueError as error:  # an integer of more digits than Python converts
        raise ValueError(f"is not readable JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is not readable JSON: nested too deeply") from error
    return value


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
