"""The suite of every learner on the one of PyTorch: an adapter, and all weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.contracts import Learner, LearnerContext
from finqa_cli.extend import registry
from finqa_testing.contract.learner_suite import *  # noqa: F403  the tests themselves
from finqa_testing.contract.learner_suite import Make

pytest.importorskip("torch")


@pytest.fixture(params=[4, 0], ids=["adapter", "whole"])
def make(request: pytest.FixtureRequest) -> Make:
    def made(model: Path) -> Learner:
        context = LearnerContext(
            model=str(model),
            learning_rate=1e-3,
            lora_rank=request.param,
            lora_target_modules=("q_proj", "v_proj", "down_proj") if request.param else (),
        )
        learner: Learner = registry().create("learner", "torch", {"publish_dtype": "float32"}, context)
        return learner

    return made


@pytest.fixture
def loss() -> PolicyGradientLoss:
    return PolicyGradientLoss(clip_low=0.2, clip_high=0.2)
