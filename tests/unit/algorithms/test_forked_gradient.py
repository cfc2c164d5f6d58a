"""An episode in several sequences teaches what it teaches in one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.tiny_learners import GRPO_LOSS, as_batch, gradient, make_learner, relative

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.samples import trajectory_samples
from finqa_cli.types import Loss, Sample, Status, Task, Trajectory, Turn
from finqa_testing.tiny_models import make_tiny_qwen3

pytest.importorskip("torch")

TASK = Task(id="q1", prompt="?", split="train", cluster="ACME")


def samples_of(*turns: Turn) -> list[Sample]:
    trajectory = Trajectory(id="t", task=TASK, member=0, seed=1, status=Status.COMPLETED, turns=turns)
    return [*trajectory_samples(trajectory, 0.75)]


@pytest.mark.parametrize("loss", [GRPO_LOSS, CrossEntropyLoss()], ids=["policy gradient", "cross entropy"])
def test_where_the_contents_agree_forks_change_no_gradient(tmp_path: Path, loss: Loss) -> None:
    """Both turns see the same ids before them in either form, so only the weights of the samples could differ."""
    first = Turn(prompt_ids=(5, 6, 7), completion_ids=(8, 9, 10), logprobs=(-5.1, -5.2, -5.3))
    second = Turn(prompt_ids=(11, 12), completion_ids=(13, 14), logprobs=(-5.4, -5.5))
    whole = (*first.prompt_ids, *first.completion_ids, *second.prompt_ids)
    forked = Turn(prompt_ids=whole, restarts=True, completion_ids=second.completion_ids, logprobs=second.logprobs)
    other = samples_of(Turn(prompt_ids=(20, 21), completion_ids=(22, 23, 24, 25), logprobs=(-5.0,) * 4))
    one, many = as_batch(samples_of(first, second) + other), as_batch(samples_of(first, forked) + other)
    assert (len(one.samples), len(many.samples)) == (2, 3)
    assert one.loss_tokens == many.loss_tokens == 9
    learner = make_learner(make_tiny_qwen3(tmp_path / "model"), seed=3)
    assert relative(gradient(learner, many, loss), gradient(learner, one, loss)) <= 1e-6
