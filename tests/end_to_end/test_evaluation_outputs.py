"""What `finqa eval` leaves in its folder, besides the trajectories."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.command_calls import document

from finqa_cli.extend import hookimpl, registry
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.types import Trajectory

pytestmark = pytest.mark.usefixtures("empty_folder")


class Watcher:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def on_run_start(self, run_id: str) -> None:
        self.seen.append(run_id)

    @hookimpl
    def on_trajectory(self, trajectory: Trajectory) -> None:
        self.seen.append("attempt")

    @hookimpl
    def on_run_end(self, status: str) -> None:
        self.seen.append(status)

    @hookimpl
    def on_eval(self) -> None:
        raise ZeroDivisionError("a bug of a plugin that only looks on")


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    plugin = Watcher()
    registry().manager.register(plugin)
    yield plugin
    registry().manager.unregister(plugin)


def test_metrics_breakdown_and_samples_say_the_same(watcher: Watcher, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--environment", "finqa-text", "--limit", "4", "--attempts", "2", "--run-dir", "run", "--quiet"]
    report = document(["eval", "scripted", *flags], capsys)
    assert watcher.seen == ["run", *["attempt"] * 8, "completed"]
    metrics = json.loads(Path("run/metrics.json").read_text())
    assert metrics["accuracy"] == {
        "value": report["accuracy"],
        "interval": report["accuracy_interval"],
        "companies": report["clusters"],
    }
    assert metrics["data"] == json.loads(Path("run/report.json").read_text())["data"]
    assert set(metrics["pass_at_k"]) == set(metrics["pass_hat_k"]) == {"1", "2"}
    with Path("run/breakdown.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == report["episodes"] == 8
    for name in ("exact_match", "numeric_correctness", "program_validity", "format_compliance"):
        assert metrics[name]["value"] == sum(float(row[name]) for row in rows) / len(rows), name
    samples = list(read_jsonl(Path("run/samples/predictions.jsonl")))
    assert len({sample["task"]["id"] for sample in samples}) == 3 and samples[0]["turns"][0]["text"]
    assert all(sample["failure_reason"] == "" and sample["components"]["correct"] == 1.0 for sample in samples)
