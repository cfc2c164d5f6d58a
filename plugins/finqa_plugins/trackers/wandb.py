"""A run on Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import TrackerContext
from finqa_plugins.trackers.scalars import scalars


class WandbConfig(BaseModel):
    """Options of `wandb`. The key is wandb's own business: `wandb login` or WANDB_API_KEY."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str = Field(default="finqa", min_length=1)
    entity: str | None = Field(default=None, description="Team or user; unset is the default of the account.")
    mode: Literal["online", "offline"] = Field(default="online", description="offline: `wandb sync` uploads it later.")


class WandbTracker:
    """Opens the run when it starts; a resumed run continues the same one."""

    def __init__(self, config: WandbConfig, context: TrackerContext) -> None:
        self._config = config
        self._context = context
        self._run: Any = None

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Opens the run."""
        library: Any = importlib.import_module("wandb")
        self._run = library.init(
            project=self._config.project,
            entity=self._config.entity,
            mode=self._config.mode,
            id=self._context.run_id,
            name=self._context.run_id,
            resume="allow",
            dir=str(self._context.run_dir),
            config=dict(settings),
        )

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Logs the numbers. Their step is a column of its own, for evaluations and iterations share it."""
        if self._run is not None:
            step, numbers = scalars(metrics)
            self._run.log({**numbers, "iteration": step})

    def on_run_end(self, status: str) -> None:
        """Closes the run; only `completed` is a success."""
        if self._run is not None:
            self._run.finish(exit_code=0 if status == "completed" else 1)
