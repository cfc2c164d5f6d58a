"""Every method's loss in the learner: against its definition, in any cut, and with a reference policy."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, gradient, make_learner, random_samples, relative, same_rows

from finqa_cli.algorithms.losses import PolicyGradientLoss, weigh_samples
from finqa_cli.algorithms.packing import pack
from finqa_cli.extend import registry
from finqa_cli.types import Loss, Sample
from finqa_plugins.learners.torch.torch_learner import TorchLearner

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"variant": "grpo", "kl": "loss"}),
    "dapo": ("grpo", {"variant": "dapo", "dual_clip": 3.0}),
    "dr_grpo": ("grpo", {"variant": "dr_grpo", "kl": "loss", "kl_estimator": "k1"}),
    "gspo": ("grpo", {"variant": "gspo", "clip_low": 0.1, "clip_high": 0.1}),
    "cispo": ("grpo", {"variant": "cispo", "entropy_coef": 0.01}),
    "rloo": ("rloo", {"normalization": "constant", "normalization_length": 1, "entropy_coef": 0.01}),
    "reinforce": ("reinforce", {"normalization": "sequence"}),
}
LOSSES: dict[str, Loss] = {
    name: registry().create("optimizer", optimizer, options).loss() for name, (optimizer, options) in OPTIONS.items()
}
EVERY = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
WEIGHTS = {
    "none": {},
    "token": {"off_policy": "token", "off_policy_cap": 1.5},
    "sequence": {"off_policy": "sequence", "off_policy_cap": 3.0},
    "icepop": {"off_policy": "icepop", "off_policy_floor": 0.8, "off_policy_cap": 1.2},
    "geometric": {"off_policy": "geometric", "off_policy_floor": 0.95, "off_policy_cap": 1.05},
}


def episodes(learner: TorchLearner, count: int = 6) -> list[Sample]:
    """The anchor and the sampler are near the current policy; one has no advantage, the last two are one episode."""
    samples = random_samples(count, seed=4)
    rows = learner.logprobs(samples)
    drawn = torch.Generator().manual_seed(0)
    near = [tuple(0.1 * value for value in torch.randn(len(row), generator=drawn).tolist()) for row in rows]
    noise = [tuple(0.1 * value for value in torch.randn(len(row), generator=drawn).tolist()) for row in rows]
    far = [tuple(0.3 * value for value in torch.randn(len(row), generator=drawn).tolist()) for row in rows]
    samples = [
        replace(
            sample,
            logprobs=tuple(map(operator.add, rows[place], noise[place])),
            proximal_logprobs=tuple(map(operator.add, rows[place], near[place])),
            reference_logprobs=tuple(map(operator.add, rows[place], far[place])),
            episode=f"e{min(place, count - 2)}",
        )
        for place, sample in enumerate(samples)
    ]
    return [replace(samples[0], advantages=(0.0,) * len(samples[0].advantages)), *samples[1:]]


def moved(learner: TorchLearner) -> TorchLearner:
    """One step away from the base model, so that neither adapter matrix is 0."""
    learner.update(as_batch(random_samples(2, seed=9)), GRPO_LOSS)
    return learner


def plainly(learner: TorchLearner, samples: Sequence[Sample], loss: PolicyGradientLoss) -> torch.Tensor:
    """The loss from full logits, one episode at a time, as the papers write it down; TRL's code agrees where it can."""
    clip = {"low": 1 - loss.clip_low, "high": 1 + loss.clip_high}
    sums: dict[str, torch.Tensor] = {}
    lengths: dict[str, int] = {}
    for sample in samples:
        logits = learner._causal(torch.tensor([sample.token_ids])).logits[0, :-1].double()
        everything = torch.log_softmax(logits, -1)
        mask = torch.tensor(sample.loss_mask[1:])
        current = everything.gather(1, torch.tensor(sample.token_ids[1:])[:, None])[:, 0][mask]
        entropy = -(everything.exp() * everything).sum(-1)[mask]
        old, reference, advantage = (
            torch.tensor(row[1:], dtype=torch.float64)[mask]
            for row in (sample.proximal_logprobs, sample.reference_logprobs, sample.advantages)
        )
        ratio = (current - old).exp()
        if loss.form == "gspo":
            ratio = (current - old).mean().exp().expand(len(current))
        bounded = ratio.clamp(clip["low"] if clip["low"] < 1 else None, clip["high"]) if clip["high"] > 1 else ratio
        objective = torch.minimum(ratio * advantage, bounded * advantage)
        if loss.form == "cispo":
            objective = bounded.detach() * advantage * current
        if dual := loss.dual_clip:
            objective = torch.where(advantage < 0, torch.maximum(objective, dual * advantage), objective)
        k3 = (reference - current).exp() - 1 - (reference - current)
        k1 = (current - old).exp() * (current - reference)
        values = objective - loss.kl_coef * (k3 if loss.kl_estimator == "k3" else k1)
        values = values + loss.entropy_coef * entropy
        sums[sample.episode] = sums.get(sample.episode, torch.tensor(0.0)) - values.sum()
        lengths[sample.episode] = lengths.get(sample.episode, 0) + len(current)
    total = torch.stack(list(sums.values()))
    if loss.normalization == "token":
        return total.sum() / sum(lengths.values())
    if loss.normalization == "sequence":
        return (total / torch.tensor(list(lengths.values()))).mean()
    return total.mean() / loss.normalization_length


