"""From pairs on disk to token sequences with reference log-probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finqa_cli.algorithms.pair_batches import PairSamples, with_pair_references
from finqa_cli.algorithms.samples import demonstration_sample, trajectory_samples
from finqa_cli.contracts import ChatCodec, Learner
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.pair_records import Pair, Side, read_pairs
from finqa_cli.runs.reporter import Reporter
from finqa_cli.types import Prompt, Sample, Status, Task, Trajectory

PAIRS_PER_FORWARD = 64
"""Pairs that are scored between two looks at signals."""

_CHOSEN, _REJECTED = 1.0, -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSet:
    """The pairs of a run.

    Attributes:
        train: To train on.
        held_out: To measure.
        encoded_again: How many were encoded from their texts: they have no token ids, or those of another tokenizer.
        alike: How many were left out because both sides are the same tokens.
    """

    train: tuple[PairSamples, ...]
    held_out: tuple[PairSamples, ...]
    encoded_again: int
    alike: int


def load_pairs(path: Path, codec: ChatCodec, *, most: int = 0) -> PairSet:
    """The pairs of a file as token sequences: the ids that were sampled, where they are of this model's tokenizer.

    They are when the recorded prompt has the very ids that the codec gives to its text.

    Args:
        path: pairs.jsonl.
        codec: Of the model that is trained.
        most: At most so many pairs to train on and as many to measure; 0 takes all.

    Raises:
        DataError: A row is wrong, or there is no pair to train on.
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
        raise DataError(f"{path} has no pair to train on.", remedy="finqa prefs RUN --held-out-share 0.1")
    return PairSet(train=tuple(parts[False]), held_out=tuple(parts[True]), encoded_again=encoded_again, alike=alike)


async def refer(
    learner: Learner, pairs: Sequence[PairSamples], *, name: str, run: Path, reporter: Reporter, stopper: Stopper
) -> tuple[PairSamples, ...]:
    """The pairs with log-probabilities under the policy that training begins from, computed once.

    Raises:
        ConfigError: The learner does not know that policy any more.
        InterruptedRun: A signal stopped it.
    """
    if not learner.keeps_reference:
        raise ConfigError(
            "This learner gives no reference log-probabilities.", remedy="--reference-free, or --set learner.name=torch"
        )
    referred: list[PairSamples] = []
    reporter.start(name, len(pairs))
    for start in range(0, len(pairs), PAIRS_PER_FORWARD):
        stopper.check(f"finqa dpo --resume {run}")
        part = pairs[start : start + PAIRS_PER_FORWARD]
        samples = [sample for pair in part for sample in pair.samples]
        referred += with_pair_references(part, await asyncio.to_thread(learner.reference_logprobs, samples))
        reporter.advance(name, len(referred))
    reporter.finish(name)
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
