"""Trackers: copies of the run's metrics for people and services. The run folder stays the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerContext:
    """`run_dir` is the run folder; `run_id` its name; `project` is what services file it under."""

    run_dir: Path
    run_id: str
    project: str = "finqa"


@runtime_checkable
class Tracker(Protocol):
    """Constructed as `Tracker(config, context)`. A tracker that fails is reported once and then left out."""

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """The run begins; `settings` are resolved and free of secrets."""
        ...

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        ...

    def on_run_end(self, status: str) -> None:
        """`completed`, `interrupted` or `failed`."""
        ...
