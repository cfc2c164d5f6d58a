"""The command that converts the data at a path to finqa's layout. An import of original FinQA is tried before."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

from finqa_cli.data.data_problems import Problem, ProblemError
from finqa_cli.data.finqa.finqa_import import import_finqa_json
from finqa_cli.data.finqa.finqa_rows import is_finqa
from finqa_cli.data.openenv_layout.layout import QUESTIONS_FILE
from finqa_cli.data.own_tables.table_sources import is_database, is_table_file
from finqa_cli.data.question_files.question_rows import read_rows, split_files
from finqa_cli.errors import FinqaError

IMPORTERS = "finqa data import --help"
_ROWS = 5


def advise_import(path: Path) -> str:
    """Returns the command that imports the data at a path, or the command that lists all importers.

    `DIR` is a placeholder for a folder to write, `FILE` for the questions about tables and `SOURCE` for the tables of
    questions.
    """
    quoted = shlex.quote(str(path))
    if path.is_dir():
        files = [] if split_files(path) or (path / QUESTIONS_FILE).parent.exists() else path.rglob("*")
        tables = any(is_table_file(file) for file in itertools.islice(files, 10_000))
        return f"finqa data import tables {quoted} --questions FILE --out DIR" if tables else IMPORTERS
    if is_database(path):
        return f"finqa data import tables {quoted} --questions FILE --out DIR"
    return f"finqa data import finqa-json {quoted} --out DIR" if imports_as_finqa(path) else IMPORTERS


def imports_as_finqa(path: Path) -> bool:
    """Returns whether a file contains original FinQA that can be imported, without malformed rows."""
    try:
        rows = list(itertools.islice(read_rows(path), _ROWS))
        if not any(not isinstance(row, Problem) and is_finqa(row[1]) for row in rows):
            return False
        return import_finqa_json([path]).kept > 0
    except (ProblemError, FinqaError, OSError):
        return False


def snapshot_name(path: Path) -> str:
    """Returns a snapshot name that `finqa snapshot build` accepts, made from the name of a folder or file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().stem).strip("-._")[:64] or "mine"
