"""Contract of learners: the model's log-probabilities, a gradient independent of micro-batches, exact resumption.

The fixture `make` creates a learner for a model folder, which is not started, has temperature 1 and no dropout; `loss`
is a loss that it knows and that moves tokens by their advantages. `tolerance` can be replaced.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finqa_cli.contracts import Learner
from finqa_cli.errors import ConfigError, FinqaError
from finqa_cli.types import Batch, FloatRow, Loss, PolicyVersion, Sample
from finqa_testing.tiny_models import make_tiny_qwen3

Make = Callable[[Path], Learner]


class StrangeLoss(Loss):
    """A loss that no learner knows."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a random model with a few thousand weights."""
    return make_tiny_qwen3(tmp_path_factory.mktemp("contract") / "model")


@pytest.fixture
def learner(make: Make, model: Path) -> Iterator[Learner]:
    """Yields a started learner, and closes it."""
    with closing(make(model)) as made:
        made.start()
        yield made


@pytest.fixture
def tolerance() -> float:
    """Returns the largest difference of two log-probabilities that should be equal (nats)."""
    return 1e-3


def samples_of(model: Path, *, count: int = 5) -> tuple[Sample, ...]:
    """Returns samples of several lengths, each two turns around a reply, with the model's log-probabilities."""
    rng, made = random.Random(0), []
    for number in range(count):
        ids, mask = [rng.randrange(256) for _ in range(9)], [False] * 9
        for turn in range(2):
            for sampled, length in ((False, turn * rng.randint(1, 8)), (True, rng.randint(2, 12))):
                ids += [rng.randrange(256) for _ in range(length)]
                mask += [sampled] * length
        advantages = np.where(mask, 1.0 if number % 2 else -1.0, 0.0)
        made.append(Sample(token_ids=ids, loss_mask=mask, logprobs=[0.0] * len(ids), advantages=advantages))
    policy = PolicyVersion(number=0, model=str(model))
    return tuple(with_rows(one, logprobs=row) for one, row in zip(made, plain_logprobs(policy, made), strict=True))


def with_rows(sample: Sample, **rows: Any) -> Sample:
    """Returns the sample with some rows replaced."""
    return Sample(**{name: getattr(sample, name) for name in Sample.__slots__} | rows)


def batch_of(samples: Sequence[Sample], cut: Sequence[Sequence[int]] | None = None) -> Batch:
    """Returns the samples as a batch with the given micro-batches, or with a single one."""
    rows = tuple(tuple(part) for part in cut or [range(len(samples))])
    return Batch(samples=tuple(samples), microbatches=rows, loss_tokens=sum(one.loss_tokens for one in samples))


