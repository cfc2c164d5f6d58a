"""Contract of trackers, which copy the run's metrics to services and files. The run folder is the primary record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerContext:
    """Context of a tracker.

    Attributes:
        run_dir: The run folder.
        run_id: Its name.
        project: Project of the run in the tracking service.
    """

    run_dir: Path
    run_id: str
    project: str = "finqa"


class Tracker:
    """Base class of all trackers, constructed with `(config, context)`. Each method is optional.

    A tracker that raises is reported once and not called again.
    """

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Receive the settings of the run that begins, resolved and free of secrets."""

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Receive one line of metrics.jsonl. Its `kind`, such as `train` or `eval`, decides which fields it has."""

    def on_run_end(self, status: str) -> None:
        """Receive how the run ended: `completed`, `interrupted` or `failed`."""
