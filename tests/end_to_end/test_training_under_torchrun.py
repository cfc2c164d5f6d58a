"""Commands that several processes share, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.command_calls import document
from fixtures.text_pairs import make_pairs
from safetensors.torch import load_file

from finqa_cli.app import main
from finqa_cli.errors import ConfigError
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.training.torchrun import leading

pytest.importorskip("torch", reason="needs finqa[train]")

pytestmark = pytest.mark.usefixtures("empty_folder")

HANG_GUARD_S = 300
PAIRS = ["--epochs=2", "--pairs-per-step=4", "--validate-every=2", "--lr=1e-3", "--model=model", "-q"]


@pytest.mark.slow  # tests/unit/learners/torch/test_sharded_training.py runs under torchrun as well
def test_two_processes_train_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    make_pairs()
    capsys.readouterr()
    alone = document(["dpo", "p", *PAIRS, "--run-dir=one"], capsys)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*torchrun, "-m", "finqa_cli", "dpo", "p", *PAIRS, "--run-dir=two", "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_GUARD_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    shared = json.loads(ended.stdout)
    assert shared["after"]["accuracy"] == alone["after"]["accuracy"] and shared["steps"] == alone["steps"] == 4
    assert shared["after"]["margin"] == pytest.approx(alone["after"]["margin"], rel=1e-4)
    ours, theirs = (list(read_jsonl(Path(run, "metrics.jsonl"))) for run in ("two", "one"))
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        for name in {"loss", "grad_norm", "margin"} & set(right):
            assert left[name] == pytest.approx(right[name], rel=1e-5, abs=1e-6)
    left, right = (load_file(f"{run}/checkpoints/final/adapter_model.safetensors") for run in ("two", "one"))
    assert left.keys() == right.keys()
    assert all(float((left[name] - right[name]).norm()) <= 1e-5 * float(right[name].norm()) + 1e-6 for name in right)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_command_without_a_learner_is_refused_and_said_once(
    rank: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # put back what the command replaces
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("RANK", rank)
    for name in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    pauses: list[float] = []
    monkeypatch.setattr("finqa_cli.commands.shared.perform.time.sleep", pauses.append)
    assert main(["eval", "scripted"]) == 2
    said = capsys.readouterr().err
    assert len(pauses) == int(rank)  # the first is heard before torchrun ends it for another's failure
    assert said == "" if rank == "1" else "torchrun is for train, sft, dpo" in said


def test_a_learner_for_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ConfigError, match="'strange' trains in one process, but torchrun started 2"),
        leading("strange"),
    ):
        pytest.fail("the command began")


def test_without_torchrun_the_learner_is_not_asked() -> None:
    with leading("strange"):
        pass
