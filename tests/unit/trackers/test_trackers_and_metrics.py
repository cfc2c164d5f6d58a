"""What trackers wrote is read back and held against metrics.jsonl, number for number."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest

from finqa_cli.contracts import Tracker, TrackerContext
from finqa_cli.extend import registry
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.tracking import Tracking
from finqa_plugins.trackers.scalar_trackers import scalars

THIRD = 1 / 3  # no float of 32 bits


def record(iteration: int) -> dict[str, Any]:
    facts = {"kind": "train", "iteration": iteration, "reward_mean": THIRD * iteration, "reward_std": 0.1, "groups": 4}
    return {**facts, "interval": [0.1 + 0.2, 1e-17], "timing": {"iteration_s": 1.5}, "note": "text", "none": None}


def evaluation(iteration: int) -> dict[str, Any]:
    facts = {"kind": "eval", "iteration": iteration, "accuracy": THIRD, "accuracy_interval": [0.2, 0.5]}
    return {**facts, "reward_mean": 0.4, "by_kind": {"ratio": {"accuracy": 0.25}}}


def expected(run: Path) -> list[tuple[int, dict[str, float]]]:
    return [scalars(line) for line in read_jsonl(run / "metrics.jsonl")]


def tracked(run: Path, names: Sequence[str], records: Sequence[Mapping[str, Any]]) -> None:
    """Writes the records as `finqa train` does."""
    context = TrackerContext(run_dir=run, run_id=run.name, project="shares")
    with RunFolder.create(run, command="train", settings={"lr": 1e-3}, save_token_ids=False) as folder:
        trackers = [registry().create("tracker", name, {}, context) for name in names]
        tracking = Tracking(folder, trackers, NullReporter())
        with tracking.run({"lr": 1e-3, "nested": {"none": None}}):
            for line in records:
                tracking.record(line)
        folder.finish("completed")


def wandb_history(file: Path) -> Iterator[dict[str, Any]]:
    """Rows of an offline run: records in LevelDB's log format behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            read = Record.FromString(parts)
            parts = b""
            if read.HasField("history"):
                row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in read.history.item}
                yield {name: value for name, value in row.items() if not name.startswith("_")}


def test_wandb_offline_holds_what_metrics_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    tracked(run, ["wandb"], [evaluation(0), record(1), record(2), evaluation(2)])
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    assert list(wandb_history(file)) == [{**numbers, "iteration": step} for step, numbers in expected(run)]
    assert "run-" in file.name and not list(file.parent.glob("files/output.log"))  # the console stays here


def test_tensorboard_holds_what_metrics_hold_and_forgets_what_a_resumed_run_set_aside(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    tracked(run, ["tensorboard"], [evaluation(0), record(1), record(2)])
    assert tensorboard_points(run) == in_single_precision(run)
    with RunFolder.reopen(run, settings={}, save_token_ids=False, iteration=1) as folder:
        context = TrackerContext(run_dir=run, run_id=run.name)
        tracker: Tracker = registry().create("tracker", "tensorboard", {}, context)
        tracking = Tracking(folder, [tracker], NullReporter())
        with tracking.run({}):
            tracking.record({**record(2), "reward_mean": 0.75})
        folder.finish("completed")
    assert len(expected(run)) == 3
    assert tensorboard_points(run) == in_single_precision(run)


def tensorboard_points(run: Path) -> set[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {(name, event.step, event.value) for name in events.Tags()["scalars"] for event in events.Scalars(name)}


def in_single_precision(run: Path) -> set[tuple[str, int, float]]:
    return {
        (name, step, float(numpy.float32(value))) for step, numbers in expected(run) for name, value in numbers.items()
    }


TRACKIO = """
import json, sys
from pathlib import Path
from test_trackers_and_metrics import evaluation, expected, record, tracked
run = Path(sys.argv[1])
tracked(run, ["trackio"], [evaluation(0), record(1), evaluation(1)])
from trackio.sqlite_storage import SQLiteStorage
(name,) = SQLiteStorage.get_runs("shares")
rows = [{key: value for key, value in row.items() if key not in ("timestamp", "step")}
        for row in SQLiteStorage.get_logs("shares", name)]
wanted = [{**numbers, "iteration": step} for step, numbers in expected(run)]
print(json.dumps({"name": name, "same": rows == wanted, "rows": len(rows)}))
"""


def test_trackio_holds_what_metrics_hold_and_prints_nothing_on_stdout(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    run = tmp_path / "run"
    ended = subprocess.run(  # where its store is, is read once when it is imported
        [sys.executable, "-c", TRACKIO, str(run)],
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "store"), "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[0])  # later lines are trackio's own, at the end of the process
    assert found["same"] and found["rows"] == 3 and found["name"].startswith("run-")


def test_the_plot_is_drawn_when_the_run_ends_and_a_single_iteration_makes_none(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tracked(tmp_path / "one", ["plot"], [evaluation(0), record(1)])
    assert not list((tmp_path / "one").glob("rewards.*"))
    tracked(tmp_path / "two", ["plot"], [evaluation(0), record(1), record(2), evaluation(2)])
    image = (tmp_path / "two" / "rewards.png").read_bytes()
    assert image.startswith(b"\x89PNG") and len(image) > 10_000
    context = TrackerContext(run_dir=tmp_path / "two", run_id="two")
    drawn: Tracker = registry().create("tracker", "plot", {"format": "svg"}, context)
    drawn.on_run_end("failed")
    text = (tmp_path / "two" / "rewards.svg").read_text()
    assert text.startswith("<?xml") and text.count("</svg>") == 1


@pytest.mark.parametrize(("intervals", "bands"), [(((0.2, 0.5), (0.5, 0.75)), 1), ((None, None), 0)])
def test_the_band_of_the_plot_is_the_recorded_interval_of_the_mean(
    intervals: Sequence[tuple[float, float] | None], bands: int
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from finqa_plugins.trackers.plot import _rewards

    axes = Figure().subplots()
    lines = [{**record(step), "reward_interval": ends} for step, ends in enumerate(intervals, start=1)]
    _rewards(axes, lines, [])
    assert len(axes.collections) == bands
    corners = {(float(x), float(y)) for band in axes.collections for path in band.get_paths() for x, y in path.vertices}
    known = {(float(step), end) for step, ends in enumerate(intervals, start=1) for end in ends or ()}
    assert corners == known


class Failing(Tracker):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_run_start(self, settings: Mapping[str, Any]) -> None:
        self.calls.append("start")

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.calls.append("metrics")
        raise ConnectionError("the service is away")

    def on_run_end(self, status: str) -> None:
        self.calls.append("end")


class Lines(NullReporter):
    def __init__(self) -> None:
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(text)


def test_a_tracker_that_fails_is_told_once_and_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    failing, reporter, run = Failing(), Lines(), tmp_path / "run"
    with RunFolder.create(run, command="train", settings={}, save_token_ids=False) as folder:
        tracking = Tracking(folder, [failing], reporter)
        with tracking.run({}):
            for iteration in (1, 2, 3):
                tracking.record(record(iteration))
        folder.finish("completed")
    assert failing.calls == ["start", "metrics"] and len(expected(run)) == 3
    assert reporter.said == ["Tracker Failing failed and is not used: the service is away"]
