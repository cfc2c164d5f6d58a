from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend import registry
from finqa_plugins.trackers.scalars import scalars
from finqa_plugins.trackers.wandb import WandbConfig, WandbTracker

METRICS = {
    "kind": "train",
    "iteration": 3,
    "loss": 0.5,
    "groups": 4,
    "note": "text",
    "bad": math.nan,
    "timing": {"update_s": 1.5},
}


def test_numbers_are_named_by_kind_and_place() -> None:
    assert scalars(METRICS) == (3, {"train/loss": 0.5, "train/groups": 4.0, "train/timing/update_s": 1.5})
    assert scalars({"step": 2, "loss": 1}) == (2, {"loss": 1.0})
    assert scalars({}) == (0, {})


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_is_named_with_its_remedy(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(MissingDependencyError, match=f"needs {name}") as raised:
        registry().create("tracker", name, {}, TrackerContext(run_dir=tmp_path, run_id="r"))
    assert raised.value.remedy == f"pip install {name}"


def test_tensorboard_writes_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = registry().create("tracker", "tensorboard", {}, TrackerContext(run_dir=tmp_path, run_id="r"))
    assert isinstance(tracker, Tracker)
    tracker.on_run_start({"lr": 1e-3})
    tracker.on_metrics(METRICS)
    tracker.on_run_end("completed")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(3, 0.5)]


def test_wandb_works_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    context = TrackerContext(run_dir=tmp_path, run_id="r")
    tracker = registry().create("tracker", "wandb", {"mode": "offline"}, context)
    assert isinstance(tracker, Tracker)
    tracker.on_run_start({"lr": 1e-3})
    tracker.on_metrics(METRICS)
    tracker.on_run_end("completed")
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def test_wandb_before_its_run_starts_does_nothing(tmp_path: Path) -> None:
    tracker = WandbTracker(WandbConfig(), TrackerContext(run_dir=tmp_path, run_id="r"))
    tracker.on_metrics(METRICS)
    tracker.on_run_end("failed")


def test_an_unknown_option_of_wandb_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'project'"):
        registry().config(registry().find("tracker", "wandb"), {"projct": "x"})
