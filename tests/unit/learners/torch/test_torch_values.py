"""The value head: its loss by hand, its gradient in any cut, its place in the learner's state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples, relative, same_rows
from fixtures.token_losses import inputs, tensor
from fixtures.typed_losses import typed
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.types import Sample
from finqa_plugins.learners.torch.torch_learner import TorchLearner
from finqa_plugins.learners.torch.value_model import ValueHead, value_loss

CLIPS = {"clip_low": 0.2, "clip_high": 0.2}
PPO_LOSS = typed("policy_gradient", **{**CLIPS, "value_coef": 0.5, "value_clip": 0.2})


def valued(count: int, *, seed: int = 0) -> list[Sample]:
    """With old values and returns on the tokens that carry loss."""
    rng = random.Random(seed)

    def row(sample: Sample) -> tuple[float, ...]:
        return tuple(rng.uniform(-1, 1) if masked else 0.0 for masked in sample.loss_mask)

    return [replace(each, values=row(each), returns=row(each)) for each in random_samples(count, seed=seed)]


def moved(learner: TorchLearner) -> TorchLearner:
    """A few steps away from the base model and from values of 0."""
    for seed in (7, 8):
        learner.update(as_batch(valued(2, seed=seed)), PPO_LOSS)
    return learner


def gradients(learner: TorchLearner, samples: Sequence[Sample], cut: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Of the policy and of the value head."""
    learner._accumulate(as_batch(samples, cut), PPO_LOSS)
    head = learner._values()
    parts = [list(learner._trained.values()), list(head._layer.parameters())]
    flat = [torch.cat([part.grad.flatten() for part in each if part.grad is not None]) for each in parts]
    learner._optimizer.zero_grad(set_to_none=True)
    head.clear()
    return flat


def test_the_schedule_is_that_of_the_value_function_as_well(learner_model: Path) -> None:
    learner = make_learner(learner_model, {"schedule": "linear", "total_steps": 1})
    found = []
    for _ in range(2):
        learner.update(as_batch(valued(2)), PPO_LOSS)
        found.append(learner._values()._layer.weight.detach().clone())
    assert found[0].any() and torch.equal(*found)


@pytest.mark.parametrize("largest", [0.001, 0.0])
def test_gradients_of_policy_and_value_function_are_clipped_apart(learner_model: Path, largest: float) -> None:
    learner = make_learner(learner_model, max_grad_norm=largest)
    found = learner._gradient(as_batch(valued(3)), PPO_LOSS)
    parts = {"grad_norm": learner._trained.values(), "value_grad_norm": learner._values()._layer.parameters()}
    for name, weights in parts.items():
        norm = float(torch.cat([part.grad.flatten() for part in weights if part.grad is not None]).norm())
        assert found[name] > 0.001 and norm == pytest.approx(largest or found[name], rel=1e-3)