@EVERY
def test_loss_and_gradient_are_those_of_the_definition(learner_model: Path, loss: PolicyGradientLoss) -> None:
    learner = moved(make_learner(learner_model))
    samples = episodes(learner)
    wanted = plainly(learner, samples, loss)
    wanted.backward()  # type: ignore[no-untyped-call]
    flat = torch.cat([part.grad.flatten() for part in learner._trained.values() if part.grad is not None])
    batch = pack(weigh_samples(samples, loss), token_budget=64, max_rows=3)
    assert len(batch.microbatches) > 1
    assert relative(gradient(learner, batch, loss), flat) <= 1e-5
    assert learner.update(batch, loss).loss == pytest.approx(wanted.item(), rel=1e-4, abs=1e-6)


@pytest.mark.thorough
@EVERY
@pytest.mark.parametrize("caps", WEIGHTS.values(), ids=WEIGHTS)
def test_no_gradient_depends_on_microbatching(
    learner_model: Path, loss: PolicyGradientLoss, caps: dict[str, Any]
) -> None:
    learner = moved(make_learner(learner_model))
    loss = PolicyGradientLoss.model_validate({**loss.model_dump(), **caps})
    samples = weigh_samples(episodes(learner), loss)
    learner._model.double()
    whole = gradient(learner, as_batch(samples), loss)
    assert whole.norm() > 0
    for budget, rows in ((1, 1), (60, 2)):
        assert relative(gradient(learner, pack(samples, token_budget=budget, max_rows=rows), loss), whole) <= 1e-6


