"""A plugin brings a loss and the function that computes it: the example of plugins/README.md."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.graded_groups import graded_group
from fixtures.tiny_learners import as_batch, make_learner, random_samples

from finqa_cli.algorithms.credit import assign_credit
from finqa_cli.contracts import Optimizer
from finqa_cli.errors import ConfigError
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import Updates
from finqa_cli.types import Credit, Group, Loss, Turn

PACKAGE = Path(__file__).parents[3] / "fixtures" / "plugin_package"


@pytest.fixture
def squared(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PACKAGE))
    return importlib.import_module("finqa_example.squares").SquaredLoss


def test_the_learner_takes_the_function_that_the_loss_names(learner_model: Path, squared: Any) -> None:
    learner = make_learner(learner_model, learning_rate=1e-2)
    samples = random_samples(4)
    scored = learner.logprobs(samples)
    by_hand = [
        (float(logp) + 2.0) ** 2 for row, one in zip(scored, samples, strict=True) for logp in row[one.loss_mask]
    ]
    first = learner.update(as_batch(samples), squared(target=-2.0))
    assert first.loss == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-5)
    assert first.metrics["apart"] == pytest.approx(first.loss, rel=1e-6)
    cut = make_learner(learner_model, learning_rate=1e-2)
    assert cut.update(as_batch(samples, [[0], [1, 2], [3]]), squared(target=-2.0)).loss == pytest.approx(first.loss)
    assert learner.update(as_batch(samples), squared(target=-2.0)).loss < first.loss, "steps lower it"


def test_a_method_trains_with_it(learner_model: Path, squared: Any) -> None:
    class Squares(Optimizer):
        def credit(self, group: Group) -> Credit:
            return Credit(advantages=tuple(trajectory.reward for trajectory in group.trajectories))

        def loss(self) -> Loss:
            return squared(normalization="sequence")

    learner = make_learner(learner_model)
    turns = (Turn(prompt_ids=(1, 2), completion_ids=(3, 4, 5), logprobs=(-1.0, -1.0, -1.0)),)
    groups = [graded_group(1, 0.5, turns=turns)]
    method = Squares()

    async def reports() -> list[float]:
        updates = Updates(learner, method, TrainSettings(max_staleness=0))
        return [report.loss async for report in updates.take(groups, assign_credit(method, groups))]

    before = [part.detach().clone() for part in learner._trained.values()]
    (loss,) = asyncio.run(reports())
    assert loss > 0
    assert not all(torch.equal(old, new) for old, new in zip(before, learner._trained.values(), strict=True))
    with pytest.raises(ConfigError, match=r"SquaredLoss does not use the sampler's log-probabilities"):
        Updates(learner, method, TrainSettings(max_staleness=1))
