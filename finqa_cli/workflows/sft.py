"""Supervised fine-tuning on recorded demonstrations, from a given model or from nothing."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import ChatCodec, Learner
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.learn import demonstration_sample, pack
from finqa_cli.record.run_folder import RunFolder
from finqa_cli.record.trajectories import Demonstration, read_demonstrations
from finqa_cli.rollout.seeds import derive
from finqa_cli.settings import Choice, Settings, to_public_dict
from finqa_cli.types import LossSpec, PolicyVersion, Sample
from finqa_cli.workflows.interrupts import Stopper
from finqa_cli.workflows.policies import whole_model
from finqa_cli.workflows.reporter import Reporter
from finqa_cli.workflows.split_guard import guard_demonstrations
from finqa_cli.workflows.wiring import make_codec, make_learner

CROSS_ENTROPY = LossSpec(name="cross_entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """`policy` is the folder of the trained model (rank 0) or adapter; losses are nats per demonstrated token."""

    run: Path
    policy: Path
    steps: int
    demonstrations: int
    loss: float
    validation_loss: float | None
    seconds: float


async def sft(
    settings: Settings, data: Sequence[Path], run: Path, *, init: Path | None, reporter: Reporter, stopper: Stopper
) -> SftResult:
    """Trains on demonstrations; with `init`, tokenizer and model are made anew from that specification first.

    Raises:
        DataError: There are no usable demonstrations, a record is malformed, or they solve evaluation tasks.
        ConfigError: The specification is unreadable or no plugin knows its family.
    """
    started = time.perf_counter()
    kept = _demonstrations(settings, data)
    guard_demonstrations(settings, data, {item.id for item in kept}, reporter)
    facts = to_public_dict(settings)
    with RunFolder.create(run, command="sft", settings=facts, save_token_ids=False) as folder:
        model = _create(init, kept, run, settings.train.seed) if init else whole_model(settings.model.name)
        codec = make_codec(settings, model.model)
        train, validation = _split(kept, settings, codec)
        if not train or settings.sft.epochs * len(train) < 1:
            raise DataError(f"Of {len(kept)} demonstrations none is left to train on.", remedy="more data, or --epochs")
        reporter.line(f"{len(train)} demonstrations to train on, {len(validation)} to validate.")
        plan = list(_plan(train, settings))
        learner = make_learner(_scheduled(settings, len(plan), whole=init is not None), model.model)
        await asyncio.to_thread(learner.start)
        loss, held_out = await _train(learner, plan, validation, settings, folder, reporter, stopper)
        policy = await asyncio.to_thread(learner.publish, run / "policy", 1)
        stopper.check(f"the steps that were taken are in {run / 'policy'}")
        folder.finish("completed")
    return SftResult(
        run=run,
        policy=policy.adapter or Path(policy.model),
        steps=len(plan),
        demonstrations=len(train),
        loss=loss,
        validation_loss=held_out,
        seconds=time.perf_counter() - started,
    )


async def _train(
    learner: Learner,
    plan: Sequence[Sequence[Sample]],
    validation: Sequence[Sample],
    settings: Settings,
    folder: RunFolder,
    reporter: Reporter,
    stopper: Stopper,
) -> tuple[float, float | None]:
    loss, held_out = math.nan, None
    reporter.start("sft", len(plan))
    for step, samples in enumerate(plan, start=1):
        if stopper.requested:
            break
        batch = pack(samples, token_budget=settings.train.token_budget, max_rows=len(samples))
        report = await asyncio.to_thread(learner.update, batch, CROSS_ENTROPY)
        loss = report.loss
        facts: dict[str, Any] = {"kind": "sft", "step": step, "loss": loss, "grad_norm": report.grad_norm}
        if step % settings.sft.validate_every == 0 or step == len(plan):
            if validation:
                facts["validation_loss"] = held_out = await asyncio.to_thread(_loss, learner, validation)
                reporter.line(f"step {step}: loss {loss:.4f}, validation loss {held_out:.4f}")
            await asyncio.to_thread(learner.publish, folder.path / "policy", 1)  # a crash loses no more than this
        facts |= {"learning_rate": report.learning_rate, "timing": {"update_s": round(report.seconds, 4)}}
        folder.metrics(facts)
        reporter.advance("sft", step, loss=round(loss, 4))
    reporter.finish("sft")
    return loss, held_out


def _demonstrations(settings: Settings, data: Sequence[Path]) -> list[Demonstration]:
    minimum = settings.sft.minimum_reward
    found = [item for source in data for item in read_demonstrations(source)]
    kept = [item for item in found if item.messages and (minimum is None or item.reward >= minimum)]
    if not kept:
        wanted = f" with a reward of at least {minimum:g}" if minimum is not None else ""
        raise DataError(f"None of the {len(found)} recorded episodes is a demonstration{wanted}.")
    return kept


def _split(
    demonstrations: Sequence[Demonstration], settings: Settings, codec: ChatCodec
) -> tuple[list[Sample], list[Sample]]:
    """Samples to train on and to validate on; validation companies are held out whole."""
    clusters = sorted({item.cluster for item in demonstrations})
    random.Random(derive(settings.train.seed, "sft-validation")).shuffle(clusters)
    share = settings.sft.validation_share
    held_out = set(clusters[: math.ceil(share * len(clusters))]) if share and len(clusters) > 1 else set()
    train: list[Sample] = []
    validation: list[Sample] = []
    for item in demonstrations:
        sample = demonstration_sample(item.prompt, item.messages, codec, name=item.id)
        (validation if item.cluster in held_out else train).append(sample)
    return train, validation


def _plan(samples: Sequence[Sample], settings: Settings) -> Iterator[list[Sample]]:
    """The batches of all optimizer steps, in order: each epoch in a seeded order of its own."""
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


def _scheduled(settings: Settings, steps: int, *, whole: bool) -> Settings:
    """The settings with the schedule that fits the plan; a model made from nothing is trained whole."""
    schedule = {
        "schedule": "cosine",
        "total_steps": steps,
        "warmup_steps": round(settings.sft.warmup_share * steps),
        **settings.learner.options,
    }
    return settings.model_copy(
        update={
            "learner": Choice(name=settings.learner.name, options=schedule),
            "train": settings.train.model_copy(update={"learning_rate": settings.sft.learning_rate}),
            "lora": settings.lora.model_copy(update={"rank": 0}) if whole else settings.lora,
            "generation": settings.generation.model_copy(update={"temperature": 1.0}),
        }
    )


def _create(specification: Path, demonstrations: Sequence[Demonstration], run: Path, seed: int) -> PolicyVersion:
    if not specification.is_file():
        raise ConfigError(f"There is no model specification at {specification}.", remedy="finqa config list")
    texts = [text for item in demonstrations for text in _texts(item)]
    policy: PolicyVersion | None = registry().hook.create_policy(
        specification=specification, texts=texts, folder=run / "init", seed=seed
    )
    if policy is None:
        raise ConfigError(f"No plugin makes a model from the specification {specification}.", remedy="finqa plugins")
    return policy


def _texts(demonstration: Demonstration) -> Iterator[str]:
    """Everything that is said in a demonstration, for a tokenizer to learn from."""
    yield from (json.dumps(tool.as_function(), ensure_ascii=False) for tool in demonstration.prompt.tools)
    for message in (*demonstration.prompt.messages, *demonstration.messages):
        if message.content:
            yield message.content
        if message.tool_call is not None:
            call = {"name": message.tool_call.name, "arguments": dict(message.tool_call.arguments)}
            yield json.dumps(call, ensure_ascii=False)


def _loss(learner: Learner, samples: Sequence[Sample]) -> float:
    logprobs = learner.logprobs(samples)
    return -math.fsum(map(math.fsum, logprobs)) / sum(sample.loss_tokens for sample in samples)
