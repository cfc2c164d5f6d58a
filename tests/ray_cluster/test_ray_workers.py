"""Rollout workers on two nodes: processes, nodes and the head die while `finqa train` runs, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ray_cluster.conftest import wait_for
from ray_cluster.nodes import Cluster, Node, _descendants, running_cluster
from ray_cluster.test_ray_training import GROUPS, MEMBERS, RUN_S, SMALL, Training

from finqa_cli.runs.jsonl import read_jsonl

pytest.importorskip("ray", reason="Ray is not there: run `make test-ray`")

WORKERS = ["--set=cluster.rollout_workers=2", "--set=engine.options.lockstep=false"]
SANDBOX_PROCESS = b"finqa_plugins.sandboxes.local.reaper"


def worker_processes(node: Node) -> list[int]:
    """Processes of rollout workers on a node."""
    return [pid for pid in _descendants(node._process.pid) if b"WorkerActor" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def sandbox_processes(folder: Path) -> list[int]:
    """Servers of sandboxes that were started below a folder of nodes, also of nodes that are gone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if SANDBOX_PROCESS in command_line(int(entry.name)) and os.fsencode(folder) in environment:
            found.append(int(entry.name))
    return found


def check_whole(training: Training, iterations: int) -> None:
    """Every iteration has its groups, every episode counts once, and none ended in a fault."""
    records = training.metrics()
    assert [record["iteration"] for record in records] == list(range(1, iterations + 1))
    for record in records:
        assert (record["groups"], record["faults"]) == (GROUPS, 0)
        assert record["episodes_in_groups"] == record["episodes"] == GROUPS * MEMBERS
    trajectories = list(read_jsonl(training.run / "trajectories.jsonl"))
    counted = Counter(record["id"] for record in trajectories)
    assert set(counted.values()) == {1}
    played = Counter(record["iteration"] for record in trajectories if record["phase"] == "train")
    assert played == dict.fromkeys(range(1, iterations + 1), GROUPS * MEMBERS)
    assert {record["status"] for record in trajectories} <= {
        "completed",
        "max_turns",
        "max_tokens",
        "timeout",
        "parse_error",
    }
    assert not any(record["retries"] for record in trajectories)


def test_a_lost_worker_and_a_lost_node_cost_no_group_and_leave_no_sandbox(two_nodes: Cluster, tmp_path: Path) -> None:
    training = Training(tmp_path, two_nodes, *SMALL, *WORKERS, "--iterations=8", "--run-dir=run")
    try:
        wait_for(lambda: training.played(1) >= 2 or training.process.poll() is not None, RUN_S)
        first, second = (node for node in two_nodes.nodes if node.running())
        for pid in worker_processes(first):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: bool(training.events("worker_back")) or training.process.poll() is not None, RUN_S)
        assert training.process.poll() is None, "the run ended before its second loss: the test shows nothing"
        second.kill()
        two_nodes.add()
    finally:
        training.end()
    lost = training.events("worker_lost")
    assert len(lost) == 2 and {facts["node"] for facts in lost} == {first.address, second.address}
    assert sum(facts["attempts"] for facts in lost) > 0
    check_whole(training, 8)
    assert {facts["worker"] for facts in training.events("sandbox_ready")} == {0, 1}
    wait_for(lambda: not sandbox_processes(two_nodes.folder), 10)


def test_a_lost_head_costs_one_iteration_at_most(tmp_path: Path) -> None:
    with running_cluster() as first:
        training = Training(
            tmp_path, first, *SMALL, *WORKERS, "--iterations=3", "--run-dir=run", "--set=train.checkpoint_every=1"
        )
        wait_for(lambda: training.played(2) >= 2 or training.process.poll() is not None, RUN_S)
        first.head.kill()
        training.process.kill()  # the controller runs there
        training.process.wait()
        done = len(training.metrics())
        wait_for(lambda: not sandbox_processes(first.folder), 120)
    with running_cluster() as second:
        resumed = Training(tmp_path, second, "--resume=run", "--json", "-q")
        resumed.end()
        (again,) = json.loads((resumed.run / "run.json").read_text())["resumed"]
        assert done == 1 and again["iteration"] == 1, "the iteration under way is played again"
        check_whole(resumed, 3)
        wait_for(lambda: not sandbox_processes(second.folder), 10)


def test_workers_play_what_one_process_plays(two_nodes: Cluster, tmp_path: Path) -> None:
    """The engine is deterministic, so only times and the order differ."""

    def play(name: str, *words: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "finqa_cli", "eval", "scripted", "--limit=6", "--sandbox=local"]
        command += ["--sandboxes=4", f"--run-dir={name}", "--json", "-q", f"--set=cluster.address={two_nodes.address}"]
        environment = {**os.environ, "FINQA_HOME": str(tmp_path / "home")}
        ended = subprocess.run([*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-3000:]
        records = list(read_jsonl(tmp_path / name / "trajectories.jsonl"))
        return sorted(map(_without_times, records), key=lambda record: str(record["id"]))

    assert play("one") == play("two", "--set=cluster.rollout_workers=2")


def _without_times(record: Any) -> Any:
    if isinstance(record, dict):
        return {name: _without_times(value) for name, value in record.items() if name != "seconds"}
    return [_without_times(value) for value in record] if isinstance(record, list) else record
