"""Is a snapshot folder what its manifest says? Files and digests as `finqa snapshot build` writes them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
FILES = ("tables.sqlite", "tasks.jsonl", "truth.jsonl")


class SnapshotError(Exception):
    """The folder is no readable snapshot; the message names it, says why and which command builds it again."""


def verify(folder: Path, *, name: str = "", digest: str = "") -> None:
    """Compares every file with its sha256.

    Args:
        folder: Of the snapshot.
        name: Of the snapshot; found from the folder when empty.
        digest: What the manifest must call itself; any when empty.

    Raises:
        SnapshotError: A file is missing, damaged or of another version.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, recorded, files = manifest["schema_version"], manifest["digest"], dict(manifest["files"])
        wrong = [file for file in FILES if _sha256(folder / file) != files[file]]
    except OSError as error:
        raise broken(folder, name, f"{error.filename}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise broken(folder, name, f"{MANIFEST} is damaged ({type(error).__name__}: {error})") from error
    if version != SCHEMA_VERSION:
        raise broken(folder, name, f"its format is {str(version)[:20]!r}, this version of finqa reads {SCHEMA_VERSION}")
    if wrong:
        raise broken(folder, name, f"{', '.join(wrong)}: the sha256 differs from the manifest's")
    if digest and recorded != digest:
        raise broken(folder, name, f"its digest is {str(recorded)[:80]}, not {digest}")


def broken(folder: Path, name: str, reason: str) -> SnapshotError:
    """The error that names the snapshot and the command."""
    # The store keeps a snapshot as <name>/<first 12 digits of its digest>.
    name = name or (folder.parent.name if re.fullmatch(r"[0-9a-f]{12}", folder.name) else folder.name)
    reason = " ".join(reason.split())
    command = f"finqa snapshot build --snapshot-name {name}"
    return SnapshotError(f"{folder} is not a readable snapshot: {reason}. Build {name!r} again: {command}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
