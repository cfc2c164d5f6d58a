"""Decoupled losses in the learner: micro-batches, masks, temperature, several steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, gradient, make_learner, random_samples, relative
from fixtures.typed_losses import typed

from finqa_cli.algorithms.packing import pack
from finqa_cli.algorithms.samples import attach_rows
from finqa_cli.types import Loss, Sample
from finqa_plugins.learners.torch.torch_learner import TorchLearner

TOKEN = typed(clip_low=0.2, clip_high=0.2, token_cap=1.5)
SEQUENCE = typed(clip_low=0.2, clip_high=0.2, sequence_cap=1.5)
BOTH = pytest.mark.parametrize("loss", [TOKEN, SEQUENCE], ids=["token", "sequence"])


def stale(learner: TorchLearner, samples: Sequence[Sample], *shifts: float) -> list[Sample]:
    """The samples as a policy sampled them that found each of a sample's tokens likelier by its shift (nats)."""
    rows = learner.logprobs(samples)
    return [
        replace(sample, logprobs=tuple(v + shift if m else 0.0 for v, m in zip(row, sample.loss_mask, strict=True)))
        for sample, row, shift in zip(samples, rows, shifts, strict=True)
    ]


@BOTH
@pytest.mark.parametrize("several_steps", [False, True])
@pytest.mark.parametrize("opening", [(), tuple(range(60))], ids=["alone", "shared"])
def test_the_gradient_does_not_depend_on_microbatching(
    learner_model: Path, loss: Loss, several_steps: bool, opening: tuple[int, ...]
) -> None:
    learner = make_learner(learner_model)
    learner.update(as_batch(random_samples(2, seed=9)), GRPO_LOSS)  # so that neither adapter matrix is 0
    samples: Sequence[Sample] = stale(learner, random_samples(12, opening=opening), *[0.02, -0.2, 0.01, 0.0] * 3)
    if several_steps:
        samples = attach_rows(samples, proximal_logprobs=learner.logprobs(samples))
    assert make_learner(learner_model).update(as_batch(samples), SEQUENCE).metrics["sequences_masked"] == 1 / 4
    learner._model.double()
    whole = gradient(learner, as_batch(samples), loss)
    cuts = [pack(samples, token_budget=budget, max_rows=rows) for budget, rows in ((1, 1), (200, 12), (10_000, 5))]
    for batch in [*cuts, as_batch(samples, [range(0, 12, 2), range(1, 12, 2)])]:
        assert relative(gradient(learner, batch, loss), whole) <= 1e-6


@BOTH
def test_where_all_policies_agree_the_gradient_is_that_of_ppo(learner_model: Path, loss: Loss) -> None:
    learner = make_learner(learner_model, temperature=0.6)
    learner.update(as_batch(random_samples(2, seed=9)), GRPO_LOSS)
    samples = stale(learner, random_samples(6), *[0.0] * 6)
    plain = gradient(learner, as_batch(samples), GRPO_LOSS)
    for batch in (as_batch(samples), as_batch(attach_rows(samples, proximal_logprobs=learner.logprobs(samples)))):
        assert relative(gradient(learner, batch, loss), plain) <= 1e-6


