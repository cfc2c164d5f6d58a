"""PPO as a user runs it, and a run that is resumed after a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import file_schemas
import pytest
import recorded_metrics
from fixtures.command_calls import document, failure
from fixtures.file_checks import check_folder

pytestmark = pytest.mark.thorough

pytest.importorskip("torch", reason="needs finqa[train]")

SMALL = [
    "--model=embedded",
    "--engine=transformers",
    "--sandbox=local",
    "--optimizer=ppo",
    "--sandboxes=12",
    "--group-size=4",
    "--target-groups-per-iter=3",
    "--max-rollout-rounds=2",
    "--limit=4",
    "--iterations=2",
    "--set=optimizer.options.epochs=2",
    "--seed=3",
]


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "timing"} for line in lines]


def test_it_trains_and_a_resumed_run_is_bit_for_bit_the_unbroken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    document(["train", *SMALL, f"--run-dir={whole}"], capsys)
    first, second = (record for record in metrics(whole) if record["kind"] == "train")
    for record in (first, second):
        assert record["informative"] == record["groups"] == 3, "groups of equal rewards carry signal as well"
        assert record["episodes_trained"] == record["episodes"] == 12
        assert record["updates"] + record["updates_skipped"] == 2 * 4
        assert record["logprob_difference_max"] <= 1e-4, "the first step meets the weights that sampled"
        assert record["kl_last_step"] > 0 and record["value_loss"] > 0
    assert first["value_mean"] == first["explained_variance"] == 0
    assert second["value_mean"] != 0 and second["kl_reference"] > 1e-6 > first["kl_reference"]
    check_folder(whole)
    known = set(file_schemas.schema_of(recorded_metrics.TrainLine)["properties"])
    assert {name for name in second if not name.startswith("staleness_tokens_")} <= known

    shutil.copytree(whole, broken)
    shutil.rmtree(broken / "checkpoints" / "step_2")
    document(["train", f"--resume={broken}"], capsys)
    assert metrics(broken) == metrics(whole)
    for name in ("policy/adapter_model.safetensors", "learner/values.safetensors", "learner/optimizer.safetensors"):
        left, right = (run / "checkpoints" / "step_2" / name for run in (broken, whole))
        assert left.read_bytes() == right.read_bytes()


def test_steps_that_two_settings_decide_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    status, errors = failure(["train", *SMALL, "--set=train.updates_per_iteration=2", f"--run-dir={run}"], capsys)
    assert status == 78
    assert "updates_per_iteration=2 has no effect" in errors and "optimizer.options.minibatches=2" in errors
    assert not run.exists()
