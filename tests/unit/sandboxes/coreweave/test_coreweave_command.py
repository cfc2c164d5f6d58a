"""Commands with sandboxes of CoreWeave, as processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from unit.sandboxes.coreweave.conftest import RUN, CoreWeaveBench

from finqa_cli.types import ExecutionSpec

pytestmark = pytest.mark.usefixtures("_warm_commands")


async def test_sandboxes_are_listed_from_the_command_line_under_the_old_name_too(bench: CoreWeaveBench) -> None:
    sandbox = await bench.provider().start(ExecutionSpec(), RUN)
    listed = finqa(bench, "sandbox", "ls", "--sandbox", "aviato", "--json")
    entries = json.loads(listed.stdout)["sandboxes"]
    assert [(entry["id"], entry["labels"]) for entry in entries] == [(sandbox.id, RUN)]
    assert "aviato is the old name of cwsandbox" in listed.stderr
    assert bench.loopback.api_key not in listed.stderr + listed.stdout


async def test_faults_of_the_service_are_no_failures_of_the_code(bench: CoreWeaveBench) -> None:
    await bench.configure(unavailable=0.1, lost_reply=0.2, start_failed=0.2, execution_cut=0.1)
    chosen = ["--environment", "code", "--sandbox", "cwsandbox", "--set", "environment.options.family=functions"]
    size = ["--split", "train", "--limit", "8", "--sandboxes", "3", "--json"]
    patient = ["--max-play-retries", "12", "--set", "pool.breaker_share=1"]  # faults are drawn: many may come in a row
    played = finqa(bench, "eval", "scripted", *chosen, *size, *patient)
    assert played.returncode == 0, played.stderr
    report = json.loads(played.stdout)
    assert (report["accuracy"], report["episodes"]) == (1.0, 8)
    stats = await bench.stats()
    assert stats["faults"]
    assert (stats["sandboxes"], stats["duplicates"]) == ([], 0)


def finqa(bench: CoreWeaveBench, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **bench.loopback.environment, "HOME": str(bench.loopback_home)}
    command = [sys.executable, "-m", "finqa_cli", *arguments]
    return subprocess.run(
        command, cwd=bench.loopback_home, env=environment, capture_output=True, text=True, timeout=100
    )
