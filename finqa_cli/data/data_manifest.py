"""`manifest.json`: what a command wrote, from which inputs, with which options, and what the data may be used for."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finqa_cli import __version__
from finqa_cli.data.openenv_layout.layout import free_name
from finqa_cli.data.snapshots.compile import file_digest, manifest_digest, write_durably
from finqa_cli.errors import StorageError

MANIFEST_FILE = "manifest.json"


def manifest(
    module: str,
    *,
    timestamp: str,
    config: Mapping[str, Any],
    stats: Mapping[str, Any],
    inputs: Sequence[Path],
    source: str,
    licence: str,
    evaluation_only: bool,
) -> dict[str, Any]:
    """Returns the manifest of a command's output.

    Args:
        module: The command, `data check` for example.
        timestamp: ISO 8601, with a time zone.
        config: The options that the result depends on.
        stats: Counts of the result.
        inputs: Files and folders that were read; each is listed with its sha256. The sha256 of a folder covers the
            names and digests of all files in it.
        source: Where the data comes from, in words.
        licence: Licence of the data.
        evaluation_only: Whether the data is marked as not for training.

    Raises:
        OSError: An input can no longer be read.
    """
    return {
        "schema_version": 1,
        "module": module,
        "finqa": __version__,
        "timestamp": timestamp,
        "config": dict(config),
        "stats": dict(stats),
        "inputs": [{"path": str(path), "sha256": _digest(path)} for path in inputs],
        "source": source,
        "licence": licence,
        "evaluation_only": evaluation_only,
    }


def write_files(folder: Path, files: Mapping[str, str]) -> dict[str, str]:
    """Writes texts by file name into a folder, which is created if missing. Returns the sha256 of each text by name.

    Raises:
        StorageError: One of the files is there already, or writing failed.
    """
    for name in files:
        if (folder / name).exists():
            remedy = f"--out {shlex.quote(free_name(folder))}"
            raise StorageError(f"{folder / name} already exists and is not overwritten.", remedy=remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_durably(folder / name, text.encode())
    except OSError as error:
        raise StorageError(f"Writing to {folder} failed: {error.strerror or error}.") from error
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}


def as_text(document: Mapping[str, Any]) -> str:
    """Returns a document as the text of a JSON file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _digest(path: Path) -> str:
    if not path.is_dir():
        return file_digest(path)
    files = {str(file.relative_to(path)): file_digest(file) for file in path.rglob("*") if file.is_file()}
    return manifest_digest(files).removeprefix("sha256:")
