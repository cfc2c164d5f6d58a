"""Learner processes that a command starts itself, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document, failure
from fixtures.text_pairs import make_pairs
from safetensors.torch import load_file

from finqa_cli.app import main
from finqa_cli.processes import start_time
from finqa_cli.runs.jsonl import read_jsonl

pytest.importorskip("torch", reason="needs finqa[train]")

pytestmark = pytest.mark.usefixtures("empty_folder")

BUDGET = 150
SMALL = [
    "--model=embedded",
    "--engine=transformers",
    "--sandbox=local",
    "--sandboxes=2",
    "--group-size=4",
    "--target-groups-per-iter=2",
    "--max-rollout-rounds=2",
    "--limit=2",
    "--seed=3",
    f"--set=train.token_budget={BUDGET}",
]
PAIRS = ["--epochs=6", "--pairs-per-step=4", "--validate-every=2", "--lr=1e-3", "--model=model", "-q"]
TWO = "--learner-processes=2"
KILLED = re.compile(r"error: Learner process 2 of 2 \(pid \d+\) was ended by SIGKILL\.")
Memory = Callable[[int, str], None]
KillWhen = Callable[[Callable[[], bool]], threading.Thread]


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINQA_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def others(leader: int = os.getpid()) -> list[int]:
    """Processes of a learner that the leader started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == leader and b"distributed.serving" in words:
                found.append(int(folder.name))
    return found


@pytest.fixture
def kill_when() -> KillWhen:
    """Kills the other learner process once something is so."""

    def start(condition: Callable[[], bool]) -> threading.Thread:
        def wait() -> None:
            while not condition():
                time.sleep(0.05)
            for pid in others():
                os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    return start


def records(run: str, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(Path(run, "metrics.jsonl")) if record["kind"] == kind]


@pytest.mark.slow
def test_two_processes_that_train_started_do_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", *SMALL, "--iterations=1", "--set=train.updates_per_iteration=2"]
    document([*arguments, "--run-dir=one"], capsys)
    document([*arguments, "--run-dir=two", TWO], capsys)
    (theirs,), (ours,) = (records(run, "train") for run in ("one", "two"))
    assert ours["tokens"] == theirs["tokens"] > 4 * BUDGET and ours["updates"] == 2
    for name in ("loss", "grad_norm", "entropy", "kl"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name
    left, right, start = (
        load_file(f"{run}/policy/adapter_model.safetensors")
        for run in ("two/checkpoints/step_1", "one/checkpoints/step_1", "one/checkpoints/step_0")
    )
    assert left.keys() == right.keys()
    assert max(float((left[name] - right[name]).abs().max()) for name in right) < 1e-5
    assert max(float((start[name] - right[name]).abs().max()) for name in right) > 1e-3
    assert not others()


@pytest.mark.slow  # below a process is killed in a step
def test_a_process_that_is_killed_during_rollouts_ends_the_run_which_can_be_resumed(
    capsys: pytest.CaptureFixture[str], kill_when: KillWhen
) -> None:
    killer = kill_when(lambda: Path("run/checkpoints/step_1").exists())
    status, said = failure(["train", *SMALL, "--iterations=50", "--run-dir=run", TWO], capsys)
    killer.join()
    assert status == 70 and KILLED.search(said) and said.endswith("fix: finqa train --resume run\n"), said
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed" and not others()
    done = records("run", "train")[-1]["iteration"]
    assert main(["train", "--resume=run", f"--iterations={done + 1}"]) == 0
    assert [record["iteration"] for record in records("run", "train")] == [*range(1, done + 2)]


@pytest.mark.slow
def test_a_process_that_is_killed_in_a_step_ends_the_run_which_can_be_resumed(
    capsys: pytest.CaptureFixture[str], kill_when: KillWhen
) -> None:
    make_pairs()
    capsys.readouterr()
    killer = kill_when(lambda: Path("run/checkpoints/step_2").exists())
    status, said = failure(["dpo", "p", *PAIRS, "--run-dir=run", TWO], capsys)
    killer.join()
    assert status == 70 and KILLED.search(said) and said.endswith("fix: finqa dpo --resume run\n"), said
    assert not others()
    assert main(["dpo", "--resume=run", "-q"]) == 0
    assert [record["iteration"] for record in records("run", "dpo")] == [*range(1, 12)]


@pytest.mark.slow  # above a killed process leaves none
def test_a_killed_leader_leaves_no_process_and_its_secrets_stay_with_it() -> None:
    make_pairs()
    leader = subprocess.Popen(
        [sys.executable, "-m", "finqa_cli", "dpo", "p", *PAIRS, "--run-dir=run", TWO],
        env={**os.environ, "DAYTONA_API_KEY": "first-5b1e", "HF_TOKEN": "second-5b1e"},
        stderr=subprocess.PIPE,
    )
    try:
        while not (found := others(leader.pid)) or not Path("run/checkpoints/step_2").exists():
            assert leader.poll() is None, leader.stderr and leader.stderr.read()
            time.sleep(0.05)
        (other,) = found
        variables = Path(f"/proc/{other}/environ").read_bytes()
        assert b"PATH=" in variables and b"5b1e" not in variables
    finally:
        leader.kill()
        leader.communicate()
    while start_time(other) is not None:
        time.sleep(0.05)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Gives the device of the first or the second process memory for so many tokens of a training pass."""
    patch = """
import sys

if HERE or "finqa_plugins.learners.torch.distributed.serving" in sys.orig_argv:
    import torch
    from finqa_plugins.learners.torch.distributed.sharding import PolicyForward

    forward = PolicyForward.forward

    def limited(self, inputs, *rest):
        if torch.is_grad_enabled() and inputs.token_ids.numel() > TOKENS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, inputs, *rest)

    PolicyForward.forward = limited
