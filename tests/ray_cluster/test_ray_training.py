"""`finqa train` on a Ray cluster, as a user runs it: nodes die at the worst moments, and the run ends well."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.conftest import live_nodes, wait_for
from ray_cluster.nodes import Cluster

from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.wiring.policies import resolve
from finqa_testing.contract.engine_play import make_adapter

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


WHOLE = [
    *("--engine=ray:transformers", "--engine-replicas=1", "--set=engine.options.lockstep=false", "--run-dir=run"),
    "--set=learner.name=ray:torch",
]
"""A run wholly on nodes, without their number of processes."""


def test_all_weights_are_trained_on_nodes_and_resumed_on_others(two_nodes: Cluster, controller_folder: Path) -> None:
    """The nodes see neither the run folder nor each other's: models and states reach them in parts."""
    Training(
        controller_folder, two_nodes, *SMALL, *WHOLE, "--lora-rank=0", "--learner-processes=1", "--iterations=1"
    ).end()
    for node in [node for node in two_nodes.nodes if node.running()]:
        node.kill()
    others = {two_nodes.add().address for _ in range(2)}
    wait_for(lambda: set(live_nodes()) == others, 60)
    resumed = Training(controller_folder, two_nodes, "--resume=run", "--iterations=2", "--json", "-q")
    resumed.end()
    assert [record["iteration"] for record in resumed.metrics()] == [1, 2]
    assert all(record["faults"] == 0 for record in resumed.metrics())
    assert resumed.events("weights")
    assert sorted(path.name for path in (resumed.run / "policies" / "v00002").glob("*.safetensors")) == [
        "model.safetensors"
    ]
    left = [path for node in two_nodes.nodes if node.running() for path in node.tmp.glob("finqa-*")]
    assert not left, "no node keeps a version"


def test_a_run_that_starts_from_an_adapter_reaches_nodes_that_do_not_see_it(
    two_nodes: Cluster, controller_folder: Path
) -> None:
    """The adapter is merged in the run folder, which is on the controller alone, and so are base and tokenizer."""
    base = shutil.copytree(resolve("embedded").model, controller_folder / "base")
    adapter = make_adapter(base, controller_folder / "adapter", seed=1)
    words = [word for word in SMALL if not word.startswith("--model")]
    words += [*WHOLE, "--learner-processes=2", "--set=cluster.rollout_workers=1", f"--model={adapter}"]
    Training(controller_folder, two_nodes, *words, "--iterations=1").end()
    resumed = Training(controller_folder, two_nodes, "--resume=run", "--iterations=2", "--json", "-q")
    resumed.end()
    assert [record["iteration"] for record in resumed.metrics()] == [1, 2]
    assert all(record["faults"] == 0 for record in resumed.metrics())
    config = json.loads((resumed.run / "policies" / "v00002" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(resumed.run / "start")
