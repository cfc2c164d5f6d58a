"""A run in trackio's local store, which `trackio show --project PROJECT` opens."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_plugins.trackers.scalar_records import unique_name
from finqa_plugins.trackers.scalars import scalars


class TrackioConfig(BaseModel):
    """Options of `trackio`. Where its store is, is trackio's own business: TRACKIO_DIR, TRACKIO_SPACE_ID."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str | None = Field(default=None, min_length=1, description="Unset is run.project (--project).")


class TrackioTracker(Tracker):
    """Opens the run when it starts; a resumed run continues the same one.

    trackio takes nothing back: iterations that a resumed run set aside and did again are there twice.
    """

    def __init__(self, config: TrackioConfig, context: TrackerContext) -> None:
        self._project = config.project or context.project
        self._name = unique_name(context)
        self._run: Any = None

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Opens the run. The machine is not watched: only metrics are written."""
        library: Any = importlib.import_module("trackio")
        with contextlib.redirect_stdout(sys.stderr):  # it prints, and stdout is for results
            self._run = library.init(
                project=self._project,
                name=self._name,
                config=dict(settings),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Logs the numbers. Their step is a column of its own, for evaluations and iterations share it."""
        if self._run is not None:
            step, numbers = scalars(metrics)
            self._run.log({**numbers, "iteration": step})

    def on_run_end(self, status: str) -> None:
        """Writes what is still on its way to the store."""
        del status
        if self._run is not None:
            with contextlib.redirect_stdout(sys.stderr):
                self._run.finish()
