"""What PPO asks for: credit that excludes faults alone, GAE, passes, a penalty per token, a loss with values."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.graded_groups import graded_group
from fixtures.typed_losses import typed

from finqa_cli.contracts import Optimizer
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import AdvantageEstimation, KlPenalty, Passes, Status


def make(**options: Any) -> Any:
    return registry().create("optimizer", "ppo", options)


def test_every_scored_member_is_trained_on_whatever_the_others_got() -> None:
    assert make().credit(graded_group(1, 0, Status.ENGINE_ERROR)).advantages == (1.0, 1.0, None)
    same = make().credit(graded_group(0, 0))
    assert same.advantages == (1.0, 1.0) and not same.dropped
    assert make().credit(graded_group(Status.ENGINE_ERROR)).dropped == "too_few"
    with pytest.raises(FinqaError, match="not a finite number"):
        make().credit(graded_group(float("nan"), 0))


def test_what_it_asks_for_by_default() -> None:
    ppo = make()
    assert isinstance(ppo, Optimizer)
    assert ppo.estimation() == AdvantageEstimation(gamma=1.0, lam=0.95, whiten=True)
    assert ppo.passes() == Passes(epochs=4, minibatches=4, target_kl=0.02)
    assert ppo.kl_penalty() == KlPenalty(coefficient=0.05, estimator="k1")
    numbers = {"clip_low": 0.2, "clip_high": 0.2, "value_coef": 0.1, "value_clip": 0.2}
    assert ppo.loss() == typed("policy_gradient", **numbers)


def test_every_option_reaches_what_it_is_for() -> None:
    ppo = make(kl="loss", kl_coef=0.1, value_clip=0, entropy_coef=0.01, normalization="sequence", lam=0, gamma=0.9)
    numbers = {"clip_low": 0.2, "clip_high": 0.2, "value_coef": 0.1, "kl_k3": 0.1, "entropy_coef": 0.01}
    assert ppo.loss() == typed("policy_gradient", **numbers, normalization="sequence")
    assert ppo.kl_penalty() is None
    assert (ppo.estimation().lam, ppo.estimation().gamma) == (0, 0.9)
    assert make(kl_coef=0.2).kl_penalty().coefficient == 0.2, "kl is on, so its coefficient has an effect"
    assert make(target_kl=0, epochs=1, minibatches=2).passes() == Passes(epochs=1, minibatches=2)


@pytest.mark.parametrize(
    "options",
    [{"gamma": 0}, {"lam": 1.1}, {"epochs": 0}, {"minibatches": 0}, {"value_coef": 0}, {"target_kl": -1}, {"vf": 1}],
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        make(**options)
