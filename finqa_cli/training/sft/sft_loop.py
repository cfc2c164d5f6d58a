"""The training loop of supervised fine-tuning, and the evaluation of the policy during training."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import Learner
from finqa_cli.training.evaluations import Ask, Evaluation
from finqa_cli.training.training_loop import FileTraining, RunContext
from finqa_cli.types import Batch, Sample, UpdateReport

CROSS_ENTROPY = CrossEntropyLoss()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(Evaluation):
    """The evaluation of a policy on held-out companies.

    Attributes:
        loss: Loss on held-out demonstrations in nats per demonstrated token; None without held-out demonstrations.
        episode_loss: The same in nats per demonstration.
    """

    loss: float | None
    episode_loss: float | None = None


class SupervisedTraining(FileTraining[Sample, Validation]):
    """The training loop of supervised fine-tuning. It keeps the policy with the lowest held-out loss."""

    phase = "sft"
    items_name = "demonstrations"
    result = Validation
    record_kind = "validation"

    def __init__(
        self,
        context: RunContext,
        learner: Learner,
        steps: Sequence[Sequence[Sample]],
        held_out: Sequence[Sample],
        ask: Ask | None,
    ) -> None:
        every = context.settings.sft.validate_every or usual_interval(len(steps))
        super().__init__(context, learner, CROSS_ENTROPY, steps, held_out, ask, evaluate_every=every)

    def state(self) -> dict[str, Any]:
        """Return the state of `FileTraining`, and the last loss."""
        return {**super().state(), "loss": self.loss}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the evaluations and the last loss."""
        super().restore(state)
        self.loss = float(state["loss"])

    def ids(self, items: Sequence[Sample]) -> list[str]:
        """Return the ids of the demonstrations."""
        return [sample.episode for sample in items]

    def samples(self, items: Sequence[Sample]) -> list[Sample]:
        """Return the demonstrations themselves."""
        return list(items)

    def make_batch(self, items: Sequence[Sample], *, padded: bool) -> Batch:
        """Pack the demonstrations of a step."""
        budget = self.context.settings.train.token_budget
        return pack(items, token_budget=budget, max_rows=len(items), padded=padded)

    def line(self, number: int, report: UpdateReport, items: Sequence[Sample]) -> dict[str, Any]:
        """Return the record of a step."""
        return {
            "kind": "sft",
            "iteration": number,
            "loss": report.loss,
            "episode_loss": report.loss * report.loss_tokens / len(items),
            "grad_norm": report.grad_norm,
            "learning_rate": report.learning_rate,
            "tokens": report.tokens,
            "loss_tokens": report.loss_tokens,
            "timing": {"update_s": round(report.seconds, 4)},
        }

    def epochs(self) -> tuple[str, float]:
        """Return the setting of the number of epochs, and its value."""
        return "sft.epochs", self.context.settings.sft.epochs

    def merit(self, found: Validation) -> tuple[float, ...] | None:
        """Prefer the lower loss on held-out demonstrations."""
        return None if found.loss is None else (-found.loss,)

    async def examine(self) -> Validation:
        """Compute the loss on held-out demonstrations.

        Raises:
            FinqaError: The loss is not finite.
        """
        if not self.held_out:
            return Validation(step=self.done, loss=None)
        rows = await asyncio.to_thread(self.learner.logprobs, self.held_out)
        nats = -math.fsum(map(math.fsum, rows))
        loss = nats / sum(sample.loss_tokens for sample in self.held_out)
        if not math.isfinite(loss):
            reason = f"After step {self.done} the loss on held-out demonstrations is {loss}."
            raise self.not_finite(reason, self.held_out)
        return Validation(step=self.done, loss=loss, episode_loss=nats / len(self.held_out))

    def describe(self, found: Validation) -> tuple[Mapping[str, Any], str]:
        """Return the loss, for the record and as text."""
        if found.loss is None or found.episode_loss is None:
            return {"validation_loss": None, "validation_episode_loss": None}, ""
        words = f"held-out loss {found.loss:.4f} nats a token, {found.episode_loss:.3g} an episode"
        return {"validation_loss": found.loss, "validation_episode_loss": found.episode_loss}, words


def usual_interval(steps: int) -> int:
    """Return the steps between validations if the settings name none: a quarter of all, but 10 to 200."""
    return max(10, min(200, -(-steps // 4)))