def plain_logprobs(policy: PolicyVersion, samples: Sequence[Sample]) -> list[FloatRow]:
    """Returns log-probabilities [N][L] of a published policy from a plain forward pass, 0.0 where the mask is False."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float32)
    if policy.adapter is not None:
        module = PeftModel.from_pretrained(module, policy.adapter)
    rows = []
    for sample in samples:
        ids = torch.tensor(sample.token_ids.tolist())
        with torch.no_grad():
            logits = module.eval()(ids[None]).logits[0, :-1].float().log_softmax(-1)
        row = np.zeros(len(ids), dtype=np.float32)
        row[1:] = logits.gather(1, ids[1:, None])[:, 0].numpy()
        rows.append(np.where(sample.loss_mask, row, 0.0).astype(np.float32))
    return rows


def apart(left: Sequence[FloatRow], right: Sequence[FloatRow]) -> float:
    """Returns the largest difference between two lists of rows."""
    return max(float(np.abs(one - other).max()) for one, other in zip(left, right, strict=True))


def likelihood(rows: Sequence[FloatRow], samples: Sequence[Sample]) -> float:
    """Returns the log-likelihood of the tokens with weights equal to their advantages (nats)."""
    return sum(float((row * one.advantages).sum()) for row, one in zip(rows, samples, strict=True))


def test_start_and_close_are_idempotent(make: Make, model: Path) -> None:
    """Starting and closing twice has no further effect."""
    learner = make(model)
    learner.start()
    learner.start()
    assert isinstance(learner.packs(), bool)
    learner.close()
    learner.close()


def test_an_incomplete_model_folder_is_a_config_error(make: Make, tmp_path: Path) -> None:
    """The error is a ConfigError instead of a traceback of a library."""
    with closing(make(tmp_path)) as learner, pytest.raises(ConfigError):
        learner.start()


def test_logprobs_are_those_of_the_model(learner: Learner, model: Path, tolerance: float) -> None:
    """Before the first step they are those of the base model, and they are 0 where nothing was sampled."""
    samples = samples_of(model)
    rows = learner.logprobs(samples)
    assert [len(row) for row in rows] == [len(sample.token_ids) for sample in samples]
    assert all(not row[~one.loss_mask].any() for row, one in zip(rows, samples, strict=True))
    assert apart(rows, [sample.logprobs for sample in samples]) <= tolerance


def test_a_step_reports_what_it_did(learner: Learner, model: Path, loss: Loss) -> None:
    """The statistics are finite numbers, among them the number of tokens of the batch."""
    samples = samples_of(model)
    report = learner.update(batch_of(samples), loss)
    assert math.isfinite(report.loss) and math.isfinite(report.grad_norm)
    assert report.grad_norm > 0 and report.learning_rate > 0 and report.seconds > 0
    assert report.loss_tokens == sum(sample.loss_tokens for sample in samples)
    assert report.tokens == sum(len(sample.token_ids) for sample in samples)


def test_steps_make_what_was_rewarded_likelier(learner: Learner, model: Path, loss: Loss) -> None:
    """Tokens with a negative advantage become less likely. The samples are not changed."""
    samples, untouched = samples_of(model), samples_of(model)
    before = likelihood(learner.logprobs(samples), samples)
    for _ in range(4):
        learner.update(batch_of(samples), loss)
    assert likelihood(learner.logprobs(samples), samples) > before
    assert samples == untouched, "rows are shared, and were written to"


@pytest.mark.parametrize("cut", [[[0], [1], [2], [3], [4]], [[4, 0], [2], [3, 1]]], ids=["single", "mixed"])
def test_the_gradient_does_not_depend_on_the_cut(
    make: Make, model: Path, loss: Loss, cut: list[list[int]], tolerance: float
) -> None:
    """The gradient is the same however a batch is divided into micro-batches."""
    samples, reports, rows = samples_of(model), [], []
    for parts in (None, cut):
        with closing(make(model)) as learner:
            learner.start()
            reports.append(learner.update(batch_of(samples, parts), loss))
            rows.append(learner.logprobs(samples))
    whole, parted = reports
    assert parted.grad_norm == pytest.approx(whole.grad_norm, rel=tolerance)
    assert parted.loss == pytest.approx(whole.loss, rel=tolerance, abs=1e-6)
    assert apart(*rows) <= tolerance


def test_weights_of_samples_count(make: Make, model: Path, loss: Loss, tolerance: float) -> None:
    """A sample of weight 0 has no effect on the policy."""
    samples = samples_of(model)
    weighted = [with_rows(sample, weight=0.0 if place else 2.0) for place, sample in enumerate(samples)]
    norms = []
    for chosen in (samples[:1], weighted):
        with closing(make(model)) as learner:
            learner.start()
            norms.append(learner.update(replace(batch_of(chosen), loss_tokens=10), loss).grad_norm)
    assert norms[1] == pytest.approx(2 * norms[0], rel=10 * tolerance)


def test_what_is_published_is_the_policy(
    learner: Learner, model: Path, loss: Loss, tmp_path: Path, tolerance: float
) -> None:
    """An engine that loads the published policy computes the same log-probabilities; publishing again replaces it."""
    samples = samples_of(model)
    for number in (1, 2):
        learner.update(batch_of(samples), loss)
        policy = learner.publish(tmp_path / "policy", number)
        assert policy.number == number
        assert apart(plain_logprobs(policy, samples), learner.logprobs(samples)) <= tolerance


def test_resumed_steps_are_those_that_would_have_been(
    make: Make, learner: Learner, model: Path, loss: Loss, tmp_path: Path
) -> None:
    """Resumed steps are bit-identical on the same machine, because weights, moments and random state are saved."""
    samples = samples_of(model)
    learner.update(batch_of(samples), loss)
    learner.save(tmp_path / "state")
    goes_on = [learner.update(batch_of(samples), loss) for _ in range(2)]
    with closing(make(model)) as resumed:
        resumed.start()
        resumed.load(tmp_path / "state")
        again = [resumed.update(batch_of(samples), loss) for _ in range(2)]
        assert [one.loss for one in again] == [one.loss for one in goes_on]
        assert apart(resumed.logprobs(samples), learner.logprobs(samples)) == 0.0


def test_the_state_of_another_model_is_refused(make: Make, learner: Learner, tmp_path: Path) -> None:
    """The state of another model raises an error that states what does not fit."""
    learner.save(tmp_path / "state")
    with closing(make(make_tiny_qwen3(tmp_path / "other", hidden=96))) as other:
        other.start()
        with pytest.raises(ConfigError):
            other.load(tmp_path / "state")


def test_a_loss_that_is_not_finite_changes_nothing(learner: Learner, model: Path, loss: Loss) -> None:
    """The next step has the same result as without the failed step."""
    samples = samples_of(model)
    before = learner.logprobs(samples)
    advantages = np.where(samples[0].loss_mask, np.nan, 0.0)
    broken = [with_rows(samples[0], advantages=advantages), *samples[1:]]
    with pytest.raises(FinqaError):
        learner.update(batch_of(broken), loss)
    assert apart(learner.logprobs(samples), before) == 0.0
    assert math.isfinite(learner.update(batch_of(samples), loss).loss)


def test_a_loss_that_it_does_not_know_is_refused(learner: Learner, model: Path) -> None:
    """An unknown loss raises an error and is not replaced by another."""
    with pytest.raises(ConfigError, match="StrangeLoss"):
        learner.update(batch_of(samples_of(model)), StrangeLoss())


def test_the_reference_policy_stays(learner: Learner, model: Path, loss: Loss, tolerance: float) -> None:
    """If the learner keeps a reference policy, it remains the one that training began from."""
    samples = samples_of(model)
    if not learner.keeps_reference:
        with pytest.raises(ConfigError):
            learner.reference_logprobs(samples)
        return
    learner.update(batch_of(samples), loss)
    current = learner.logprobs(samples)
    assert apart(learner.reference_logprobs(samples), [sample.logprobs for sample in samples]) <= tolerance
    assert apart(learner.logprobs(samples), current) == 0.0


def test_values_have_a_place_for_each_token(learner: Learner, model: Path) -> None:
    """If the learner has values, there is one for each token, which is 0 where nothing was sampled."""
    samples = samples_of(model)
    if not learner.has_value_function:
        with pytest.raises(ConfigError):
            learner.values(samples)
        return
    rows = learner.values(samples)
    assert [len(row) for row in rows] == [len(sample.token_ids) for sample in samples]
    assert all(not row[~one.loss_mask].any() for row, one in zip(rows, samples, strict=True))
