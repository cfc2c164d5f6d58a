"""What `finqa gc` leaves of a run is all that resuming, evaluating, exporting and comparing it need."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.command_calls import document

from finqa_cli.app import main

pytestmark = pytest.mark.thorough

pytest.importorskip("torch", reason="needs finqa[train]")

FEW = ["--limit=2", "--set=sandbox.options.processes=1", "-q"]
SMALL = [*FEW, "--sandboxes=4", "--group-size=2", "--target-groups-per-iter=2", "--max-rollout-rounds=1"]
LORA = ["--lora-rank=4", "--set=train.keep_checkpoints=0", "--no-preflight", "--seed=3"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a training, an untouched copy of it, and an evaluation of its first checkpoint."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "--model=embedded", *SMALL, *LORA, "--iterations=2", "--run-dir=runs/train"]) == 0
        assert main(["eval", "runs/train/checkpoints/step_1", *FEW, "--run-dir=runs/eval"]) == 0
        shutil.copytree("runs/train", "untouched")
    return folder


def metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run without what a clock decides."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "timing"} for record in records]


def test_a_run_is_resumed_evaluated_exported_and_compared(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    found = document(["gc"], capsys)
    assert found["deleted"] == [] and "left by a killed process" not in str(found["found"])
    gone = [each["path"] for each in document(["gc", "--yes"], capsys)["deleted"]]
    assert "runs/train/checkpoints/step_0" in gone and any(path.startswith("runs/train/policies/v0") for path in gone)
    left = {path.name for path in Path("runs/train/checkpoints").iterdir() if path.is_dir()}
    assert left == {"step_1", "step_2"}, "step 1 was evaluated, and that evaluation names it"
    before, after = (
        document(["eval", run, *FEW, f"--run-dir=again/{Path(run).name}"], capsys)
        for run in ("untouched", "runs/train")
    )
    for name in ("accuracy", "reward_mean", "sampled_tokens_mean", "turns_mean"):
        assert before[name] == after[name], name
    assert main(["export", "runs/train", "--to=peft", "--out=exported", "-q"]) == 0
    assert main(["compare", "runs/train", "runs/eval", "--no-plots", "--out=compared"]) == 0
    for run in ("untouched", "runs/train"):
        assert main(["train", "--resume", run, "--iterations=3", "-q"]) == 0
    assert metrics(Path("runs/train")) == metrics(Path("untouched")), "not a bit differs"
    assert metrics(Path("runs/train"))[-1]["iteration"] == 3
