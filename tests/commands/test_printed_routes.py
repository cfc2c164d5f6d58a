"""Routes of the published documents that once had no way out: only what is printed is followed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from remedies.following import run, ways

from finqa_plugins.environments.forecast import make_rows

pytestmark = pytest.mark.usefixtures("empty_folder")


def follow(command: str, capsys: pytest.CaptureFixture[str], most: int = 4) -> list[str]:
    """Run a command, and after each failure do what its first printed way says; returns all command lines."""
    ran = []
    for _ in range(most):
        ran.append(command)
        capsys.readouterr()
        if run(command) == 0:
            return ran
        printed = capsys.readouterr().err
        error, _, fix = printed.rpartition("\nfix: ")
        way = next(iter(ways(fix.strip(), command, {}, error)), None)
        assert way is not None and (way.commands or way.changed != command), printed
        for each in way.commands:
            ran.append(each)
            assert run(each) == 0, each
        command = way.changed or command
    raise AssertionError(ran)


@pytest.mark.thorough
def test_the_experiment_on_generated_forecasts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows.main(["--out", "made", "--format", "jsonl"])
    Path("data").mkdir()
    for split in ("train", "test"):
        shutil.copy(f"made/{split}.jsonl", f"data/{split}_4b_model_forecast_2000.jsonl")
    for name, value in {
        "EPOCHS": "1",
        "TRAIN_ROWS": "84",
        "TEST_ROWS": "28",
        "BATCH_SIZE": "42",
        "NUM_GPUS": "2",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEARNER_GPUS", "1")
    settings = ("engine=transformers", "model.name=embedded-forecast", "train.learner_processes=1", "trackers=[]")
    settings += ("generation.engine_replicas=1", "model.max_model_len=auto")
    flags = " ".join(f"--set {shlex.quote(each)}" for each in settings)
    ran = follow(f"experiment run financial_qa --only 'qwen3_4b_*' --dry-run {flags}", capsys)
    assert any(line.startswith("data prepare data/train_4b_model_forecast_2000.jsonl --for forecast") for line in ran)
    assert "--set data.path=divided" in ran[-1] and "companies" not in "".join(ran)
