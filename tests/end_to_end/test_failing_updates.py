"""A step that cannot be taken, as a user sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.app import main
from finqa_cli.runs import checkpoints

pytestmark = pytest.mark.thorough

pytest.importorskip("torch", reason="needs finqa[train]")


@pytest.mark.usefixtures("empty_folder")
def test_a_loss_that_is_no_number_names_the_iteration_and_the_checkpoint_that_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rollouts = ["--sandboxes=4", "--group-size=8", "--target-groups-per-iter=2", "--max-rollout-rounds=4", "--limit=1"]
    two_steps = ["--lr=1e30", "--set=train.updates_per_iteration=2"]  # the second meets what the first has broken
    assert main(["train", *rollouts, *two_steps, "--iterations=1", "--run-dir=r", "--quiet"]) == 1
    told = capsys.readouterr().err
    newest = checkpoints.latest(Path("r"))
    assert newest is not None and f"The newest valid policy is {newest.path}." in told
    assert "error: Iteration " in told and "The first micro-batch with this error is" in told and "of episode '" in told
