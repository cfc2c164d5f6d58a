from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from fixtures.plain_models import make_tiny_gpt2
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples, same_rows
from pydantic import ValidationError

from finqa_cli.algorithms.losses import CrossEntropyLoss, PolicyGradientLoss
from finqa_cli.contracts import Learner, LearnerContext
from finqa_cli.errors import ConfigError, DataError, FinqaError
from finqa_cli.extend import registry
from finqa_cli.types import Loss
from finqa_plugins.learners.torch.config import TorchLearnerConfig
from finqa_plugins.learners.torch.distributed.process_group import device_name
from finqa_plugins.learners.torch.torch_learner import TorchLearner

CROSS_ENTROPY = CrossEntropyLoss()


def weights(learner: TorchLearner) -> list[torch.Tensor]:
    return [part.detach().clone() for part in learner._trained.values()]


@pytest.mark.parametrize("rank", [0, 4])
def test_cross_entropy_learns_its_samples(learner_model: Path, rank: int) -> None:
    learner = make_learner(learner_model, lora_rank=rank, learning_rate=1e-2)
    batch = as_batch(random_samples(2))
    losses = [learner.update(batch, CROSS_ENTROPY).loss for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]


def test_policy_gradient_raises_what_was_good_and_lowers_what_was_bad(learner_model: Path) -> None:
    learner = make_learner(learner_model, learning_rate=5e-3)
    samples = random_samples(6)
    old = learner.logprobs(samples)
    samples = [replace(sample, logprobs=row) for sample, row in zip(samples, old, strict=True)]
    first = learner.update(as_batch(samples), GRPO_LOSS)
    assert first.metrics["logprob_difference_max"] <= 1e-4
    assert first.metrics["ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert first.metrics["clip_fraction"] == 0
    assert first.metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert 0 < first.metrics["entropy"] <= math.log(300)
    for _ in range(3):
        report = learner.update(as_batch(samples), GRPO_LOSS)
    assert report.metrics["kl"] > 0
    assert report.metrics["logprob_difference_max"] >= report.metrics["logprob_difference_mean"] > 0
    for sample, before, after in zip(samples, old, learner.logprobs(samples), strict=True):
        assert (sum(after) - sum(before)) * max(sample.advantages, key=abs) > 0


@pytest.mark.parametrize("rank", [0, 4])
def test_a_sample_longer_than_the_positions_of_the_model_is_refused(tmp_path: Path, rank: int) -> None:
    targets = ("c_attn",) if rank else ()
    learner = make_learner(make_tiny_gpt2(tmp_path / "gpt2"), lora_rank=rank, lora_target_modules=targets)
    fits, long = random_samples(1, opening=range(200)), random_samples(1, opening=[7] * 1030)
    assert len(learner.logprobs(fits)) == 1
    for call in (
        lambda: learner.logprobs(long),
        lambda: learner.reference_logprobs(long),
        lambda: learner.update(as_batch(fits + long), CROSS_ENTROPY),
    ):
        with pytest.raises(DataError, match=r"of 10\d\d tokens is longer than the 1024 positions") as refused:
            call()
        assert refused.value.remedy.startswith("choose a model with a context of 10")
    assert learner.update(as_batch(fits), CROSS_ENTROPY).tokens == len(fits[0].token_ids)


def test_the_report_counts_and_clips(learner_model: Path) -> None:
    samples = random_samples(4)
    learner = make_learner(learner_model, max_grad_norm=1e-4)
    report = learner.update(as_batch(samples), CROSS_ENTROPY)
    assert report.tokens == sum(len(sample.token_ids) for sample in samples)
    assert report.loss_tokens == sum(sample.loss_tokens for sample in samples)
    assert report.grad_norm > 1e-4
    assert report.learning_rate == 1e-3
    assert report.seconds > 0


@pytest.mark.parametrize("poison", ["logprobs", "advantages"])
def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(learner_model: Path, poison: str) -> None:
    learner = make_learner(learner_model)
    good = random_samples(3)
    learner.update(as_batch(good), GRPO_LOSS)
    before = weights(learner)
    bad = replace(good[0], **{poison: tuple(math.nan if masked else 0.0 for masked in good[0].loss_mask)})
    with pytest.raises(FinqaError, match="Step 1 was skipped: loss nan"):
        learner.update(as_batch([good[1], bad]), PolicyGradientLoss(off_policy="token", off_policy_cap=2.0))
    assert all(torch.equal(left, right) for left, right in zip(before, weights(learner), strict=True))
    assert all(part.grad is None for part in learner._trained.values())
    learner.update(as_batch(good), GRPO_LOSS)


def test_a_batch_without_loss_tokens_is_refused(learner_model: Path) -> None:
    with pytest.raises(FinqaError, match="no token with loss"):
        make_learner(learner_model).update(as_batch([]), GRPO_LOSS)


class Nameless(Loss):
    """It names no function."""


class Misnamed(Loss):
    functions: ClassVar = {"torch": "test_torch_learner_steps:no_such_function"}


class Valued(Loss):
    functions: ClassVar = {"torch": "test_torch_learner_steps:make_learner"}

    @property
    def needs_values(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (Nameless(), r"no function for Nameless; it has those for CrossEntropyLoss, PolicyGradientLoss.*functions"),
        (Misnamed(), "names 'test_torch_learner_steps:no_such_function' as its function, which fails"),
        (Valued(), "Valued needs values"),
    ],
)
def test_a_loss_without_a_function_is_a_config_error(learner_model: Path, loss: Loss, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_learner(learner_model).update(as_batch(random_samples(1)), loss)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        (PolicyGradientLoss, {"clip": 0.2}, r"clip\n.*not permitted"),
        (CrossEntropyLoss, {"clip_low": 0.2}, r"clip_low\n.*not permitted"),
        (PolicyGradientLoss, {"clip_low": -0.2}, r"clip_low\n.*greater than or equal to 0"),
        (PolicyGradientLoss, {"clip_low": 1.0}, r"clip_low\n.*less than 1"),
    ],
)
def test_a_field_that_a_loss_does_not_have_is_refused(kind: type[Loss], fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        kind(**fields)


def test_equal_seeds_equal_bits_whatever_else_draws_random_numbers(learner_model: Path) -> None:
    results = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        learner = make_learner(learner_model, seed=5, lora_dropout=0.2)
        for step in range(2):
            torch.rand(noise)
            learner.update(as_batch(random_samples(4, seed=step)), GRPO_LOSS)
        results.append(weights(learner))
    assert all(torch.equal(left, right) for left, right in zip(*results, strict=True))
    other = make_learner(learner_model, seed=6)
    assert not all(torch.equal(left, right) for left, right in zip(results[0], weights(other), strict=True))


def test_a_step_does_not_disturb_the_generator_of_others(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    learner.update(as_batch(random_samples(1)), GRPO_LOSS)
    assert torch.equal(torch.rand(1), expected)


def test_dropout_is_of_training_alone_and_another_in_each_step(learner_model: Path, tmp_path: Path) -> None:
    dropping, plain = (make_learner(learner_model, lora_dropout=share, learning_rate=0.0) for share in (0.5, 0.0))
    with torch.no_grad():
        for name, part in dropping._trained.items():
            if "lora_B" in name:
                part.fill_(0.05)
    dropping.save(tmp_path)
    plain.load(tmp_path)
    batch = as_batch(random_samples(2))
    losses = [learner.update(batch, CROSS_ENTROPY).loss for learner in (plain, plain, dropping, dropping)]
    assert len(set(losses)) == 3 and losses[0] == losses[1]
    assert same_rows(dropping.logprobs(batch.samples), plain.logprobs(batch.samples))


def test_the_optimizer_takes_its_options(learner_model: Path) -> None:
    learner = make_learner(learner_model, {"betas": (0.8, 0.95), "weight_decay": 0.1})
    (group,) = learner._optimizer.param_groups
    assert (group["betas"], group["weight_decay"]) == ((0.8, 0.95), 0.1)


def test_schedules() -> None:
    def factors(**options: object) -> list[float]:
        config = TorchLearnerConfig.model_validate(options)
        return [round(config.rate_factor(step), 4) for step in range(7)]

    assert factors() == [1.0] * 7
    assert factors(warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert factors(schedule="linear", warmup_steps=1, total_steps=5) == [1, 1, 0.75, 0.5, 0.25, 0, 0]
    assert factors(schedule="cosine", total_steps=4) == [1, 0.8536, 0.5, 0.1464, 0, 0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "cosine"},
        {"schedule": "linear", "total_steps": 5, "warmup_steps": 5},
        {"betas": (0.9, 1.0)},
        {"threads": 0},
        {"dtype": "float16"},
        {"unknown": 1},
    ],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TorchLearnerConfig.model_validate(options)


def test_the_schedule_sets_the_rate_of_each_step(learner_model: Path) -> None:
    learner = make_learner(learner_model, {"schedule": "linear", "total_steps": 2})
    batch = as_batch(random_samples(1))
    assert [learner.update(batch, GRPO_LOSS).learning_rate for _ in range(3)] == [1e-3, 5e-4, 0.0]


def test_a_greedy_policy_cannot_be_trained(learner_model: Path) -> None:
    with pytest.raises(ConfigError, match="temperature above 0"):
        make_learner(learner_model, temperature=0.0)


def test_the_component_fulfils_the_contract(learner_model: Path) -> None:
    context = LearnerContext(model=str(learner_model), learning_rate=1e-3)
    assert isinstance(registry().create("learner", "torch", {"device": "cpu"}, context), Learner)


def test_cuda_that_is_not_there_is_a_config_error(learner_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        make_learner(learner_model, {"device": "cuda"})


def test_bfloat16_computes_in_bfloat16_and_trains_in_float32(learner_model: Path) -> None:
    for rank in (0, 4):
        learner = make_learner(learner_model, {"dtype": "bfloat16"}, lora_rank=rank)
        assert {part.dtype for part in learner._trained.values()} == {torch.float32}
        computed: set[torch.dtype] = set()
        for layer in (learner._causal.get_output_embeddings(), learner._causal.base_model.layers[0].mlp.down_proj):
            layer.register_forward_hook(lambda layer, inputs, output, into=computed: into.add(output.dtype))
        assert math.isfinite(learner.update(as_batch(random_samples(2)), GRPO_LOSS).loss)
        assert computed == {torch.bfloat16}


@pytest.mark.parametrize(
    ("asked", "devices", "used"),
    [("auto", 0, "cpu"), ("auto", 4, "cuda:3"), ("cuda", 1, "cuda:0"), ("cuda:1", 4, "cuda:1"), ("cpu", 4, "cpu")],
)
def test_the_learner_takes_the_last_device_because_engines_begin_with_the_first(
    asked: str, devices: int, used: str
) -> None:
    assert device_name(asked, devices) == used


@pytest.mark.parametrize(("asked", "devices"), [("cuda", 0), ("cuda:4", 4), ("cuda:0", 0)])
def test_a_device_that_is_not_there_is_named(asked: str, devices: int) -> None:
    with pytest.raises(ConfigError, match=f"device={asked}, but PyTorch sees"):
        device_name(asked, devices)
