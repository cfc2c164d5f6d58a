"""Event files that `tensorboard --logdir RUN` shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_plugins.trackers.scalar_records import read_metrics
from finqa_plugins.trackers.scalars import scalars


class TensorBoardTracker(Tracker):
    """Writes scalars under `<run>/tensorboard`, in the full precision of metrics.jsonl.

    A resumed run adds a file to the same folder; what the run had set aside disappears from the curves.
    """

    def __init__(self, config: None, context: TrackerContext) -> None:
        del config
        from torch.utils.tensorboard import SummaryWriter

        kept = [scalars(record)[0] for record in read_metrics(context.run_dir)]
        # The first start that TensorBoard reads is no restart to it, so a fresh run has to say that it starts as well.
        after = max(kept) + 1 if kept else 0
        self._writer: Any = SummaryWriter(str(context.run_dir / "tensorboard"), purge_step=after)

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        """Shows the settings as text."""
        self._writer.add_text("settings", f"```json\n{json.dumps(settings, indent=2, default=str)}\n```")

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """One point per number."""
        step, numbers = scalars(metrics)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step, new_style=True, double_precision=True)
        self._writer.flush()

    def on_run_end(self, status: str) -> None:
        """Closes the files."""
        del status
        self._writer.close()
