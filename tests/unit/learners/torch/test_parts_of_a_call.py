"""A call of the learner that ends between two of its parts, or that is only measured, changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures.tiny_learners import GRPO_LOSS, as_batch, make_learner, random_samples

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.contracts import LearnerEvents
from finqa_cli.errors import InterruptedRun
from finqa_plugins.learners.torch.torch_learner import TorchLearner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from finqa_testing.tiny_models import make_tiny_qwen3

    return make_tiny_qwen3(tmp_path_factory.mktemp("parts"))


class Parts:
    """Counts the parts of calls, and ends a call at one of them."""

    def __init__(self, learner: TorchLearner, last: int = -1) -> None:
        self.seen: list[tuple[int, int]] = []
        self.last = last
        learner.report_to(LearnerEvents(event=lambda name, facts: None, failed=print, part=self._begin))

    def _begin(self, done: int, total: int) -> None:
        self.seen.append((done, total))
        if len(self.seen) == self.last:
            raise InterruptedRun("Stopped.")


def weights(learner: TorchLearner) -> list[torch.Tensor]:
    return [part.detach().clone() for part in learner._trained.values()]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_that_ends_at_any_part_is_taken_later_as_if_nothing_had_happened(
    model: Path, checkpointing: bool
) -> None:
    batch = as_batch(random_samples(4), [(0, 1), (2, 3)])
    plain = make_learner(model, lora_dropout=0.1, gradient_checkpointing=checkpointing)
    counted = Parts(plain)
    reports = [plain.update(batch, GRPO_LOSS) for _ in range(2)]
    count = len(counted.seen) // 2
    layers = 2
    passes = 3 if checkpointing else 2
    assert count >= 2 * (1 + layers * (passes - 1)), "before each micro-batch, and each layer forwards and backwards"
    assert {total for _, total in counted.seen} == {2}

    stopped = make_learner(model, lora_dropout=0.1, gradient_checkpointing=checkpointing)
    assert stopped.update(batch, GRPO_LOSS).loss == reports[0].loss
    before = weights(stopped)
    for last in (1, 2, count // 2, count):
        Parts(stopped, last)
        with pytest.raises(InterruptedRun):
            stopped.update(batch, GRPO_LOSS)
        assert all(map(torch.equal, before, weights(stopped)))
    Parts(stopped)
    again = stopped.update(batch, GRPO_LOSS)
    assert (again.loss, again.grad_norm) == (reports[1].loss, reports[1].grad_norm)
    assert all(map(torch.equal, weights(plain), weights(stopped)))


def test_scoring_ends_between_micro_batches(model: Path) -> None:
    samples = random_samples(6)
    learner = make_learner(model, token_budget=40)
    counted = Parts(learner)
    scored = learner.logprobs(samples)
    assert counted.seen[-1][1] > 1, "several micro-batches"
    Parts(learner, last=4)
    with pytest.raises(InterruptedRun):
        learner.logprobs(samples)
    Parts(learner)
    assert all((left == right).all() for left, right in zip(scored, learner.logprobs(samples), strict=True))


def test_a_rehearsal_takes_no_step_and_draws_nothing(model: Path) -> None:
    batch = as_batch(random_samples(3))
    plain, measured = (make_learner(model, lora_dropout=0.1) for _ in range(2))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    seconds = measured.rehearse(batch, CrossEntropyLoss())
    assert seconds is not None and seconds > 0
    assert torch.equal(state, torch.get_rng_state())
    for _ in range(2):
        assert plain.update(batch, GRPO_LOSS).loss == measured.update(batch, GRPO_LOSS).loss
    assert all(map(torch.equal, weights(plain), weights(measured)))