"""

    def hold(tokens: int, process: str) -> None:
        from finqa_plugins.learners.torch.distributed.sharding import PolicyForward

        code = patch.replace("TOKENS", str(tokens))
        if process == "first":
            monkeypatch.setattr(PolicyForward, "forward", PolicyForward.forward)  # put back after the test
            exec(code.replace("HERE", "True"), {})
        else:
            (tmp_path / "site").mkdir(exist_ok=True)
            (tmp_path / "site" / "sitecustomize.py").write_text(code.replace("HERE", "False"))
            monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    return hold


def full(run: str) -> list[dict[str, Any]]:
    return [one for one in read_jsonl(Path(run, "events.jsonl")) if one["event"] == "out_of_memory"]


def test_a_run_whose_device_is_full_completes_with_smaller_micro_batches(
    capsys: pytest.CaptureFixture[str], memory: Memory
) -> None:
    make_pairs()
    capsys.readouterr()
    document(["dpo", "p", *PAIRS, "--run-dir=whole"], capsys)
    memory(300, "first")
    assert main(["dpo", "p", *PAIRS[:-1], "--run-dir=parted"]) == 0
    ours, theirs = records("parted", "dpo"), records("whole", "dpo")
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=1e-5)
    assert ours[0]["grad_norm"] == pytest.approx(theirs[0]["grad_norm"], rel=1e-5) and len(ours) == len(theirs)
    (event,) = full("parted")
    assert event["tokens"] > 300 > event["token_budget"] and event["work"] == "update"
    told = (
        f"does not have enough memory for a micro-batch of {event['tokens']} tokens; from now on, "
        "micro-batches have at most"
    )
    assert capsys.readouterr().err.count(told) == 1


def test_a_pair_that_no_device_holds_ends_the_run_and_is_named(
    capsys: pytest.CaptureFixture[str], memory: Memory
) -> None:
    make_pairs()
    capsys.readouterr()
    memory(20, "first")
    status, said = failure(["dpo", "p", *PAIRS, "--run-dir=run"], capsys)
    assert status == 71 and "bug" not in said
    assert re.search(r"too small for episode '\d/yes' \(\d+ tokens\) and episode '\d/no' \(\d+ tokens\), which", said)
    assert "fix: a new run with a smaller --max-gen-tokens" in said


@pytest.mark.slow  # above one process has none, and a killed process ends the run of two
@pytest.mark.parametrize("process", ["first", "second"])
def test_one_of_two_processes_without_memory_ends_the_run_which_is_resumed_with_smaller_micro_batches(
    process: str, capsys: pytest.CaptureFixture[str], memory: Memory
) -> None:
    make_pairs()
    capsys.readouterr()
    memory(100, process)
    status, said = failure(["dpo", "p", *PAIRS, "--set=train.token_budget=250", "--run-dir=run", TWO], capsys)
    assert status == 71 and "fix: finqa dpo --resume run\n" in said and not others()
    assert ("Learner process 2 of 2 failed: " in said) == (process == "second")
    (event,) = full("run")
    assert 50 < event["token_budget"] <= 125
    assert main(["dpo", "--resume=run", "-q"]) == 0
    assert [record["iteration"] for record in records("run", "dpo")] == [*range(1, 12)]
    assert full("run") == [event]
