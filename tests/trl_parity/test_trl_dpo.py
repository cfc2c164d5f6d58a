"""Losses on pairs beside TRL's DPOTrainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs finqa[train]")

from trl_parity.recorded import as_preferences, random_pairs
from trl_parity.sides import Found, Policy, ask_trl, assert_same, preferred

from finqa_cli.algorithms.pair_batches import PairSamples
from finqa_plugins.optimizers.recorded_methods import Dpo, DpoConfig

PAIRS = random_pairs(2, 5)
LENGTH = 12
EQUALLY_LONG = random_pairs(4, 5, length=LENGTH)
SMOOTHING = 0.2
AGREE = {
    "sigmoid": {"loss_type": "sigmoid", "beta": 0.1},
    "stronger": {"loss_type": "sigmoid", "beta": 0.5},
    "hinge": {"loss_type": "hinge", "beta": 0.1},
}


@pytest.fixture(scope="module")
def theirs(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    def job(pairs: Sequence[PairSamples], **config: Any) -> dict[str, Any]:
        return {"trainer": "dpo", "config": config, "pairs": as_preferences(pairs)}

    jobs = {name: job(PAIRS, **config) for name, config in AGREE.items()}
    jobs |= {f"free {name}": job(PAIRS, **config) | {"reference_free": True} for name, config in AGREE.items()}
    smoothed = {"loss_type": "aot", "beta": 0.1, "label_smoothing": SMOOTHING}
    jobs |= {f"smoothed {place}": job([pair], **smoothed) for place, pair in enumerate(PAIRS)}
    jobs["ipo"] = job(EQUALLY_LONG, loss_type="ipo", beta=0.1)
    return ask_trl(tmp_path_factory.mktemp("trl-dpo"), policy, jobs)


@pytest.mark.parametrize("name", list(AGREE))
def test_sigmoid_and_hinge(policy: Policy, theirs: dict[str, Found], name: str) -> None:
    assert_same(preferred(policy.learner(), Dpo(DpoConfig.model_validate(AGREE[name])), PAIRS), theirs[name])


@pytest.mark.parametrize("name", list(AGREE))
def test_without_a_reference(policy: Policy, theirs: dict[str, Found], name: str) -> None:
    """TRL has no such option; it is given a reference that finds every attempt equally likely."""
    optimizer = Dpo(DpoConfig.model_validate(AGREE[name] | {"reference_free": True}))
    assert_same(preferred(policy.learner(), optimizer, PAIRS), theirs[f"free {name}"])


def test_label_smoothing(policy: Policy, theirs: dict[str, Found]) -> None:
    """In TRL `sigmoid` leaves it out; `aot` has the same form over sorted pairs, so with one pair it is ours."""
    parts = [theirs[f"smoothed {place}"] for place in range(len(PAIRS))]
    mean = Found(
        loss=sum(part.loss for part in parts) / len(parts),
        gradient=sum((part.gradient for part in parts[1:]), parts[0].gradient) / len(parts),
    )
    optimizer = Dpo(DpoConfig(loss_type="sigmoid", beta=0.1, label_smoothing=SMOOTHING))
    assert_same(preferred(policy.learner(), optimizer, PAIRS), mean)


def test_ipo_of_equal_lengths_differs_by_its_division_alone(policy: Policy, theirs: dict[str, Found]) -> None:
    """TRL's (h / L - 1 / (2 beta))^2 is our (h - 1 / (2 beta'))^2 / L^2 with beta' = beta / L."""
    ours = preferred(policy.learner(), Dpo(DpoConfig(loss_type="ipo", beta=0.1 / LENGTH)), EQUALLY_LONG)
    assert_same(ours.scaled(1 / LENGTH**2), theirs["ipo"])
