from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples
from fixtures.typed_losses import typed

from finqa_cli.errors import FinqaError
from finqa_cli.types import Loss, Sample
from finqa_plugins.learners.torch.micro_batches import FiniteCheck, describe_nonfinite
from finqa_plugins.learners.torch.torch_learner import TorchLearner

CUT = [(0, 1), (2, 3)]


def poisoned(sample: Sample, number: float, field: str = "advantages") -> Sample:
    """With one number of the last token replaced."""
    return replace(sample, **{field: (*getattr(sample, field)[:-1], number)})


def refusal(learner: TorchLearner, samples: list[Sample], loss: Loss = GRPO_LOSS) -> str:
    """What an update says that may change nothing."""
    before = [part.detach().clone() for part in learner._trained.values()]
    with pytest.raises(FinqaError, match="Step 0 was skipped:") as raised:
        learner.update(as_batch(samples, CUT), loss)
    assert all(torch.equal(old, new) for old, new in zip(before, learner._trained.values(), strict=True))
    assert all(part.grad is None for part in learner._trained.values())
    return raised.value.message


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_sample_with_a_number_that_is_none_is_named_with_its_place(learner_model: Path, number: float) -> None:
    samples = [replace(sample, episode=f"q{row}/0") for row, sample in enumerate(random_samples(4))]
    samples[2] = poisoned(samples[2], number)
    last = len(samples[2].token_ids)
    told = refusal(make_learner(learner_model), samples)
    blamed = f"sample 2 of episode 'q2/0' (advantage {number} at token {last - 1} of {last})"
    assert told.endswith(f"The first micro-batch with this error is 2 of 2: {blamed}.")


def test_a_sample_whose_gradient_alone_is_not_finite_is_named(learner_model: Path) -> None:
    samples = random_samples(4)
    samples[1] = replace(samples[1], weight=1e38)
    learner = make_learner(learner_model)
    told = refusal(learner, samples)
    assert "The first micro-batch with this error is 1 of 2: sample 1." in told
    learner.update(as_batch(random_samples(4), CUT), GRPO_LOSS)


def test_samples_of_pairs_are_named_together(learner_model: Path) -> None:
    sides = [1.0, -1.0, 1.0, -1.0]
    samples = [
        replace(sample, weight=1e38, advantages=tuple(side if masked else 0.0 for masked in sample.loss_mask))
        for sample, side in zip(random_samples(4), sides, strict=True)
    ]
    loss = typed("dpo_ipo", **{"beta": 1e-3, "reference_free": 1.0})
    assert "with this error is 1 of 2: sample 0, sample 1." in refusal(make_learner(learner_model), samples, loss)


def test_broken_weights_are_told_by_the_log_probabilities_that_they_give(learner_model: Path) -> None:
    learner = make_learner(learner_model)
    with torch.no_grad():
        next(iter(learner._trained.values())).fill_(math.nan)
    with pytest.raises(FinqaError, match=r"is 1 of 2: sample 0 \(log-probability nan at token 1 of \d+\), sample 1"):
        learner.update(as_batch(random_samples(4), CUT), GRPO_LOSS)


def test_a_sum_that_alone_is_too_large_is_told() -> None:
    batch = as_batch(random_samples(4), CUT)
    trial = FiniteCheck(finite=lambda rows: True, logprobs=lambda samples: (), by_row=True)
    assert describe_nonfinite(batch, trial) == "Each of its 2 micro-batches alone is finite, only their sum is not."
