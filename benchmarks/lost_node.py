"""What the loss of an engine's node costs a training on a Ray cluster: its wall time beside that of undisturbed runs.

    python -m benchmarks.lost_node [--rounds N] [--iterations N] [--only "before the sync"]

Needs Ray: run it with `.venv-ray/bin/python`, which `make test-ray` makes. A head and two nodes on loopback addresses
have an engine replica each. Each round trains three times, in a shuffled order: undisturbed, with a node killed in the
middle of a rollout, and with one killed between the last episode of an iteration and the weight sync. Another node
takes the place of the killed one at once. Prints a markdown table and, as the last line, the same as JSON; the exit
status is 1 when a median ratio is above the limit, a group is lost or an episode ends in a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from benchmarks.figures import Figure, at_most, exactly, machine, note, report
from finqa_cli.runs.jsonl import read_jsonl
from tests.ray_cluster.nodes import Cluster, running_cluster

Loss = Literal["none", "in a rollout", "before the sync"]

LOSSES: tuple[Loss, ...] = ("none", "in a rollout", "before the sync")
TASKS, ROUNDS, MEMBERS = 2, 4, 4
GROUPS = TASKS * ROUNDS
EPISODES = GROUPS * MEMBERS
LIMIT = 1.3
JOIN_S = 120.0
COMMAND = [
    *("train", "--model=embedded", "--sandbox=local", "--sandboxes=8", f"--group-size={MEMBERS}", "--seed=3", "-q"),
    *("--target-groups-per-iter=0", f"--max-rollout-rounds={ROUNDS}", f"--limit={TASKS}", "--no-preflight", "--json"),
    *("--engine=ray:transformers", "--engine-replicas=2", "--set=engine.options.lockstep=false", "--run-dir=run"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training.

    Attributes:
        wall_s: From the start of the command to its end.
        rollout_s: Seconds that its rollouts took.
        left_out_s: From the loss to the moment when the replica got no more requests; NaN without a loss.
        back_s: From the loss to the moment when a replica on another node got requests; NaN if none did.
        groups: Groups of all iterations.
        faults: Episodes that ended in a fault.
    """

    wall_s: float
    rollout_s: float
    left_out_s: float
    back_s: float
    groups: int
    faults: int


def train(cluster: Cluster, folder: Path, loss: Loss, iterations: int) -> Trained:
    """Train once, and lose a node in the middle iteration if one is to be lost."""
    folder.mkdir()
    command = [sys.executable, "-m", "finqa_cli", *COMMAND, f"--iterations={iterations}"]
    environment = {**os.environ, "FINQA_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    began, lost = time.monotonic(), float("nan")
    process = subprocess.Popen(
        [*command, f"--cluster-address={cluster.address}"], cwd=folder, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        while loss != "none" and process.poll() is None and not is_due(folder / "run", loss, iterations // 2):
            time.sleep(0.05)
        if loss != "none" and process.poll() is None:
            lost = time.time()
            next(node for node in cluster.nodes if node.running()).kill()
            cluster.add(1)
        status = process.wait()
    finally:
        process.kill()
    wall_s = time.monotonic() - began
    if status:
        raise RuntimeError(f"finqa train ended with {status}; see above")
    wait_for_nodes(cluster)
    events = {event["event"]: event["time"] for event in records(folder / "run", "events")}
    metrics = [one for one in records(folder / "run", "metrics") if one["kind"] == "train"]
    return Trained(
        wall_s=wall_s,
        rollout_s=sum(one["timing"]["rollout_s"] for one in metrics),
        left_out_s=events.get("engine_left_out", float("nan")) - lost,
        back_s=events.get("engine_back", float("nan")) - lost,
        groups=sum(one["groups"] for one in metrics),
        faults=sum(one["faults"] for one in metrics),
    )


def is_due(run: Path, loss: Loss, iteration: int) -> bool:
    """Whether the moment of a loss has come."""
    played = Counter(one["iteration"] for one in records(run, "trajectories") if one["phase"] == "train")[iteration]
    return played >= (EPISODES // 2 if loss == "in a rollout" else EPISODES)


def records(run: Path, name: str) -> list[dict[str, Any]]:
    """Return the records of a run, as far as they are written."""
    path = run / f"{name}.jsonl"
    return list(read_jsonl(path)) if path.exists() else []


def wait_for_nodes(cluster: Cluster) -> None:
    """Wait until two nodes have joined; the one that was lost may still be counted a while."""
    deadline = time.monotonic() + JOIN_S
    code = (
        "import ray,sys; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False);"
        "print(ray.cluster_resources().get('CPU', 0))"
    )
    while True:
        found = subprocess.run([sys.executable, "-c", code, cluster.address], capture_output=True, text=True)
        if found.stdout.strip() == "2.0":
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cluster has not two nodes: {found.stdout} {found.stderr[-500:]}")


def judge(trained: Mapping[Loss, list[Trained]], iterations: int) -> list[Figure]:
    """Return the figures of all rounds."""
    walls = {loss: [one.wall_s for one in trained[loss]] for loss in trained}
    figures = [note("undisturbed, wall (s)", median(walls["none"]), seconds(walls["none"]))]
    for loss in (loss for loss in trained if loss != "none"):
        ratios = [there / here for there, here in zip(walls[loss], walls["none"], strict=True)]
        detail = f"ratios of the rounds: {seconds(ratios, 2)}; wall (s): {seconds(walls[loss])}"
        figures.append(at_most(f"lost {loss}, wall ratio", median(ratios), LIMIT, detail, timed=True))
        for name in ("left_out_s", "back_s"):
            values = [getattr(one, name) for one in trained[loss]]
            figures.append(note(f"lost {loss}, {name.removesuffix('_s')} after (s)", median(values), seconds(values)))
    rollouts = {loss: median(one.rollout_s for one in trained[loss]) for loss in trained}
    figures += [note(f"rollouts, loss: {loss} (s)", value) for loss, value in rollouts.items()]
    everyone = [one for ones in trained.values() for one in ones]
    missing = sum(iterations * GROUPS - one.groups for one in everyone)
    figures.append(exactly("groups lost", missing, 0))
    figures.append(exactly("episodes that ended in faults", sum(one.faults for one in everyone), 0))
    return figures


def seconds(values: list[float], digits: int = 1) -> str:
    """Return numbers as text."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lost_node", description="Cost of a lost engine node.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--only", choices=LOSSES[1:], help="the moment of the loss; both without it")
    chosen = parser.parse_args()
    losses = LOSSES if chosen.only is None else (LOSSES[0], chosen.only)
    trained: dict[Loss, list[Trained]] = {loss: [] for loss in losses}
    order = random.Random(0)
    began = machine()
    with running_cluster(cpus=1) as cluster, tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as scratch:
        wait_for_nodes(cluster)
        for number in range(chosen.rounds):
            for loss in order.sample(losses, len(losses)):
                folder = Path(scratch) / f"{number} {loss}".replace(" ", "-")
                trained[loss].append(train(cluster, folder, loss, chosen.iterations))
                print(json.dumps({"round": number, "loss": loss, **_facts(trained[loss][-1])}), file=sys.stderr)
    return report({"lost node": judge(trained, chosen.iterations)}, {**machine(), "load_before": began["load"]})


def _facts(one: Trained) -> dict[str, float]:
    return {name: round(getattr(one, name), 2) for name in Trained.__slots__} | {"load": os.getloadavg()[0]}


if __name__ == "__main__":
    sys.exit(main())