@BOTH
def test_ratios_are_at_the_rollout_temperature(learner_model: Path, loss: Loss) -> None:
    learner = make_learner(learner_model, temperature=0.6)
    samples = stale(learner, random_samples(4), *[0.0] * 4)
    metrics = learner.update(as_batch(samples), loss).metrics
    assert metrics["importance_weight_mean"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio_mean"] == 1
    assert metrics.get("importance_truncated", 0) == metrics.get("sequences_masked", 0) == 0
    assert metrics["logprob_difference_max"] <= 1e-4


def test_a_masked_sequence_gives_no_gradient_and_still_counts(learner_model: Path) -> None:
    learner = make_learner(learner_model, lora_rank=0)
    samples = stale(learner, random_samples(3), 0.0, -0.5, 0.0)
    batch = as_batch(samples)
    others = replace(as_batch([samples[0], samples[2]]), loss_tokens=batch.loss_tokens)
    assert relative(gradient(learner, batch, SEQUENCE), gradient(learner, others, SEQUENCE)) <= 1e-6
    metrics = learner.update(batch, SEQUENCE).metrics
    assert metrics["sequences_masked"] == pytest.approx(1 / 3)
    kept = 1 - samples[1].loss_tokens / batch.loss_tokens
    assert metrics["importance_weight_mean"] == pytest.approx(kept, abs=1e-4)


def test_shares_are_of_tokens_and_of_sequences_however_the_batch_is_cut(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    samples = stale(learner, random_samples(4), -1.0, 0.1, -1.0, -1.0)
    empty = replace(samples[0], loss_mask=(False,) * len(samples[0].loss_mask))
    for cut in ([range(5)], [[0], [1, 2], [3, 4]], [[4], [0, 1, 2, 3]]):
        batch = as_batch([*samples, empty], cut)
        learner = make_learner(learner_model)
        truncated = learner.update(batch, TOKEN).metrics["importance_truncated"]
        assert truncated == pytest.approx(1 - samples[1].loss_tokens / batch.loss_tokens)
        assert make_learner(learner_model).update(batch, SEQUENCE).metrics["sequences_masked"] == 3 / 4


@BOTH
def test_only_positions_that_predict_loss_tokens_get_a_gradient(learner_model: Path, loss: Loss) -> None:
    learner = make_learner(learner_model, {"packing": "off"}, lora_rank=0)
    samples = stale(learner, random_samples(3, opening=(1, 2, 3)), 0.2, -0.5, 0.1)
    seen: list[torch.Tensor] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        output[0].retain_grad()
        seen.append(output[0])

    handle = learner._causal.base_model.register_forward_hook(keep)
    gradient(learner, as_batch(samples), loss)
    handle.remove()
    (hidden,) = seen
    assert hidden.grad is not None
    for row, sample in enumerate(samples):
        moved = (hidden.grad[row].abs().sum(-1) > 0).tolist()
        dropped = loss is SEQUENCE and row == 1
        predicting = [masked and not dropped for masked in sample.loss_mask[1:]]
        assert moved == (predicting + [False] * len(moved))[: len(moved)]


@BOTH
def test_several_steps_keep_weights_and_clip_around_the_proximal_policy(learner_model: Path, loss: Loss) -> None:
    learner = make_learner(learner_model, learning_rate=2e-2)
    samples = stale(learner, random_samples(6), *[0.3] * 6)
    batch = as_batch(attach_rows(samples, proximal_logprobs=learner.logprobs(samples)))
    first, *later = [learner.update(batch, loss).metrics for _ in range(4)]
    assert first["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert first["clip_fraction"] == 0
    assert later[-1]["clip_fraction"] > 0
    for metrics in later:
        assert metrics["importance_weight_mean"] == pytest.approx(first["importance_weight_mean"], rel=1e-5)
    assert later[-1]["logprob_difference_mean"] != pytest.approx(first["logprob_difference_mean"], rel=1e-2)


@BOTH
def test_without_proximal_logprobs_the_current_weights_are_the_proximal_ones(learner_model: Path, loss: Loss) -> None:
    learner = make_learner(learner_model, learning_rate=2e-2)
    samples = stale(learner, random_samples(6), *[0.3] * 6)
    first, second = (learner.update(as_batch(samples), loss).metrics for _ in range(2))
    assert first["ratio_mean"] == second["ratio_mean"] == 1
    assert first["clip_fraction"] == second["clip_fraction"] == 0
    assert second["importance_weight_mean"] != pytest.approx(first["importance_weight_mean"], rel=1e-3)


def test_stale_samples_still_raise_what_was_good_and_lower_what_was_bad(learner_model: Path) -> None:
    for loss in (TOKEN, SEQUENCE):
        learner = make_learner(learner_model, learning_rate=5e-3)
        samples = stale(learner, random_samples(6), *[0.2] * 6)
        before = learner.logprobs(samples)
        for _ in range(4):
            learner.update(as_batch(samples), loss)
        for sample, old, new in zip(samples, before, learner.logprobs(samples), strict=True):
            assert (sum(new) - sum(old)) * max(sample.advantages, key=abs) > 0


def test_proximal_logprobs_of_some_samples_or_tokens_only_are_refused(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    samples = random_samples(3)
    rows = learner.logprobs(samples)
    some = [replace(samples[0], proximal_logprobs=rows[0]), *samples[1:]]
    for cut in (None, [[0], [1, 2]]):
        with pytest.raises(ValueError, match="only 1 of 3 samples"):
            learner.update(as_batch(some, cut), TOKEN)
    short = attach_rows(samples, proximal_logprobs=[row[:-1] for row in rows])
    with pytest.raises(ValueError, match="proximal log-probabilities for"):
        learner.update(as_batch(short), TOKEN)


def test_a_proximal_logprob_that_is_not_a_number_leaves_the_weights_alone(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    samples = random_samples(2)
    poisoned = attach_rows(samples, proximal_logprobs=[tuple(math.nan for _ in sample.token_ids) for sample in samples])
    before = [part.detach().clone() for part in learner._trained.values()]
    for loss in (TOKEN, SEQUENCE):
        with pytest.raises(Exception, match="was skipped: loss nan"):
            learner.update(as_batch(poisoned), loss)
    assert all(torch.equal(old, new) for old, new in zip(before, learner._trained.values(), strict=True))
