"""Trackers that write numbers by step: TensorBoard's event files, trackio's local store, and Weights & Biases."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_cli.documents import parse_json

FINISH_S = 300.0
"""Seconds to wait for uploads when the run ends: wandb itself waits forever if its service does not answer."""


def scalars(metrics: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """Return the step and the finite numbers of a line of metrics.

    Nested names are joined by `/` under the record's kind: `train/timing/update_s`.

    Items of lists are named by their index: `eval/accuracy_interval/0`. The step is the record's `iteration`, or else
    its `step`, or else 0.
    """
    step = metrics.get("iteration", metrics.get("step", 0))
    rest = [item for item in metrics.items() if item[0] not in ("schema_version", "kind", "iteration", "step")]
    kind = str(metrics.get("kind", ""))
    return int(step), dict(_flat(rest, f"{kind}/" if kind else ""))


def _flat(items: Iterable[tuple[object, Any]], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in items:
        if isinstance(value, Mapping):
            yield from _flat(value.items(), f"{prefix}{name}/")
        elif isinstance(value, list | tuple):
            yield from _flat(enumerate(value), f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Read the records of metrics.jsonl; none if there is no file. Leaves out an incomplete last line."""
    try:
        text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def unique_name(context: TrackerContext) -> str:
    """Return the run's name with eight digits, which stay when the run is resumed and differ between runs.

    Runs in different folders may have the same name, and services would continue a run whose name they know.
    """
    try:
        created = str(parse_json((context.run_dir / "run.json").read_text(encoding="utf-8"))["created"])
    except (OSError, ValueError, KeyError, TypeError):
        created = ""
    digits = hashlib.sha256(f"{context.run_dir.resolve()} {created}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', context.run_id)}-{digits}"


class TensorBoardTracker(Tracker):
    """Writes scalars under `<run>/tensorboard`, in single precision, which is all that TensorBoard stores.

    A resumed run adds a file to the same folder; iterations that it discarded disappear from the curves.
    """

    def __init__(self, config: None, context: TrackerContext) -> None:
        del config
        from torch.utils.tensorboard import SummaryWriter

        kept = [scalars(record)[0] for record in read_metrics(context.run_dir)]
        # TensorBoard takes the first start in a folder for no restart, so a fresh run has to write its start as well.
        after = max(kept) + 1 if kept else 0
        self._writer: Any = SummaryWriter(str(context.run_dir / "tensorboard"), purge_step=after)

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Show the settings as text."""
        self._writer.add_text("settings", f"```json\n{json.dumps(settings, indent=2, default=str)}\n```")

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write one point per number."""
        step, numbers = scalars(metrics)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def on_run_end(self, status: str) -> None:
        """Close the files."""
        del status
        self._writer.close()


class TrackioConfig(BaseModel):
    """Options of `trackio`. Where its store is, is a setting of trackio: TRACKIO_DIR, TRACKIO_SPACE_ID."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str | None = Field(default=None, min_length=1, description="Project; unset: run.project (--project).")


class TrackioTracker(Tracker):
    """Logs to one run of the service, which a resumed run continues.

    trackio cannot remove records: iterations that a resumed run discards and repeats are there twice.
    """

    def __init__(self, config: TrackioConfig, context: TrackerContext) -> None:
        self._project = config.project or context.project
        self._name = unique_name(context)
        self._run: Any = None

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Open the run. Only metrics are written, nothing about the machine."""
        library: Any = importlib.import_module("trackio")
        with contextlib.redirect_stdout(sys.stderr):  # trackio prints, and stdout is for results
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
        """Log the numbers. The step is a separate column, because evaluations and iterations share it."""
        if self._run is not None:
            step, numbers = scalars(metrics)
            self._run.log({**numbers, "iteration": step})

    def on_run_end(self, status: str) -> None:
        """Write to the store what it does not have yet."""
        del status
        if self._run is not None:
            with contextlib.redirect_stdout(sys.stderr):
                self._run.finish()


class WandbConfig(BaseModel):
    """Options of `wandb`. The key is a setting of wandb: `wandb login` or WANDB_API_KEY."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: str | None = Field(default=None, min_length=1, description="Project; unset: run.project (--project).")
    entity: str | None = Field(default=None, description="Team or user; unset: the default of the account.")
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="Mode; offline: `wandb sync` uploads the run later; unset: WANDB_MODE, else online.",
    )


class WandbTracker(Tracker):
    """Logs to one run of the service, which a resumed run continues.

    W&B cannot remove records: iterations that a resumed run discards and repeats are there twice.
    """

    def __init__(self, config: WandbConfig, context: TrackerContext) -> None:
        self._config = config
        self._context = context
        self._run: Any = None

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Open the run. The console, code and the state of a repository are not sent."""
        library: Any = importlib.import_module("wandb")
        given = library.Settings(console="off", save_code=False, disable_git=True)
        if "WANDB_FINISH_TIMEOUT" not in os.environ and hasattr(
            given, "finish_timeout"
        ):  # older versions have no such setting
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
        """Log the numbers. The step is a separate column, because evaluations and iterations share it."""
        if self._run is not None:
            step, numbers = scalars(metrics)
            self._run.log({**numbers, "iteration": step})

    def on_run_end(self, status: str) -> None:
        """Close the run; only `completed` is a success. `wandb sync` uploads what is not uploaded yet."""
        if self._run is not None:
            self._run.finish(exit_code=0 if status == "completed" else 1)
