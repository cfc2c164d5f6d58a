"""Virtual environments in FINQA_HOME that `finqa setup` creates, for packages that are incompatible with finqa's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORD = "setup.json"
"""Record of an environment, written before packages are installed and again when all checks have passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Venv:
    """A finished virtual environment.

    Attributes:
        python: Its interpreter.
        digest: Digest of the pinned requirements, the Python version and the way of installation.
        versions: Version of each distribution that was checked.
    """

    python: Path
    digest: str
    versions: Mapping[str, str]


def venv_folder(home: Path, name: str) -> Path:
    """Return the folder of an environment, which contains the environment itself in `venv`, its record and its log."""
    return home.expanduser().absolute() / "envs" / name


def venv_python(folder: Path) -> Path:
    """Return the interpreter of an environment, which may not exist yet."""
    return folder / "venv" / "bin" / "python"


def find_venv(home: Path, name: str) -> Venv | None:
    """Return the environment with this name; None if it does not exist or is not complete. Reads one small file."""
    folder = venv_folder(home, name)
    record = read_record(folder)
    python = venv_python(folder)
    if record.get("state") != "complete" or not os.access(python, os.X_OK):
        return None
    return Venv(python=python, digest=str(record.get("digest", "")), versions=dict(record.get("versions") or {}))


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of an environment; empty if it is missing or not valid."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