def test_the_clipped_value_loss_by_hand() -> None:
    """Old value 0.5, clip 0.2: at 1.0 the clipped value is 0.7, at 0.4 it is 0.4.

    Return 1.2: errors 0.2^2 and 0.5^2, the larger counts, whose gradient is 0. Return 0: errors 1 and 0.49. Within
    the clip both are the same.
    """
    carried = replace(
        inputs(tensor(0, 0, 0), tensor(0, 0, 0), (3,)),
        values=tensor(0.5, 0.5, 0.5),
        returns=tensor(1.2, 0.0, 1.0),
    )
    values = tensor(1.0, 1.0, 0.4).requires_grad_()
    clipped = PolicyGradientLoss(value_coef=0.1, value_clip=0.2)
    loss, sums = value_loss(clipped, values, carried)
    assert loss.item() == pytest.approx(0.1 * 0.5 * (0.25 + 1.0 + 0.36))
    assert float(sums["value_loss"]) == pytest.approx(0.5 * (0.25 + 1.0 + 0.36))
    assert int(sums["value_clip_fraction"]) == 1
    loss.backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, 0.1 * 1.0, 0.1 * -0.6])
    free, _ = value_loss(PolicyGradientLoss(value_coef=0.1), values, carried)
    assert free.item() == pytest.approx(0.1 * 0.5 * (0.04 + 1.0 + 0.36))
    weighted, _ = value_loss(
        PolicyGradientLoss(value_coef=0.1, value_clip=0.2), values, replace(carried, weights=tensor(2.0, 0.0, 0.0))
    )
    assert weighted.item() == pytest.approx(0.1 * 0.25)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ({"value_coef": -1.0}, r"value_coef\n.*greater than or equal to 0"),
        ({"value_clip": 0.2}, "no effect while value_coef is 0"),
    ],
)
def test_numbers_that_make_no_value_loss_are_refused(numbers: dict[str, float], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        PolicyGradientLoss(**numbers)
    with pytest.raises(ValidationError, match="value_coef belong to form ppo, not to gspo"):
        typed("gspo", value_coef=0.1)


def test_samples_without_values_or_returns_are_refused(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    first, second = valued(2)
    with pytest.raises(ValueError, match="0 values for its tokens"):
        learner.update(as_batch([first, replace(second, values=())]), PPO_LOSS)
    with pytest.raises(ValueError, match="0 returns for its tokens"):
        learner.update(as_batch([replace(first, returns=()), second]), PPO_LOSS)


def test_the_learner_has_a_value_function(learner_model: Path) -> None:
    assert make_learner(learner_model).has_value_function


def test_values_begin_at_0_and_are_those_of_the_state_before_the_token(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    samples = valued(3)
    assert all(not any(row) for row in learner.values(samples))
    moved(learner)
    rows = learner.values(samples)
    head = learner._values()
    for sample, row in zip(samples, rows, strict=True):
        with torch.no_grad():
            hidden = learner._causal.base_model(torch.tensor([sample.token_ids])).last_hidden_state[0]
            state_values = head(hidden).tolist()
        wanted = [state_values[p - 1] if masked else 0.0 for p, masked in enumerate(sample.loss_mask)]
        assert row == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("rank", [4, 0])
def test_the_gradient_does_not_depend_on_the_cut(learner_model: Path, rank: int) -> None:
    learner = moved(make_learner(learner_model, lora_rank=rank))
    samples = valued(5, seed=3)
    whole = gradients(learner, samples, [range(5)])
    for cut in ([[0], [1], [2], [3], [4]], [[4, 1], [0, 3, 2]]):
        for one, other in zip(gradients(learner, samples, cut), whole, strict=True):
            assert relative(one, other) < 1e-5


def test_tokens_without_loss_carry_no_value_loss(learner_model: Path) -> None:
    """Values and returns on positions that the policy did not sample change nothing."""
    learner = moved(make_learner(learner_model))
    samples = valued(3, seed=5)
    loud = [
        replace(
            each,
            values=tuple(v if m else 99.0 for v, m in zip(each.values, each.loss_mask, strict=True)),
            returns=tuple(r if m else -99.0 for r, m in zip(each.returns, each.loss_mask, strict=True)),
        )
        for each in samples
    ]
    for one, other in zip(gradients(learner, samples, [range(3)]), gradients(learner, loud, [range(3)]), strict=True):
        assert torch.equal(one, other)


def test_values_learn_their_returns_while_the_policy_stays(learner_model: Path) -> None:
    """Without advantages only the value loss moves anything; another rate is another speed."""
    samples = [replace(each, advantages=(0.0,) * len(each.advantages)) for each in valued(4, seed=1)]
    samples = [replace(each, returns=tuple(0.7 if m else 0.0 for m in each.loss_mask)) for each in samples]
    loss = typed("policy_gradient", **{**CLIPS, "value_coef": 0.5})
    left = {}
    for rate in (0.05, 0.005):
        learner = make_learner(learner_model, {"value_learning_rate": rate})
        reports = [learner.update(as_batch(samples), loss) for _ in range(20)]
        left[rate] = reports[-1].metrics["value_loss"] / reports[0].metrics["value_loss"]
        assert reports[0].metrics["value_loss"] == pytest.approx(0.5 * 0.7**2)
        assert reports[0].metrics["value_grad_norm"] > 0
    assert left[0.05] < 0.05 < left[0.005] < 1


@pytest.mark.parametrize("context", [{}, {"lora_rank": 0}], ids=["adapter", "full"])
def test_a_loaded_learner_continues_to_the_bit(learner_model: Path, tmp_path: Path, context: dict[str, Any]) -> None:
    def steps(learner: TorchLearner, seeds: range) -> TorchLearner:
        for seed in seeds:
            learner.update(as_batch(valued(3, seed=seed), [(0, 1), (2,)]), PPO_LOSS)
        return learner

    unbroken = steps(make_learner(learner_model, **context), range(4))
    first = steps(make_learner(learner_model, **context), range(2))
    first.save(tmp_path / "state")
    second = make_learner(learner_model, **context)
    second.load(tmp_path / "state")
    assert same_rows(second.values(valued(3)), first.values(valued(3)))
    steps(second, range(2, 4))
    for name, part in unbroken._trained.items():
        assert torch.equal(part, second._trained[name])
    for one, other in zip(unbroken._values()._layer.parameters(), second._values()._layer.parameters(), strict=True):
        assert torch.equal(one, other)
    assert any(torch.any(part != 0) for part in second._values()._layer.parameters())


def test_a_published_adapter_holds_no_value_head_and_other_methods_have_none(
    learner_model: Path, tmp_path: Path
) -> None:
    learner = moved(make_learner(learner_model))
    learner.publish(tmp_path / "policy", 1)
    published = load_file(tmp_path / "policy" / "adapter_model.safetensors")
    assert published and all("lora" in name for name in published)
    assert {path.name for path in (tmp_path / "policy").iterdir()} <= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
    }
    grpo = make_learner(learner_model)
    grpo.update(as_batch(random_samples(2)), GRPO_LOSS)
    grpo.save(tmp_path / "grpo")
    assert not (tmp_path / "grpo" / "values.safetensors").exists()


def test_a_value_head_that_took_no_step_is_saved_and_loaded(learner_model: Path, tmp_path: Path) -> None:
    fresh, other = make_learner(learner_model), make_learner(learner_model)
    fresh.values(valued(1))
    fresh.save(tmp_path)
    other.load(tmp_path)
    for learner in (fresh, other):
        moved(learner)
    assert same_rows(other.values(valued(2)), fresh.values(valued(2)))


def test_loading_a_state_without_a_value_head_takes_it_away(learner_model: Path, tmp_path: Path) -> None:
    fresh = make_learner(learner_model)
    fresh.save(tmp_path / "fresh")
    learner = moved(make_learner(learner_model))
    assert any(any(row) for row in learner.values(valued(2)))
    learner.load(tmp_path / "fresh")
    assert not any(any(row) for row in learner.values(valued(2)))


@pytest.mark.parametrize("damage", ["torn", "width", "moments"])
def test_a_damaged_value_head_is_refused_and_nothing_changes(learner_model: Path, tmp_path: Path, damage: str) -> None:
    learner = moved(make_learner(learner_model))
    learner.save(tmp_path)
    file = tmp_path / "values.safetensors"
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:-8])
    else:
        tensors = load_file(file)
        changed = {"weight": torch.zeros(1, 3)} if damage == "width" else {}
        kept = {name: value for name, value in tensors.items() if damage != "moments" or name != "step.bias"}
        save_file(kept | changed, file)
    learner.update(as_batch(valued(2, seed=9)), PPO_LOSS)
    before = learner.values(valued(2))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        learner.load(tmp_path)
    assert same_rows(learner.values(valued(2)), before)


def test_a_step_that_is_not_finite_moves_neither_policy_nor_values(learner_model: Path) -> None:
    learner = moved(make_learner(learner_model))
    before = learner.values(valued(2))
    broken = [replace(each, returns=tuple(float("nan") if m else 0.0 for m in each.loss_mask)) for each in valued(2)]
    with pytest.raises(FinqaError, match="was skipped:"):
        learner.update(as_batch(broken), PPO_LOSS)
    assert same_rows(learner.values(valued(2)), before)


def test_one_rate_moves_values_alike_at_any_width() -> None:
    """The first AdamW step moves each weight by the rate over the width, and so the value by the mean of |h|."""
    for width in (8, 512):
        head = ValueHead(width, torch.device("cpu"))
        states = torch.ones(1, width)
        head(states).sum().backward()  # type: ignore[no-untyped-call]
        head.step(0.01)
        assert head(states).item() == pytest.approx(-0.02, rel=1e-3), "weights and bias, 0.01 each"
