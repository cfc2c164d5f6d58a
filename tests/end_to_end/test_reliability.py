"""`python -m benchmarks.reliability`: its cheapest parts in every run of the tests, a few seeds of chaos when slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


def benchmark(out: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """The exit status, the table and the document."""
    command = [sys.executable, "-m", "benchmarks.reliability", *arguments, f"--out={out}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FINQA_", "DAYTONA_"))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert out.exists(), done.stderr
    print(done.stderr, done.stdout)  # shown when an assertion fails
    return done.returncode, done.stdout, json.loads(out.read_text())


def test_the_cheapest_parts(tmp_path: Path) -> None:
    parts = ("--only=R2", "--only=R3", "--only=R25")
    status, table, document = benchmark(tmp_path / "out.json", "--quick", *parts)
    assert (status, document["passed"]) == (0, True)
    assert document["verdicts"] == {"R2": "does not apply", "R3": "pass", "R25": "pass"}
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| R2", "| R3", "| R25"]
    values = {figure["name"]: figure["value"] for figure in document["figures"]}
    assert values["loadable checkpoints"] == 10 and values["tests that fail"] == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_chaos_of_a_few_seeds(tmp_path: Path) -> None:
    status, _, document = benchmark(tmp_path / "out.json", "--only=chaos", "--seeds=4", "--seed=100", "--at-once=2")
    values = {figure["name"]: figure["value"] for figure in document["figures"]}
    assert values["seeds that pass"] == 4 and values["faults that happened"] >= 12
    assert status == 0