def test_masked_positions_get_no_gradient_from_kl_and_entropy(learner_model: Path) -> None:
    learner = make_learner(learner_model, {"packing": "off"}, lora_rank=0)
    samples = episodes(learner)[:3]
    loss = PolicyGradientLoss(kl_coef=0.1, entropy_coef=0.1)
    samples = [replace(one, reference_logprobs=tuple(v - 0.3 for v in one.reference_logprobs)) for one in samples]
    seen: list[torch.Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        output[0].retain_grad()
        seen.append(output[0])

    handle = learner._causal.base_model.register_forward_hook(keep)
    gradient(learner, as_batch(samples), loss)
    handle.remove()
    assert seen[0].grad is not None
    for row, sample in enumerate(samples):
        found = (seen[0].grad[row].abs().sum(-1) > 0).tolist()
        assert found == (list(sample.loss_mask[1:]) + [False] * len(found))[: len(found)]


def test_entropy_rises_with_its_bonus_and_its_gradient_survives_chunks(
    learner_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = moved(make_learner(learner_model, learning_rate=1e-2, lora_rank=0, temperature=0.7))
    samples = [replace(one, advantages=(0.0,) * len(one.advantages)) for one in random_samples(4)]
    loss = PolicyGradientLoss(entropy_coef=1.0)
    whole = gradient(learner, as_batch(samples), loss)
    monkeypatch.setattr("finqa_plugins.learners.torch.forward._LOGITS_PER_CHUNK", 300 * 7)
    heads: list[int] = []
    head = learner._causal.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, arguments, output: heads.append(output.numel()))
    assert relative(gradient(learner, as_batch(samples), loss), whole) <= 1e-5
    handle.remove()
    assert max(heads) <= 300 * 7, "no more logits at once than a chunk holds"
    entropies = [learner.update(as_batch(samples), loss).metrics["entropy"] for _ in range(4)]
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0]


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_reference_is_the_base_model_and_looking_it_up_changes_nothing(
    learner_model: Path, rank: int, checkpointing: bool
) -> None:
    samples = random_samples(4, opening=tuple(range(40)))
    shared = {"temperature": 0.8, "gradient_checkpointing": checkpointing}
    untouched, learner = (
        make_learner(learner_model, lora_rank=rank, lora_dropout=0.1 if rank else 0.0, **shared) for _ in range(2)
    )
    base = make_learner(learner_model, **shared).logprobs(samples)  # a fresh adapter's output is 0
    assert learner.keeps_reference
    for each in (untouched, learner):
        moved(each)
    noise = torch.random.get_rng_state()
    rows = learner.reference_logprobs(samples)
    assert torch.equal(noise, torch.random.get_rng_state())
    assert same_rows(rows, base)
    current = learner.logprobs(samples)
    assert same_rows(current, untouched.logprobs(samples))
    assert (
        max(abs(x - y) for one, other in zip(current, rows, strict=True) for x, y in zip(one, other, strict=True)) > 0
    )
    assert all(part.requires_grad for part in learner._trained.values())
    first, second = (each.update(as_batch(samples), GRPO_LOSS) for each in (learner, untouched))
    assert (first.loss, first.grad_norm, dict(first.metrics)) == (second.loss, second.grad_norm, dict(second.metrics))
    for left, right in zip(learner._trained.values(), untouched._trained.values(), strict=True):
        assert torch.equal(left, right)
    assert same_rows(learner.reference_logprobs(samples), base), "it does not move with training"


def test_a_kl_term_keeps_the_policy_near_its_reference(learner_model: Path) -> None:
    found = {}
    for coefficient in (0.0, 5.0):
        learner = make_learner(learner_model, learning_rate=5e-3)
        samples = random_samples(6)
        rows = learner.logprobs(samples)
        samples = [replace(one, logprobs=row, reference_logprobs=row) for one, row in zip(samples, rows, strict=True)]
        loss = PolicyGradientLoss(kl_coef=coefficient)
        for _ in range(6):
            report = learner.update(as_batch(samples), loss)
        found[coefficient] = report.metrics["kl_reference"]
    assert 0 < found[5.0] < 0.5 * found[0.0]


def test_reference_logprobs_that_are_missing_are_refused(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    samples = random_samples(3)
    loss = PolicyGradientLoss(kl_coef=0.1)
    with pytest.raises(ValueError, match="no reference log-probabilities"):
        learner.update(as_batch(samples), loss)
    some = [replace(samples[0], reference_logprobs=learner.logprobs(samples)[0]), *samples[1:]]
    with pytest.raises(ValueError, match="only 1 of 3 samples carry reference"):
        learner.update(as_batch(some), GRPO_LOSS)
