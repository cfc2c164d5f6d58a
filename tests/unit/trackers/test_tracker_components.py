from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest
from fixtures.command_calls import failure

from finqa_cli.app import main
from finqa_cli.contracts import Tracker, TrackerContext
from finqa_cli.errors import ConfigError, MissingDependencyError
from finqa_cli.extend import registry
from finqa_cli.settings import Choice, Settings
from finqa_cli.wiring.build import make_trackers
from finqa_plugins.trackers.scalar_trackers import (
    TrackioConfig,
    TrackioTracker,
    WandbConfig,
    WandbTracker,
    scalars,
    unique_name,
)

METRICS = {
    "kind": "train",
    "iteration": 3,
    "loss": 0.5,
    "groups": 4,
    "note": "text",
    "interval": [0.1, 0.9],
    "bad": math.nan,
    "timing": {"update_s": 1.5},
}


def test_numbers_are_named_by_kind_and_place() -> None:
    numbers = {"train/loss": 0.5, "train/groups": 4.0, "train/timing/update_s": 1.5}
    assert scalars(METRICS) == (3, {**numbers, "train/interval/0": 0.1, "train/interval/1": 0.9})
    assert scalars({"step": 2, "loss": 1}) == (2, {"loss": 1.0})
    assert scalars({}) == (0, {})


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "plot"])
def test_a_missing_package_is_named_with_its_remedy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="needs ") as raised:
        registry().create("tracker", name, {}, TrackerContext(run_dir=tmp_path, run_id="r"))
    extras = {"plot": "report", "tensorboard": "trackers,train"}
    assert raised.value.remedy == f"pip install 'finqa[{extras.get(name, 'trackers')}]'"


def test_standing_trackers_are_in_every_run_whose_machine_has_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    named = Settings(trackers=(Choice(name="wandb"), Choice(name="plot", options={"format": "svg"})))
    assert [type(one).__name__ for one in make_trackers(Settings(), tmp_path)] == ["PlotTracker"]
    assert [type(one).__name__ for one in make_trackers(named, tmp_path)] == ["PlotTracker", "WandbTracker"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert make_trackers(Settings(), tmp_path) == []


@pytest.mark.parametrize("tracker", [WandbTracker, TrackioTracker])
def test_services_before_the_run_starts_do_nothing(
    tracker: type[WandbTracker] | type[TrackioTracker], tmp_path: Path
) -> None:
    context = TrackerContext(run_dir=tmp_path, run_id="r")
    made = WandbTracker(WandbConfig(), context) if tracker is WandbTracker else TrackioTracker(TrackioConfig(), context)
    assert isinstance(made, Tracker)
    made.on_metrics(METRICS)
    made.on_run_end("failed")
    assert not list(tmp_path.iterdir())


def test_names_tell_runs_apart_and_stay_when_a_run_is_resumed(tmp_path: Path) -> None:
    names = []
    for folder, created in (("a", "2026-01-01"), ("b", "2026-01-01"), ("a", "2026-01-01"), ("a", "2026-01-02")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "run.json").write_text(json.dumps({"created": created}))
        names.append(unique_name(TrackerContext(run_dir=tmp_path / folder, run_id="my run/1")))
    assert names[0] == names[2] and len(set(names)) == 3
    assert all(re.fullmatch(r"my-run-1-[0-9a-f]{8}", name) for name in names)
    assert unique_name(TrackerContext(run_dir=tmp_path, run_id="r")).startswith("r-")


def test_an_unknown_option_of_wandb_is_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'project'"):
        registry().config(registry().find("tracker", "wandb"), {"projct": "x"})


def test_flags_of_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text("")
    for command in ("train --optimizer=dpo --pairs=.", "dpo .", "sft ."):
        _, told = failure([*command.split(), "--project=mine"], capsys)
        assert "warning: --project sets the project of a tracker, and there is no tracker;" in told, command
    assert main(["pipeline", "--method=dpo", "--dry-run", "--project=mine"]) == 0
    assert "warning: --project" in capsys.readouterr().err
    status, told = failure(["train", "--environment=finqa-text", "--tracker=wandbb", "-q"], capsys)
    assert status == 78 and "There is no tracker named 'wandbb'. Did you mean 'wandb'?" in told
    assert not list(tmp_path.glob("runs/*")), "a mistake leaves no run"
