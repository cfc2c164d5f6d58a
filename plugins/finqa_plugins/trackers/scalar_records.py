"""What trackers read of the run folder: its metrics so far, and what tells the run apart from all others."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from finqa_cli.contracts import TrackerContext


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; none before the first. A torn last line, left by a crash, is not one of them."""
    try:
        text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def unique_name(context: TrackerContext) -> str:
    """The run's name with eight digits behind it, the same when the run is resumed and another for every other run.

    Folders are called alike more often than not, and services go on with a run whose name they know.
    """
    try:
        created = str(json.loads((context.run_dir / "run.json").read_text(encoding="utf-8"))["created"])
    except (OSError, ValueError, KeyError, TypeError):
        created = ""
    digits = hashlib.sha256(f"{context.run_dir.resolve()} {created}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', context.run_id)}-{digits}"
