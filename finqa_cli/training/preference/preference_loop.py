"""The steps of preference training: updates, looks at held-out pairs, checkpoints."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from finqa_cli.algorithms.pair_batches import PairOutcome, PairSamples, pair_batch, pair_outcomes
from finqa_cli.contracts import Learner, PairPlan
from finqa_cli.rollout.seeds import derive
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.tracking import Tracking
from finqa_cli.settings import Settings
from finqa_cli.statistics import clustered_interval
from finqa_cli.training.kept_policies import BatchNames, check_weights, keep_step, take_step
from finqa_cli.training.preference.pair_tokens import PAIRS_PER_FORWARD
from finqa_cli.types import Loss, UpdateReport

TIE = 1e-4
"""Nats: a difference within it is rounding of the forward passes, and counts as half right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """What a policy makes of held-out pairs.

    Attributes:
        step: Optimizer steps behind it.
        pairs: How many there are.
        accuracy: Share of the pairs whose chosen attempt gained more on the reference; a tie counts half, so that the
            reference itself has 0.5.
        accuracy_interval: 95 %, clustered by company.
        ranking_accuracy: Share whose chosen attempt is the likelier one, whatever the reference says.
        margin: Mean difference of the gains, in nats.
        kl: Estimated divergence from the reference per token, in nats; None without a reference.
    """

    step: int
    pairs: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    ranking_accuracy: float
    margin: float
    kl: float | None


def summarize_pairs(outcomes: Sequence[PairOutcome], step: int) -> HeldOut:
    """Sums up; at least one pair."""
    right = [_share_right(outcome.difference) for outcome in outcomes]
    interval = clustered_interval(right, [outcome.cluster for outcome in outcomes])
    tokens = sum(outcome.kl[1] for outcome in outcomes)
    return HeldOut(
        step=step,
        pairs=len(outcomes),
        accuracy=interval.mean,
        accuracy_interval=(interval.low, interval.high),
        ranking_accuracy=sum(_share_right(outcome.ranking) for outcome in outcomes) / len(outcomes),
        margin=math.fsum(outcome.difference for outcome in outcomes) / len(outcomes),
        kl=math.fsum(outcome.kl[0] for outcome in outcomes) / tokens if tokens else None,
    )


def pair_steps(pairs: Sequence[PairSamples], plan: PairPlan, seed: int) -> list[Sequence[PairSamples]]:
    """The pairs of each optimizer step, in order: each epoch in a seeded order of its own."""
    walk = _walk(pairs, round(plan.epochs * len(pairs)), seed)
    items = list(walk)
    return [items[start : start + plan.pairs_per_step] for start in range(0, len(items), plan.pairs_per_step)]


