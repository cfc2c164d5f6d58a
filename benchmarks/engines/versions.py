"""Policy versions that a real learner publishes, and what it says about tokens under each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.engines.contestants import LORA_RANK, embedded_model
from benchmarks.engines.episodes import Played
from finqa_cli.algorithms.losses import PolicyGradientLoss
from finqa_cli.contracts import Learner, LearnerContext
from finqa_cli.extend import registry
from finqa_cli.types import Batch, PolicyVersion, Sample

LOSS = PolicyGradientLoss(clip_low=0.2, clip_high=0.2)


class Versions:
    """A learner that goes from version to version by real updates, and back.

    Attributes:
        latest: Number of the newest version; 0 is the base model.
    """

    def __init__(self, folder: Path) -> None:
        context = LearnerContext(
            model=embedded_model(), learning_rate=2e-3, lora_rank=LORA_RANK, gradient_checkpointing=False
        )
        self._learner: Learner = registry().create("learner", "torch", {"threads": 1}, context)
        self._learner.start()
        self._folder = folder
        self._learner.save(folder / "state-0")
        self._at = 0
        self.latest = 0

    def publish(self, played: Sequence[Played]) -> PolicyVersion:
        """One update of the latest version on some of what was played; its weights as an adapter."""
        self._go_to(self.latest)
        number = self.latest + 1
        samples = tuple(sample_of(pair, advantage=1.0 if index % 2 else -1.0) for index, pair in enumerate(played))
        loss_tokens = sum(sample.loss_tokens for sample in samples)
        self._learner.update(
            Batch(samples=samples, microbatches=(tuple(range(len(samples))),), loss_tokens=loss_tokens), LOSS
        )
        self._learner.save(self._folder / f"state-{number}")
        self._at = self.latest = number
        return self._learner.publish(self._folder / f"policy-{number}", number)

    def differences(self, number: int, played: Sequence[Played]) -> list[float]:
        """For each completion the largest |log-probability of the engine - of the learner under that version|."""
        self._go_to(number)
        samples = [sample_of(pair) for pair in played]
        return [_largest(sample, row) for sample, row in zip(samples, self._learner.logprobs(samples), strict=True)]

    def _go_to(self, number: int) -> None:
        if self._at != number:
            self._learner.load(self._folder / f"state-{number}")
            self._at = number


def sample_of(pair: Played, *, advantage: float = 0.0) -> Sample:
    """One request with its completion; only the sampled tokens carry loss."""
    request, completion = pair
    prompt = len(request.token_ids)
    mask = (False,) * prompt + (True,) * len(completion.token_ids)
    return Sample(
        token_ids=request.token_ids + completion.token_ids,
        loss_mask=mask,
        logprobs=(0.0,) * prompt + completion.logprobs,
        advantages=tuple(advantage if sampled else 0.0 for sampled in mask),
    )


def _largest(sample: Sample, row: Sequence[float]) -> float:
    return float(np.abs(sample.logprobs - np.asarray(row)).max())
