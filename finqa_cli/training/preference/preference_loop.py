"""Preference learning: pairs as token sequences with reference log-probabilities, and the loop over them."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from finqa_cli.algorithms.pair_batches import (
    PairOutcome,
    PairSamples,
    pair_batch,
    pair_outcomes,
    with_pair_references,
)
from finqa_cli.algorithms.samples import demonstration_sample, trajectory_samples
from finqa_cli.contracts import ChatCodec, Learner, PairPlan
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.rollout.seeds import derive
from finqa_cli.runs.trajectory_records import Pair, Side, read_pairs
from finqa_cli.statistics import clustered_interval
from finqa_cli.training.evaluations import Evaluation
from finqa_cli.training.training_loop import FileTraining, RunContext
from finqa_cli.types import Batch, Prompt, Sample, Status, Task, Trajectory, UpdateReport

PAIRS_PER_FORWARD = 64
"""Pairs that are scored between two checks for a requested stop."""

_CHOSEN, _REJECTED = 1.0, -1.0

_RECORDED = {"accuracy": "preference_accuracy", "accuracy_interval": "preference_accuracy_interval"}
"""Name of a figure -> its key in a line of metrics.jsonl."""

TIE = 1e-4
"""Nats. A smaller difference is rounding of the forward passes, and counts as half right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(Evaluation):
    """The evaluation of a policy on held-out pairs.

    Attributes:
        pairs: Number of pairs.
        accuracy: Share of the pairs with log pi/ref(chosen) > log pi/ref(rejected). A tie counts half, so that the
            reference itself has 0.5.
        accuracy_interval: 95 % interval of the accuracy, clustered by company.
        ranking_accuracy: Share of the pairs whose chosen attempt has the higher probability, without the reference.
        margin: Mean of log pi/ref(chosen) - log pi/ref(rejected), in nats.
        kl: Estimated KL divergence from the reference per token, in nats; None without a reference.
    """

    pairs: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    ranking_accuracy: float
    margin: float
    kl: float | None


def summarize_pairs(outcomes: Sequence[PairOutcome], step: int) -> HeldOut:
    """Summarize the outcomes of at least one pair, for the policy after `step` steps."""
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
    """Return the pairs of each optimizer step. Each epoch has its own seeded order."""
    walk = _walk(pairs, round(plan.epochs * len(pairs)), seed)
    items = list(walk)
    return [items[start : start + plan.pairs_per_step] for start in range(0, len(items), plan.pairs_per_step)]


class PreferenceTraining(FileTraining[PairSamples, HeldOut]):
    """The loop of preference learning: `FileTraining` over pairs, evaluated on held-out pairs."""

    phase = "dpo"
    items_name = "pairs"
    result = HeldOut
    record_kind = "held_out"

    def ids(self, items: Sequence[PairSamples]) -> list[str]:
        """Return the ids of the pairs."""
        return [pair.id for pair in items]

    def samples(self, items: Sequence[PairSamples]) -> list[Sample]:
        """Return the token sequences of both sides of each pair."""
        return [sample for pair in items for sample in pair.samples]

    def make_batch(self, items: Sequence[PairSamples], *, padded: bool) -> Batch:
        """Pack the pairs of a step; both sides of a pair are in the same micro-batch."""
        return pair_batch(items, token_budget=self.context.settings.train.token_budget, padded=padded)

    def line(self, number: int, report: UpdateReport, items: Sequence[PairSamples]) -> dict[str, Any]:
        """Return the record of a step."""
        return {
            "kind": "dpo",
            "iteration": number,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "learning_rate": report.learning_rate,
            "pairs": len(items),
            "tokens": report.tokens,
            "loss_tokens": report.loss_tokens,
            **report.metrics,
            "timing": {"update_s": round(report.seconds, 4)},
        }

    def epochs(self) -> tuple[str, float]:
        """Return the setting of the number of epochs, and its value."""
        return "optimizer.options.epochs", float(self.context.settings.optimizer.options.get("epochs", 1.0))

    def merit(self, found: HeldOut) -> tuple[float, ...] | None:
        """Prefer the higher accuracy, then the larger margin."""
        return found.accuracy, found.margin

    async def examine(self) -> HeldOut | None:
        """Evaluate the policy on the held-out pairs; None if there are none."""
        if not self.held_out:
            return None
        outcomes: list[PairOutcome] = []
        for start in range(0, len(self.held_out), PAIRS_PER_FORWARD):
            part = self.held_out[start : start + PAIRS_PER_FORWARD]
            outcomes += pair_outcomes(part, await asyncio.to_thread(self.learner.logprobs, self.samples(part)))
        return summarize_pairs(outcomes, self.done)

    def describe(self, found: HeldOut) -> tuple[Mapping[str, Any], str]:
        """Return the figures on the held-out pairs. `accuracy` in a line is that of answers to held-out questions."""
        fields = {_RECORDED.get(name, name): value for name, value in asdict(found).items() if name != "samples"}
        low, high = found.accuracy_interval
        return fields, (
            f"preference accuracy {found.accuracy:.3f} [{low:.3f}, {high:.3f}] on {found.pairs} held-out pairs, "
            f"margin {found.margin:.3f}"
        )


