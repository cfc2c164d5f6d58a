"""The benchmark of 500 sandboxes: all of it in small, and its soak in full.

The small one is judged by its counts alone: nothing lost, doubled, left behind or grown. Times are for the full one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ["ready", "throughput", "chaos", "creates", "signals", "client", "engine", "soak"]


def benchmark(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the document of `python -m benchmarks.sandboxes`."""
    command = [sys.executable, "-m", "benchmarks.sandboxes", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FINQA_", "DAYTONA_"))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    *table, document = done.stdout.splitlines()
    print("\n".join(table))  # shown when an assertion fails
    return done.returncode, json.loads(document)


def failed(document: dict[str, Any]) -> list[str]:
    return [f"{figure['part']}: {figure['name']}" for figure in document["figures"] if not figure["passed"]]


@pytest.mark.slow
def test_every_part_runs_and_loses_nothing() -> None:
    status, document = benchmark("--quick", "--seed", "3")
    assert [part for part in PARTS if any(figure["part"] == part for figure in document["figures"])] == PARTS
    assert not failed(document)
    assert (status, document["passed"], document["sandboxes"], document["seed"]) == (0, True, 20, 3)
    judged = {figure["name"] for figure in document["figures"] if figure["limit"]}
    assert {"groups lost", "orphans while the pool is full", "duplicates", "growth of open files"} <= judged


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thirty_minutes_at_500_sessions_leave_nothing_behind() -> None:
    status, document = benchmark("--only", "soak")
    assert not failed(document) and status == 0
