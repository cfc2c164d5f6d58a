"""`finqa train` on a Ray cluster, as a user runs it: nodes die at the worst moments, and the run ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.conftest import wait_for
from ray_cluster.nodes import Cluster

from finqa_cli.runs.jsonl import read_jsonl

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

RUN_S = 300.0
GROUPS, MEMBERS = 4, 4
SMALL = [
    *("--model=embedded", "--sandbox=local", "--sandboxes=4", f"--group-size={MEMBERS}", "--target-groups-per-iter=0"),
    *(f"--max-rollout-rounds={GROUPS}", "--limit=2", "--seed=3", "--no-preflight", "--json", "-q"),
]
ON_NODES = ["--engine=ray:transformers", "--engine-replicas=2", "--set=engine.options.lockstep=false"]


class Training:
    """A run in a process of its own."""

    def __init__(self, folder: Path, cluster: Cluster, *words: str) -> None:
        self.run = folder / "run"
        self._errors = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "finqa_cli", "train", *words, f"--cluster-address={cluster.address}"],
            cwd=folder,
            env={**os.environ, "FINQA_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def played(self, iteration: int) -> int:
        """Train episodes of an iteration that are recorded."""
        return sum(
            (record["phase"], record["iteration"]) == ("train", iteration) for record in self._lines("trajectories")
        )

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self._lines("events") if event["event"] in names]

    def end(self) -> dict[str, Any]:
        """Waits; fails unless it ended with 0 and one JSON document on stdout."""
        try:
            output, _ = self.process.communicate(timeout=RUN_S)
        finally:
            self.process.kill()
            self._errors.close()
        assert self.process.returncode == 0, (self.run.parent / "stderr").read_text()[-3000:]
        document: dict[str, Any] = json.loads(output)
        return document

    def metrics(self) -> list[dict[str, Any]]:
        return [record for record in self._lines("metrics") if record["kind"] == "train"]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.run / f"{name}.jsonl"
        return list(read_jsonl(path)) if path.exists() else []


@pytest.mark.parametrize("moment", ["in a rollout", "between rollout and sync"])
def test_an_engine_node_that_dies_costs_no_group(moment: str, one_place_a_node: Cluster, tmp_path: Path) -> None:
    began = time.perf_counter()
    training = Training(tmp_path, one_place_a_node, *SMALL, *ON_NODES, "--iterations=3", "--run-dir=run")
    conditions: dict[str, Callable[[], bool]] = {
        "in a rollout": lambda: training.played(2) >= 2,
        "between rollout and sync": lambda: training.played(2) == training.played(1) > 0,
    }
    try:
        wait_for(lambda: conditions[moment]() or training.process.poll() is not None, RUN_S)
        node = next(node for node in one_place_a_node.nodes if node.running())
        node.kill()
        one_place_a_node.add()
    finally:
        training.end()
    print(f"{moment}: {time.perf_counter() - began:.0f} s")
    assert len(training.events("engine_left_out")) == 1
    records = training.metrics()
    assert [record["iteration"] for record in records] == [1, 2, 3]
    for record in records:
        assert (record["groups"], record["faults"]) == (records[0]["groups"], 0)
        assert record["episodes_in_groups"] == record["episodes"] == record["groups"] * MEMBERS
    trajectories = list(read_jsonl(training.run / "trajectories.jsonl"))
    assert {record["status"] for record in trajectories} <= {"completed", "truncated"}
    assert len({record["id"] for record in trajectories}) == len(trajectories)


def test_a_run_wholly_on_nodes_is_resumed(two_nodes: Cluster, tmp_path: Path) -> None:
    words = ["--set=learner.name=ray:torch", "--learner-processes=2", "--run-dir=run"]
    Training(tmp_path, two_nodes, *SMALL, *ON_NODES, *words, "--iterations=2").end()
    resumed = Training(tmp_path, two_nodes, "--resume=run", "--iterations=3", "--json", "-q")
    resumed.end()
    assert [record["iteration"] for record in resumed.metrics()] == [1, 2, 3]
    assert all(record["faults"] == 0 for record in resumed.metrics())
    assert resumed.events("weights")