def _walk(pairs: Sequence[PairSamples], count: int, seed: int) -> Iterator[PairSamples]:
    epoch = 0
    while count > 0:
        order = list(pairs)
        random.Random(derive(seed, "dpo-epoch", epoch)).shuffle(order)
        yield from order[:count]
        count -= len(order)
        epoch += 1


def _share_right(difference: float) -> float:
    return 0.5 if abs(difference) <= TIE else float(difference > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSet:
    """The pairs of a run.

    Attributes:
        train: Pairs to train on.
        held_out: Pairs to evaluate on.
        encoded_again: Number of pairs that were encoded from their texts, because they have no ids of this tokenizer.
        alike: Number of pairs that were left out because both sides have the same tokens.
    """

    train: tuple[PairSamples, ...]
    held_out: tuple[PairSamples, ...]
    encoded_again: int
    alike: int


def load_pairs(path: Path, codec: ChatCodec, *, most: int = 0) -> PairSet:
    """Read the pairs of a file as token sequences.

    The sampled ids are used if they come from this model's tokenizer and template: then the codec encodes the prompt to
    exactly the recorded ids. Other pairs are encoded from their texts.

    Args:
        path: pairs.jsonl.
        codec: Codec of the model that is trained.
        most: Most training pairs, and most held-out pairs; 0: all.

    Raises:
        DataError: A row is wrong, or there is no training pair.
    """
    parts: dict[bool, list[PairSamples]] = {False: [], True: []}
    encoded_again = alike = 0
    for pair in read_pairs(path):
        if most and len(parts[pair.held_out]) >= most:
            continue
        sampled = _is_of(codec, pair)
        samples = _samples(pair, codec, sampled)
        if _tokens(samples.chosen) == _tokens(samples.rejected):
            alike += 1
            continue
        encoded_again += not sampled
        parts[pair.held_out].append(samples)
    if not parts[False]:
        raise DataError(f"{path} contains no training pairs.", remedy="finqa prefs RUN --held-out-share 0.1")
    return PairSet(train=tuple(parts[False]), held_out=tuple(parts[True]), encoded_again=encoded_again, alike=alike)


async def add_references(
    context: RunContext, learner: Learner, pairs: Sequence[PairSamples], *, name: str
) -> tuple[PairSamples, ...]:
    """Return the pairs with log-probabilities under the reference, the policy that training starts from.

    Args:
        context: Common parts of the run.
        learner: Computes the log-probabilities.
        pairs: The pairs.
        name: Name of the progress display.

    Raises:
        ConfigError: The learner does not keep the reference policy.
        InterruptedRun: A signal stopped the run.
    """
    if not learner.keeps_reference:
        raise ConfigError(
            "This learner computes no reference log-probabilities.",
            remedy="--reference-free, or --set learner.name=torch",
        )
    referred: list[PairSamples] = []
    if not pairs:
        return ()
    context.reporter.start(name, len(pairs))
    for start in range(0, len(pairs), PAIRS_PER_FORWARD):
        context.check_stop()
        part = pairs[start : start + PAIRS_PER_FORWARD]
        samples = [sample for pair in part for sample in pair.samples]
        with context.work(f"{name} log-probabilities of {len(pairs)} pairs", yields=True, shown=False):
            referred += with_pair_references(part, await asyncio.to_thread(learner.reference_logprobs, samples))
        context.reporter.advance(name, len(referred))
    context.reporter.finish(name)
    return tuple(referred)


def _is_of(codec: ChatCodec, pair: Pair) -> bool:
    sides = (pair.chosen, pair.rejected)
    if not all(side.turns for side in sides):
        return False
    opening = codec.opening(pair.prompt)
    return all(side.turns[0].prompt_ids == opening for side in sides)


def _samples(pair: Pair, codec: ChatCodec, sampled: bool) -> PairSamples:
    chosen, rejected = (
        _recorded(pair, side, advantage) if sampled else _encoded(pair.prompt, side, advantage, codec, pair.id)
        for side, advantage in ((pair.chosen, _CHOSEN), (pair.rejected, _REJECTED))
    )
    return PairSamples(
        id=pair.id,
        cluster=pair.cluster,
        chosen=tuple(replace(sample, episode=pair.chosen.attempt) for sample in chosen),
        rejected=tuple(replace(sample, episode=pair.rejected.attempt) for sample in rejected),
    )


def _recorded(pair: Pair, side: Side, advantage: float) -> tuple[Sample, ...]:
    trajectory = Trajectory(
        id=f"{pair.id}/{side.attempt}",
        task=Task(id=pair.id, prompt="", split="", cluster=pair.cluster),
        member=0,
        seed=0,
        status=Status.COMPLETED,
        turns=side.turns,
    )
    return trajectory_samples(trajectory, advantage)


def _encoded(prompt: Prompt, side: Side, advantage: float, codec: ChatCodec, name: str) -> tuple[Sample, ...]:
    sample = demonstration_sample(prompt, side.messages, codec, name=name)
    return (replace(sample, advantages=advantage * sample.advantages),)


def _tokens(samples: Sequence[Sample]) -> list[bytes]:
    return [sample.token_ids.tobytes() for sample in samples]
