"""A run on Weights & Biases."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_plugins.trackers.scalar_records import unique_name
from finqa_plugins.trackers.scalars import scalars

FINISH_S = 300.0
"""For what is not uploaded yet when the run ends: wandb itself waits without end for a service that went away."""


class WandbConfig(BaseModel):
    """Options of `wandb`. The key is wandb's own business: `wandb login` or WANDB_API_KEY."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str | None = Field(default=None, min_length=1, description="Unset is run.project (--project).")
    entity: str | None = Field(default=None, description="Team or user; unset is the default of the account.")
    mode: Literal["online", "offline"] | None = Field(
        default=None, description="offline: `wandb sync` uploads it later. Unset is WANDB_MODE, or else online."
    )


class WandbTracker(Tracker):
    """Opens the run when it starts; a resumed run continues the same one.

    W&B takes nothing back: iterations that a resumed run set aside and did again are there twice.
    """

    def __init__(self, config: WandbConfig, context: TrackerContext) -> None:
        self._config = config
        self._context = context
        self._run: Any = None

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Opens the run. Neither the console nor code nor the state of a repository is sent."""
        library: Any = importlib.import_module("wandb")
        given = library.Settings(console="off", save_code=False, disable_git=True)
        if "WANDB_FINISH_TIMEOUT" not in os.environ and hasattr(given, "finish_timeout"):  # older ones have none
            given.finish_timeout = FINISH_S
        self._run = library.init(
            project=self._config.project or self._context.project,
            entity=self._config.entity,
            mode=self._config.mode,
            id=unique_name(self._context),
            name=self._context.run_id,
            resume="allow",
            dir=str(self._context.run_dir),
            config=dict(settings),
            settings=given,
        )
        self._run.define_metric("*", step_metric="iteration")

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Logs the numbers. Their step is a column of its own, for evaluations and iterations share it."""
        if self._run is not None:
            step, numbers = scalars(metrics)
            self._run.log({**numbers, "iteration": step})

    def on_run_end(self, status: str) -> None:
        """Closes the run; only `completed` is a success. What cannot be uploaded in time is left for `wandb sync`."""
        if self._run is not None:
            self._run.finish(exit_code=0 if status == "completed" else 1)
