"""The training that faults happen to: started, resumed, and compared with a run that nothing happened to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reliability import clock
from finqa_cli.runs.durable_files import sha256_of

ITERATIONS = 3
WORKLOAD = (
    *("--model=embedded", "--sandboxes=8", "--group-size=4", "--limit=8", "--quiet"),
    *("--set=train.target_groups_per_iter=2", "--set=train.keep_checkpoints=0", "--no-preflight"),
)
"""Two evaluations of 8 episodes and iterations of 2 to 4 groups, of a policy that learns."""

COUNTERS = ("timing", "recoveries", "retries")
"""What of the metrics may differ: seconds, and how often a fault was recovered from."""

CLOCK = "RELIABILITY_CLOCK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a finished run says.

    Attributes:
        metrics: Lines of metrics.jsonl without `COUNTERS`.
        rewards: Reward per episode id; None of an episode that ended in a fault.
        repeated: Episodes whose id was recorded before.
        adapters: sha256 of the adapter per checkpoint.
        size: Bytes of trajectories.jsonl.
    """

    metrics: list[dict[str, Any]]
    rewards: Mapping[str, float | None]
    repeated: int
    adapters: Mapping[str, str]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a run differs from the undisturbed one; all zero and empty when it does not."""

    lost: int
    repeated: int
    rewards: int
    metrics: tuple[str, ...]
    adapters: tuple[str, ...]


class Training:
    """One run folder and the processes that work on it, one after the other."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        arguments: tuple[str, ...],
        variables: Mapping[str, str],
        iterations: int = ITERATIONS,
    ) -> None:
        """Starts nothing.

        Args:
            folder: Where the run, its home and the outputs of its processes lie.
            seed: Seed of the training.
            arguments: What is added to the command, such as the sandbox provider.
            variables: What is added to the environment.
            iterations: Iterations of the training.
        """
        self.folder = folder
        self.run = folder / "run"
        self.starts = 0
        self._clock = folder / "clock"
        options = (f"--iterations={iterations}", f"--seed={seed}", f"--run-dir={self.run}")
        self._command = ("train", *WORKLOAD, *options, *arguments)
        paths = (str(Path(clock.__file__).parent), os.environ.get("PYTHONPATH", ""))
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FINQA_", "DAYTONA_"))},
            "FINQA_HOME": str(home_of(folder)),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            CLOCK: str(self._clock),
            **variables,
        }

    def start(self) -> subprocess.Popen[bytes]:
        """Begins the run, or resumes it if there is one."""
        begun = (self.run / "run.json").exists()
        arguments = ("train", f"--resume={self.run}", "--quiet") if begun else self._command
        self.starts += 1
        with self.output().open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "finqa_cli", *arguments],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
            )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs another command of `finqa` in the same environment."""
        return subprocess.run(
            [sys.executable, "-m", "finqa_cli", *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def output(self) -> Path:
        """What the latest process wrote to stderr; outside of the disk that may be full."""
        return self.folder.parent / f"{self.folder.name}-stderr-{self.starts}.log"

    def step_clock(self, seconds: float) -> None:
        """The clock of all its processes is so many seconds ahead from now on."""
        self._clock.write_text(repr(seconds), encoding="ascii")

    def size(self) -> int:
        """Bytes of records."""
        try:
            return (self.run / "trajectories.jsonl").stat().st_size
        except OSError:
            return 0


def home_of(folder: Path) -> Path:
    """FINQA_HOME of a training."""
    return folder / "home"


def read_results(run: Path) -> Results:
    """Reads a finished run."""
    records = _lines(run / "trajectories.jsonl")
    ids = Counter(str(record["id"]) for record in records)
    scored = ("completed", "max_turns", "max_tokens", "timeout", "parse_error")
    adapters = sorted((run / "checkpoints").glob("step_*/policy/adapter_model.safetensors"))
    return Results(
        metrics=[
            {name: value for name, value in line.items() if name not in COUNTERS}
            for line in _lines(run / "metrics.jsonl")
        ],
        rewards={r["id"]: r["reward"] if r["status"] in scored else None for r in records},
        repeated=sum(ids.values()) - len(ids),
        adapters={path.parts[-3]: sha256_of(path) for path in adapters},
        size=(run / "trajectories.jsonl").stat().st_size,
    )


def compare(found: Results, expected: Results) -> Difference:
    """Says in what a run differs from the undisturbed one of the same seed."""
    lost = [id_ for id_ in expected.rewards if found.rewards.get(id_) is None]
    return Difference(
        lost=len(lost),
        repeated=found.repeated + len(found.rewards.keys() - expected.rewards.keys()),
        rewards=sum(found.rewards[id_] != reward for id_, reward in expected.rewards.items() if id_ not in lost),
        metrics=tuple(_different_fields(found.metrics, expected.metrics)),
        adapters=tuple(
            name
            for name in sorted(found.adapters.keys() | expected.adapters.keys())
            if found.adapters.get(name) != expected.adapters.get(name)
        ),
    )


def _different_fields(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> list[str]:
    if len(found) != len(expected):
        return [f"{len(found)} lines for {len(expected)}"]
    return [
        f"line {number} {name}: {one.get(name)!r} for {other.get(name)!r}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
