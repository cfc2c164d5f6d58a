"""From recorded demonstrations to token sequences, and to the batches of all optimizer steps."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from finqa_cli.algorithms.samples import demonstration_sample
from finqa_cli.contracts import ChatCodec
from finqa_cli.errors import DataError
from finqa_cli.rollout.seeds import derive
from finqa_cli.runs.trajectory_records import Demonstration, read_demonstrations
from finqa_cli.settings import Settings
from finqa_cli.types import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSet:
    """Demonstrations as token sequences.

    Attributes:
        train: To train on.
        held_out: To validate on; no company is in both.
        companies: Of those that are trained on.
    """

    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    companies: frozenset[str]


def choose_demonstrations(settings: Settings, sources: Sequence[Path], *, most: int) -> list[Demonstration]:
    """Those that earned `sft.minimum_reward`, in the order of the sources; `most` above 0 leaves a seeded choice.

    Raises:
        DataError: A file is missing or malformed, or none is left.
    """
    minimum = settings.sft.minimum_reward
    found = [item for source in sources for item in read_demonstrations(source)]
    kept = [item for item in found if item.messages and (minimum is None or item.reward >= minimum)]
    if not kept:
        wanted = f" with a reward of at least {minimum:g}" if minimum is not None else ""
        raise DataError(
            f"None of the {len(found)} recorded episodes is a demonstration{wanted}.",
            remedy="finqa eval scripted --split train --run-dir DIR",
        )
    if not most or most >= len(kept):
        return kept
    chosen = random.Random(derive(settings.train.seed, "sft-most")).sample(range(len(kept)), most)
    return [kept[index] for index in sorted(chosen)]


def imitation_set(demonstrations: Sequence[Demonstration], settings: Settings, codec: ChatCodec) -> ImitationSet:
    """Encodes them; `sft.validation_share` of the companies are held out whole, at least one of several.

    Raises:
        DataError: A demonstration cannot be encoded, or there is none to train on.
    """
    clusters = sorted({item.cluster for item in demonstrations})
    random.Random(derive(settings.train.seed, "sft-validation")).shuffle(clusters)
    share = settings.sft.validation_share
    held_out = set(clusters[: math.ceil(share * len(clusters))]) if share and len(clusters) > 1 else set()
    parts: dict[bool, list[Sample]] = {False: [], True: []}
    for item in demonstrations:
        sample = demonstration_sample(item.prompt, item.messages, codec, name=item.id)
        parts[item.cluster in held_out].append(replace(sample, episode=item.id))
    if not parts[False] or settings.sft.epochs * len(parts[False]) < 1:
        raise DataError(f"Of {len(demonstrations)} demonstrations none is left to train on.", remedy="--epochs 1")
    return ImitationSet(
        train=tuple(parts[False]),
        held_out=tuple(parts[True]),
        companies=frozenset(clusters) - held_out,
    )


def imitation_steps(samples: Sequence[Sample], settings: Settings) -> list[list[Sample]]:
    """The batch of each optimizer step, in order: each epoch in a seeded order of its own."""
    return list(_batches(samples, settings))


def texts_of(demonstrations: Sequence[Demonstration]) -> list[str]:
    """Everything that is said in them, for a tokenizer to learn from."""
    return [text for item in demonstrations for text in _texts(item)]


def _batches(samples: Sequence[Sample], settings: Settings) -> Iterator[list[Sample]]:
    remaining = round(settings.sft.epochs * len(samples))
    batch: list[Sample] = []
    tokens = epoch = 0
    while remaining > 0:
        order = list(samples)
        random.Random(derive(settings.train.seed, "sft-epoch", epoch)).shuffle(order)
        for sample in order[:remaining]:
            if batch and tokens + len(sample.token_ids) > settings.sft.batch_tokens:
                yield batch
                batch, tokens = [], 0
            batch.append(sample)
            tokens += len(sample.token_ids)
        remaining -= len(order)
        epoch += 1
    if batch:
        yield batch


def _texts(demonstration: Demonstration) -> Iterator[str]:
    yield from (json.dumps(tool.as_function(), ensure_ascii=False) for tool in demonstration.prompt.tools)
    for message in (*demonstration.prompt.messages, *demonstration.messages):
        if message.content:
            yield message.content
        if message.tool_call is not None:
            call = {"name": message.tool_call.name, "arguments": dict(message.tool_call.arguments)}
            yield json.dumps(call, ensure_ascii=False)