class PreferenceTraining:
    """Takes the steps of a run.

    Attributes:
        before: What the policy that training began from makes of the held-out pairs; None without any.
        after: What the newest one does.
        best: The best so far: by accuracy, then by margin.
    """

    def __init__(
        self,
        learner: Learner,
        loss: Loss,
        settings: Settings,
        folder: RunFolder,
        tracking: Tracking,
        reporter: Reporter,
        stopper: Stopper,
    ) -> None:
        self._learner = learner
        self._loss = loss
        self._settings = settings
        self._folder = folder
        self._tracking = tracking
        self._reporter = reporter
        self._stopper = stopper
        self.before: HeldOut | None = None
        self.after: HeldOut | None = None
        self.best: HeldOut | None = None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the state in a checkpoint."""
        self.before, self.after, self.best = (_held_out(state.get(name)) for name in ("before", "after", "best"))

    async def run(
        self,
        steps: Sequence[Sequence[PairSamples]],
        held_out: Sequence[PairSamples],
        *,
        done: int,
        validate_every: int,
    ) -> int:
        """Takes the steps after the first `done`; gives how many are taken when it ends or a stop was asked for.

        Raises:
            FinqaError: A loss was not finite; the message names the pairs, and the newest checkpoint is kept.
        """
        if done == 0 and held_out:
            self.before = self.after = await self._measure(held_out, 0)
        padded = not await asyncio.to_thread(self._learner.packs)
        self._reporter.start("dpo", len(steps))
        for number, pairs in enumerate(steps[done:], start=done + 1):
            if self._stopper.requested:
                if done % validate_every:
                    await asyncio.to_thread(self._checkpoint, done)  # what was learned since the last one
                break
            names = BatchNames("pairs", [pair.id for pair in pairs])
            budget = self._settings.train.token_budget
            batch = await asyncio.to_thread(pair_batch, pairs, token_budget=budget, padded=padded)
            report = await take_step(self._learner, batch, self._loss, names=names, run=self._folder.path)
            self._tracking.record(_line(number, report, len(pairs)))
            self._tracking.update(number, report)
            done = number
            if number % validate_every == 0 or number == len(steps):
                samples = pairs[0].samples
                await check_weights(self._learner, samples, number, names=names, run=self._folder.path)
                if held_out:
                    self.after = await self._measure(held_out, number)
                await asyncio.to_thread(self._checkpoint, number)
            shown = {"loss": round(report.loss, 4), "accuracy": round(report.metrics["preference_accuracy"], 3)}
            self._reporter.advance("dpo", number, **shown)
        self._reporter.finish("dpo")
        return done

    async def _measure(self, held_out: Sequence[PairSamples], step: int) -> HeldOut:
        outcomes: list[PairOutcome] = []
        for start in range(0, len(held_out), PAIRS_PER_FORWARD):
            part = held_out[start : start + PAIRS_PER_FORWARD]
            samples = [sample for pair in part for sample in pair.samples]
            outcomes += pair_outcomes(part, await asyncio.to_thread(self._learner.logprobs, samples))
        found = summarize_pairs(outcomes, step)
        self._tracking.record({"kind": "held_out", "iteration": step, **asdict(found)})
        low, high = found.accuracy_interval
        self._reporter.line(
            f"step {step}: preference accuracy {found.accuracy:.3f} [{low:.3f}, {high:.3f}] on {found.pairs} held-out "
            f"pairs, margin {found.margin:.3f}"
        )
        return found

    def _checkpoint(self, step: int) -> None:
        after = self.after if self.after and self.after.step == step else None  # none at a stop between two looks
        is_best = after is not None and (self.best is None or _merit(after) > _merit(self.best))
        if is_best:
            self.best = after
        state = {name: _plain(getattr(self, name)) for name in ("before", "after", "best")}
        keep_step(self._learner, self._folder.path, step, state, is_best=is_best, settings=self._settings)


def _walk(pairs: Sequence[PairSamples], count: int, seed: int) -> Iterator[PairSamples]:
    epoch = 0
    while count > 0:
        order = list(pairs)
        random.Random(derive(seed, "dpo-epoch", epoch)).shuffle(order)
        yield from order[:count]
        count -= len(order)
        epoch += 1


def _line(step: int, report: UpdateReport, pairs: int) -> dict[str, Any]:
    return {
        "kind": "dpo",
        "iteration": step,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": report.learning_rate,
        "pairs": pairs,
        "tokens": report.tokens,
        "loss_tokens": report.loss_tokens,
        **report.metrics,
        "timing": {"update_s": round(report.seconds, 4)},
    }


def _share_right(difference: float) -> float:
    return 0.5 if abs(difference) <= TIE else float(difference > 0)


def _merit(held_out: HeldOut) -> tuple[float, float]:
    return held_out.accuracy, held_out.margin


def _plain(held_out: HeldOut | None) -> dict[str, Any] | None:
    return None if held_out is None else asdict(held_out)


def _held_out(facts: Mapping[str, Any] | None) -> HeldOut | None:
    if facts is None:
        return None
    low, high = facts["accuracy_interval"]
    return HeldOut(**{**facts, "accuracy_interval": (low, high)})
