"""The steps of supervised fine-tuning: updates, looks at held-out companies, checkpoints."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from finqa_cli.algorithms.losses import CrossEntropyLoss
from finqa_cli.algorithms.packing import pack
from finqa_cli.contracts import Learner
from finqa_cli.errors import FinqaError
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.tracking import Tracking
from finqa_cli.settings import Settings
from finqa_cli.training.kept_policies import BatchNames, check_weights, keep_step, not_finite, take_step
from finqa_cli.training.sft.played_samples import HeldOutQuestions, SampleRates
from finqa_cli.types import Batch, Sample, UpdateReport

CROSS_ENTROPY = CrossEntropyLoss()


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What a policy makes of held-out companies.

    Attributes:
        step: Optimizer steps behind it.
        loss: Nats per demonstrated token; None without held-out demonstrations.
        samples: Of its own answers; None where it was not asked.
    """

    step: int
    loss: float | None
    samples: SampleRates | None


class SupervisedTraining:
    """Takes the steps of a run.

    Attributes:
        loss: Of the last step.
        before: What the policy that training began from makes of held-out demonstrations.
        after: What the newest one that was looked at makes of them.
        best: The one with the lowest loss on them; None without any.
    """

    def __init__(
        self,
        learner: Learner,
        settings: Settings,
        folder: RunFolder,
        tracking: Tracking,
        questions: HeldOutQuestions | None,
        reporter: Reporter,
        stopper: Stopper,
    ) -> None:
        self._learner = learner
        self._settings = settings
        self._folder = folder
        self._tracking = tracking
        self._questions = questions
        self._reporter = reporter
        self._stopper = stopper
        self._looked = True
        self.loss = math.nan
        self.before: Validation | None = None
        self.after: Validation | None = None
        self.best: Validation | None = None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the state in a checkpoint."""
        self.loss, self._looked = float(state["loss"]), bool(state["looked"])
        self.before, self.after, self.best = (_validation(state[name]) for name in ("before", "after", "best"))

    async def run(self, steps: Sequence[Sequence[Sample]], held_out: Sequence[Sample], *, done: int) -> int:
        """Takes the steps after the first `done`; gives how many are taken when it ends or a stop was asked for.

        Raises:
            FinqaError: A loss was not finite; the message names the demonstrations, and the newest checkpoint is kept.
            ThresholdError: Too many answers to held-out questions ended in faults.
        """
        every = self._settings.sft.validate_every
        padded = not await asyncio.to_thread(self._learner.packs)
        if done == 0:
            self.before = self.after = Validation(step=0, loss=await self._held_out_loss(held_out, 0), samples=None)
            self._tell(self.before)
        elif not self._looked:
            await self._look(held_out, done)
        self._reporter.start("sft", len(steps))
        for number, samples in enumerate(steps[done:], start=done + 1):
            if self._stopper.requested:
                if done % every:
                    await asyncio.to_thread(self._checkpoint, done)  # what was learned since the last one
                break
            names, batch = _names(samples), await asyncio.to_thread(self._batch, samples, padded)
            report = await take_step(self._learner, batch, CROSS_ENTROPY, names=names, run=self._folder.path)
            self._tracking.record(_line(number, report))
            self._tracking.update(number, report)
            done, self.loss = number, report.loss
            if number % every == 0 or number == len(steps):
                await check_weights(self._learner, samples[:1], number, names=names, run=self._folder.path)
                await self._look(held_out, number)
            self._reporter.advance("sft", number, loss=round(report.loss, 4))
        self._reporter.finish("sft")
        return done

    def _batch(self, samples: Sequence[Sample], padded: bool) -> Batch:
        budget = self._settings.train.token_budget
        return pack(samples, token_budget=budget, max_rows=len(samples), padded=padded)

    async def _look(self, held_out: Sequence[Sample], step: int) -> None:
        """Measures, asks and keeps. Cut short by a signal or by faults it is due again when the run goes on."""
        loss = await self._held_out_loss(held_out, step)
        try:
            samples = None if self._questions is None else await self._questions.ask(self._learner, step)
        except FinqaError:
            self._looked = False
            await asyncio.to_thread(self._checkpoint, step)
            raise
        self._looked = self._questions is None or samples is not None
        if self._looked:
            self.after = Validation(step=step, loss=loss, samples=samples)
            self._tell(self.after)
        await asyncio.to_thread(self._checkpoint, step)

    async def _held_out_loss(self, held_out: Sequence[Sample], step: int) -> float | None:
        if not held_out:
            return None
        rows = await asyncio.to_thread(self._learner.logprobs, held_out)
        loss = -math.fsum(map(math.fsum, rows)) / sum(sample.loss_tokens for sample in held_out)
        if not math.isfinite(loss):
            reason = f"After step {step} the loss on held-out demonstrations is {loss}."
            raise not_finite(reason, _names(held_out), self._folder.path)
        return loss

    def _tell(self, found: Validation) -> None:
        samples = found.samples
        if found.loss is None and samples is None:
            return
        rates = asdict(samples) if samples else {}
        self._tracking.record({"kind": "validation", "iteration": found.step, "validation_loss": found.loss, **rates})
        parts = [f"held-out loss {found.loss:.4f}"] if found.loss is not None else []
        if samples is not None:
            parts += [
                f"{name} {value:.3f}"
                for name in ("parse_rate", "accuracy", "reward_mean")
                if (value := rates[name]) is not None
            ]
            parts.append(f"on {samples.questions} questions")
        self._reporter.line(f"step {found.step}: {', '.join(parts)}")

    def _checkpoint(self, step: int) -> None:
        is_best = self._looked and _is_better(self.after, self.best)
        if is_best:
            self.best = self.after
        state = {
            "loss": self.loss,
            "looked": self._looked,
            **{name: _plain(getattr(self, name)) for name in ("before", "after", "best")},
        }
        keep_step(self._learner, self._folder.path, step, state, is_best=is_best, settings=self._settings)


def _is_better(found: Validation | None, best: Validation | None) -> bool:
    """By the loss on held-out demonstrations; what training began from is no policy of the run."""
    if found is None or found.loss is None or found.step == 0:
        return False
    return best is None or best.loss is None or found.loss < best.loss


def _names(samples: Sequence[Sample]) -> BatchNames:
    return BatchNames("demonstrations", [sample.episode for sample in samples])


def _line(step: int, report: UpdateReport) -> dict[str, Any]:
    return {
        "kind": "sft",
        "iteration": step,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "tokens": report.tokens,
        "loss_tokens": report.loss_tokens,
        "timing": {"update_s": round(report.seconds, 4)},
    }


def _plain(found: Validation | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def _validation(facts: Mapping[str, Any] | None) -> Validation | None:
    if facts is None:
        return None
    samples = facts["samples"]
    return Validation(step=facts["step"], loss=facts["loss"], samples=SampleRates(**samples) if samples else None)
