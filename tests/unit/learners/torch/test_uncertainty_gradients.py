"""What the uncertainty of questions does to a real gradient: nothing on GRPO's rewards, on advantages what it says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.graded_groups import graded_group
from fixtures.tiny_learners import gradient, make_learner, relative

from finqa_cli.algorithms.credit import assign_credit, batch_credit, credited_samples
from finqa_cli.algorithms.losses import weigh_samples
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import Optimizer
from finqa_cli.settings import TrainSettings
from finqa_cli.training.rl.updates import training_loss
from finqa_cli.types import Group, Rewards, Turn
from finqa_plugins.environments.forecast.forecast_verdict import uncertainty_weight
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.optimizers.grpo import Grpo, GrpoConfig
from finqa_plugins.optimizers.reinforce import Reinforce, ReinforceConfig, Rloo, RlooConfig

WEIGHTS = [uncertainty_weight(level, u0=0.3, u_hi=0.5, w_hi=0.5) for level in (0.1, 0.9)]

STANDARDISED: dict[str, Optimizer] = {
    name: Grpo(GrpoConfig.model_validate({"variant": name})) for name in ("grpo", "dapo", "gspo", "cispo")
}
METHODS: dict[str, Optimizer] = {
    **STANDARDISED,
    "dr_grpo": Grpo(GrpoConfig(variant="dr_grpo")),
    "batch std": Grpo(GrpoConfig(normalize_std="batch")),
    "rloo": Rloo(RlooConfig()),
    "reinforce": Reinforce(ReinforceConfig()),
}


@pytest.fixture(scope="module")
def learner(learner_model: Path) -> TorchLearner:
    return make_learner(learner_model, lora_rank=0)


def groups(on_rewards: Sequence[float] = (1, 1), on_advantages: Sequence[float] = (1, 1)) -> list[Group]:
    """A certain and an uncertain question with factors on their rewards, and on the advantages of their attempts."""
    rng = random.Random(0)
    made = []
    for number, (factor, weight) in enumerate(zip(on_rewards, on_advantages, strict=True)):
        group = graded_group(0.2, 1.0, 0.5, task=f"q{number}")
        members = []
        for each in group.trajectories:
            ids = tuple(rng.randrange(260) for _ in range(6))
            turn = Turn(prompt_ids=(1, 2), completion_ids=ids, logprobs=(-5.6,) * len(ids))
            rewards = Rewards(total=factor * (each.reward or 0.0), weight=weight)
            members.append(replace(each, turns=(turn,), rewards=rewards))
        made.append(replace(group, trajectories=tuple(members)))
    return made


def step(learner: TorchLearner, method: Optimizer, of: list[Group]) -> torch.Tensor:
    """The gradient of an iteration with these groups."""
    credits = batch_credit(method, of, assign_credit(method, of))
    loss = training_loss(method, TrainSettings())
    samples = weigh_samples(credited_samples(of, credits), loss)
    assert len(samples) == 6
    return gradient(learner, pack(samples, token_budget=10_000, max_rows=8), loss)


@pytest.mark.parametrize("name", STANDARDISED)
def test_on_the_reward_the_gradient_stays_as_it_is(learner: TorchLearner, name: str) -> None:
    method = STANDARDISED[name]
    assert relative(step(learner, method, groups(on_rewards=WEIGHTS)), step(learner, method, groups())) < 1e-5


@pytest.mark.parametrize("name", METHODS)
def test_on_the_advantage_each_question_counts_as_it_weighs(learner: TorchLearner, name: str) -> None:
    method = METHODS[name]
    plain = step(learner, method, groups())
    certain = step(learner, method, groups(on_advantages=(2, 1))) - plain
    weighted = step(learner, method, groups(on_advantages=WEIGHTS))
    assert relative(weighted, WEIGHTS[0] * certain + WEIGHTS[1] * (plain - certain)) < 1e-4
    assert float(torch.cosine_similarity(plain, weighted, dim=0)) < 0.95, "no learning rate makes up for it"
