"""Supervised fine-tuning on recorded demonstrations, of a given policy or of a new model."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finqa_cli.algorithms.samples import demonstration_sample
from finqa_cli.contracts import ChatCodec, Learner
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.extend import registry
from finqa_cli.rollout.seeds import derive
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import new_folder, sha256_of, write_json
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import policy_inputs, training_run, write_manifest
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import Demonstration, demonstrations_file, read_demonstrations
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.settings.learning_rates import SFT_RATES, rate_for
from finqa_cli.training.estimate import Again, no_command
from finqa_cli.training.evaluations import Ask
from finqa_cli.training.held_out_questions import SAMPLES, choose_questions, train_on_file
from finqa_cli.training.running_learner import check_disk, check_learner, fit_memory, schedule_steps
from finqa_cli.training.sft.sft_loop import SupervisedTraining, Validation
from finqa_cli.training.training_data import guard_demonstrations
from finqa_cli.training.training_loop import RunContext, best_policy, final_policy, result_document
from finqa_cli.types import PolicyVersion, Sample
from finqa_cli.wiring.build import make_codec, make_trackers
from finqa_cli.wiring.policies import find_start, start_inputs, whole_model

WANTED_PARSE_RATE = 0.9
"""Share of answers in the right format that a policy should have before reinforcement learning; `finqa sft` reports a
lower share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """The demonstrations to imitate, which are not part of the settings.

    Attributes:
        sources: Run folders or trajectory files.
        init: Specification of a new model that is created and trained with all weights; None: the model of the
            settings.
        most: Most demonstrations; 0: all.
    """

    sources: tuple[Path, ...]
    init: Path | None = None
    most: int = 0

    def to_parameters(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        init = str(self.init) if self.init else None
        return {"demonstrations": [str(path) for path in self.sources], "init": init, "most_demonstrations": self.most}

    @classmethod
    def from_parameters(cls, stored: Mapping[str, Any]) -> Imitation:
        """Return the demonstrations from the parameters of a manifest."""
        init = Path(stored["init"]) if stored["init"] else None
        sources = tuple(Path(path) for path in stored["demonstrations"])
        return cls(sources=sources, init=init, most=int(stored["most_demonstrations"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """Result of supervised fine-tuning. Losses are in nats per demonstrated token; figures are None if not measured.

    Attributes:
        run: Folder of the run.
        policy: Folder of the last model or adapter.
        best: Folder of the policy with the lowest loss on held-out demonstrations.
        best_step: Step of that policy.
        steps: Optimizer steps.
        demonstrations: Number of training demonstrations.
        held_out: Number of held-out demonstrations.
        tokens: Tokens that the learner processed, prompts included.
        loss: Loss of the last step.
        before: Evaluation on held-out companies before training.
        after: The last evaluation.
        validation_loss: Loss of the last evaluation.
        validation_episode_loss: The same in nats per demonstration.
        parse_rate: Share of the last policy's answers to held-out questions in the right format.
        parse_rate_reached: Whether `parse_rate` is at least `parse_rate_wanted`.
        parse_rate_wanted: `WANTED_PARSE_RATE`.
        seconds: Wall-clock seconds.
    """

    run: Path
    policy: Path
    best: Path | None
    best_step: int | None
    steps: int
    demonstrations: int
    held_out: int
    tokens: int
    loss: float
    before: Validation | None
    after: Validation | None
    validation_loss: float | None
    validation_episode_loss: float | None
    parse_rate: float | None
    parse_rate_reached: bool | None
    parse_rate_wanted: float
    seconds: float


async def sft(
    settings: Settings,
    wanted: Imitation,
    run: Path,
    *,
    resume: bool,
    reporter: Reporter,
    stopper: Stopper,
    again: Again = no_command,
) -> SftResult:
    """Train on demonstrations, and validate on held-out companies.

    Args:
        settings: Settings of the training, and of the environment of the held-out questions.
        wanted: The demonstrations, and the specification of a new model if one is created.
        run: A new folder, or with `resume` the folder of an interrupted run.
        resume: Resume after the newest checkpoint.
        reporter: Shows the progress.
        stopper: Stops the run after signals.
        again: See `RunContext`.

    Raises:
        DataError: There are no usable demonstrations, a record is malformed, or they solve evaluation tasks.
        ConfigError: The settings do not fit, the specification is unreadable, no plugin knows its family, or the
            demonstrations or the model differ from those with which the run started.
        FinqaError: A loss was not finite.
        ThresholdError: Too many answers to held-out questions ended in faults.
        InterruptedRun: A signal stopped the run; `--resume` continues after the newest checkpoint.
    """
    started = time.perf_counter()
    kept = choose_demonstrations(settings, wanted.sources, most=wanted.most)
    guard_demonstrations(settings, wanted.sources, {item.id for item in kept}, reporter)
    checkpoint = checkpoints.latest(run) if resume else None
    start = None if wanted.init else await asyncio.to_thread(find_start, settings.model.name, run)
    parameters = _parameters(settings, wanted)
    if checkpoint is None and start is not None:
        check_disk(settings, start, run)
        await asyncio.to_thread(check_learner, settings, start)
    with training_run(run, checkpoint, command="sft", settings=settings, resume=resume) as folder:
        if not resume:  # a resumed run needs its parameters, even if it was interrupted early
            write_manifest(run, "sft", parameters=parameters, inputs={})
        folder.link(*map(str, (*wanted.sources, wanted.init or "")))
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        context = RunContext(
            settings=settings, folder=folder, tracking=tracking, reporter=reporter, stopper=stopper, again=again
        )
        model = _create(wanted.init, kept, run, settings.train.seed) if start is None else start
        model = await asyncio.to_thread(whole_model, model, run, reporter)
        with context.work(f"encoding {len(kept)} demonstrations"):
            codec = await asyncio.to_thread(make_codec, settings, model.model)
            data = imitation_set(kept, settings, codec)
        questions = choose_questions(settings, settings.sft.validation_samples, data.companies, reporter)
        reporter.line(f"{len(data.train)} demonstrations for training, {len(data.held_out)} for validation.")
        if questions:
            _warn_of_long_replies(data, settings, reporter)
        with context.work(f"computing the digests of {model.model} and of the demonstrations"):
            inputs = await asyncio.to_thread(_inputs, wanted, model, run)
        inputs["format"] = dict(codec.facts())
        digests = "".join(file["sha256"] for file in inputs["demonstrations"])
        folder.pin("demonstrations digest", hashlib.sha256(digests.encode()).hexdigest())
        folder.pin("policy digest", inputs["policy"]["sha256"] or model.model)
        write_manifest(run, "sft", parameters=parameters, inputs=inputs)
        steps = imitation_steps(data.train, settings)
        planned = fit_memory(_planned(settings, len(steps), whole=wanted.init is not None), run)
        context = replace(context, settings=planned)

        async def make(learner: Learner, ask: Ask | None) -> SupervisedTraining:
            return SupervisedTraining(context, learner, steps, data.held_out, ask)

        training = await train_on_file(context, model, questions, checkpoint, make)
        result = _result(run, data, training, time.perf_counter() - started)
        write_json(run / "report.json", result_document(result))
        outputs = _outputs(result)
        await asyncio.to_thread(write_manifest, run, "sft", parameters=parameters, inputs=inputs, outputs=outputs)
        folder.finish("completed")
    _report_parse_rate(result, reporter)
    return result


def _warn_of_long_replies(data: ImitationSet, settings: Settings, reporter: Reporter) -> None:
    """Say that replies as long as those of the demonstrations would be cut."""
    longest, limit = max(map(longest_reply, data.train)), settings.generation.max_gen_tokens
    if longest > limit:
        reporter.line(
            f"The longest reply of the demonstrations has {longest} tokens in this tokenizer, so replies of the "
            f"policy would be cut at --max-gen-tokens {limit}; --max-gen-tokens {round_up(longest)} lets them end"
        )


def _report_parse_rate(result: SftResult, reporter: Reporter) -> None:
    """Say that too few answers have the right form."""
    if result.parse_rate_reached is False:
        reporter.line(
            f"Only {100 * (result.parse_rate or 0.0):.0f} % of the answers have the right form, fewer than the "
            f"{100 * WANTED_PARSE_RATE:.0f} % that reinforcement learning needs: see "
            f"{result.run / SAMPLES}, and train longer (--epochs) or on more."
        )


def _planned(settings: Settings, steps: int, *, whole: bool) -> Settings:
    """Return the settings with the learning rate of `sft` and a schedule over the steps; `whole` trains all weights."""
    sft = settings.sft
    planned = schedule_steps(
        settings, "cosine", warmup_share=sft.warmup_share, steps=steps, warmup_steps=sft.warmup_steps
    )
    rate = settings.sft.learning_rate or rate_for(settings.lora.rank, SFT_RATES)
    changes: dict[str, Any] = {"train": settings.train.model_copy(update={"learning_rate": rate})}
    if whole:  # a new model has no trained weights to which an adapter could be added
        changes["lora"] = settings.lora.model_copy(update={"rank": 0})
    return planned.model_copy(update=changes)


def _create(specification: Path | None, demonstrations: Sequence[Demonstration], run: Path, seed: int) -> PolicyVersion:
    """Create model and tokenizer in RUN/init; a resumed run uses the existing ones."""
    assert specification is not None
    target = (run / "init").resolve()
    made = PolicyVersion(number=0, model=str(target))
    if target.is_dir():
        return made
    if not specification.is_file():
        raise ConfigError(f"There is no model specification at {specification}.", remedy="finqa config list")
    with new_folder(target) as folder:
        policy: PolicyVersion | None = registry().first(
            "create_policy",
            PolicyVersion,
            specification=specification,
            texts=texts_of(demonstrations),
            folder=folder,
            seed=seed,
        )
        if policy is None:
            raise ConfigError(
                f"No plugin creates a model from the specification {specification}.", remedy="finqa plugins"
            )
    return made


def _parameters(settings: Settings, wanted: Imitation) -> dict[str, Any]:
    """Return the settings that the trained policy and its validation depend on."""
    public = to_public_dict(settings)
    sections = ("sft", "lora", "learner", "codec", "environment", "reward", "generation")
    return {
        **wanted.to_parameters(),
        "model": None if wanted.init else settings.model.name,
        "split": settings.data.eval_split,
        "seed": settings.train.seed,
        "max_grad_norm": settings.train.max_grad_norm,
        **{section: public[section] for section in sections},
    }


def _inputs(wanted: Imitation, model: PolicyVersion, run: Path) -> dict[str, Any]:
    files = [demonstrations_file(source) for source in wanted.sources]
    inputs: dict[str, Any] = {"demonstrations": [{"path": str(path), "sha256": sha256_of(path)} for path in files]}
    if wanted.init is None:
        return {**inputs, "policy": start_inputs(model, run)}
    specification = {"path": str(wanted.init), "sha256": sha256_of(wanted.init)}
    return {**inputs, "specification": specification, "policy": policy_inputs(model)}


def _result(run: Path, data: ImitationSet, training: SupervisedTraining, seconds: float) -> SftResult:
    after, best = training.after, training.best
    rate = after.samples.parse_rate if after and after.samples else None
    metrics = read_jsonl(run / "metrics.jsonl")
    return SftResult(
        run=run,
        policy=final_policy(run),
        best=best_policy(run) if best else None,
        best_step=best.step if best else None,
        steps=training.done,
        demonstrations=len(data.train),
        held_out=len(data.held_out),
        tokens=sum(record["tokens"] for record in metrics if record["kind"] == "sft"),
        loss=training.loss,
        before=training.before,
        after=after,
        validation_loss=after.loss if after else None,
        validation_episode_loss=after.episode_loss if after else None,
        parse_rate=rate,
        parse_rate_reached=None if rate is None else rate >= WANTED_PARSE_RATE,
        parse_rate_wanted=WANTED_PARSE_RATE,
        seconds=seconds,
    )


def _outputs(result: SftResult) -> list[Path]:
    files = [result.run / name for name in ("report.json", "metrics.jsonl")]
    folders = [result.policy, *([result.best] if result.best else []), result.run / SAMPLES]
    return files + [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationSet:
    """Demonstrations as token sequences.

    Attributes:
        train: Demonstrations to train on.
        held_out: Demonstrations to validate on; no company is in both.
        companies: Companies of the demonstrations that are used for training.
    """

    train: tuple[Sample, ...]
    held_out: tuple[Sample, ...]
    companies: frozenset[str]


def choose_demonstrations(settings: Settings, sources: Sequence[Path], *, most: int) -> list[Demonstration]:
    """Return the demonstrations with at least `sft.minimum_reward`; with `most` above 0, a seeded choice of them.

    Raises:
        DataError: A file is missing or malformed, or no demonstration is left.
    """
    minimum = settings.sft.minimum_reward
    found = [item for source in sources for item in read_demonstrations(source)]
    kept = [item for item in found if item.messages and (minimum is None or item.reward >= minimum)]
    if not kept:
        wanted = f" with a reward of at least {minimum:g}" if minimum is not None else ""
        raise DataError(
            f"None of the {len(found)} recorded episodes is a demonstration{wanted}.",
            remedy="finqa eval scripted --split train --run-dir DIR, then finqa sft DIR",
        )
    if not most or most >= len(kept):
        return kept
    chosen = random.Random(derive(settings.train.seed, "sft-most")).sample(range(len(kept)), most)
    return [kept[index] for index in sorted(chosen)]


def imitation_set(demonstrations: Sequence[Demonstration], settings: Settings, codec: ChatCodec) -> ImitationSet:
    """Encode the demonstrations, and hold out `sft.validation_share` of the companies with all their demonstrations.

    If the share is above 0 and there are several companies, at least one is held out.

    Raises:
        DataError: A demonstration cannot be encoded, or none is left for training.
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
        raise DataError(f"Of {len(demonstrations)} demonstrations, none is left for training.", remedy="--epochs 1")
    return ImitationSet(
        train=tuple(parts[False]),
        held_out=tuple(parts[True]),
        companies=frozenset(clusters) - held_out,
    )


def longest_reply(sample: Sample) -> int:
    """Return the tokens of the longest reply of a demonstration."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], np.asarray(sample.loss_mask, dtype=np.int8), [0]))))
    return int(max(edges[1::2] - edges[::2], default=0))


def round_up(tokens: int) -> int:
    """Return a limit with a margin of a quarter, in steps of 32."""
    return -(-5 * tokens // (4 * 32)) * 32


def imitation_steps(samples: Sequence[Sample], settings: Settings) -> list[list[Sample]]:
    """Return the samples of each optimizer step. Each epoch has its own seeded order."""
    return list(_batches(samples, settings))


def texts_of(demonstrations: Sequence[Demonstration]) -> list[str]:
    """Return all texts of the demonstrations, to train a tokenizer on."""
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
        for call in message.calls:
            yield json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
