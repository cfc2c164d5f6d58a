"""Direct preference optimization (DPO) on recorded pairs. Rollouts are only played for held-out questions."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Learner, PreferenceOptimizer
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import sha256_of, write_json
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import training_run, write_manifest
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import pairs_file, read_pairs
from finqa_cli.settings import Settings
from finqa_cli.training.estimate import Again, no_command
from finqa_cli.training.evaluations import Ask
from finqa_cli.training.held_out_questions import SAMPLES, choose_questions, train_on_file
from finqa_cli.training.preference.preference_loop import (
    HeldOut,
    PairSet,
    PreferenceTraining,
    add_references,
    load_pairs,
    pair_steps,
)
from finqa_cli.training.running_learner import check_disk, check_learner, fit_memory, schedule_steps
from finqa_cli.training.training_data import guard_demonstrations
from finqa_cli.training.training_loop import RunContext, best_policy, final_policy, result_document
from finqa_cli.wiring.build import make_codec, make_optimizer, make_trackers
from finqa_cli.wiring.policies import find_start, start_inputs, whole_model


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoResult:
    """Result of a training run by DPO.

    Attributes:
        run: Folder of the run.
        policy: Folder of the last adapter, or of the last model with rank 0.
        best: Folder of the policy with the best evaluation on held-out pairs; None without held-out pairs.
        best_step: Step of that policy; None without held-out pairs.
        steps: Optimizer steps.
        pairs: Number of training pairs.
        before: Evaluation on held-out pairs before training; None without held-out pairs.
        after: The last evaluation on held-out pairs; None without held-out pairs.
        seconds: Wall-clock seconds.
    """

    run: Path
    policy: Path
    best: Path | None
    best_step: int | None
    steps: int
    pairs: int
    before: HeldOut | None
    after: HeldOut | None
    seconds: float


async def dpo(
    settings: Settings,
    source: Path,
    run: Path,
    *,
    resume: bool,
    most: int,
    reporter: Reporter,
    stopper: Stopper,
    again: Again = no_command,
) -> DpoResult:
    """Train on the pairs that are not held out, and evaluate on the held-out pairs.

    Log-probabilities are computed at temperature 1, even if the pairs were sampled at another temperature, because the
    loss is defined on the policy itself. The reference is the policy that training starts from.

    Args:
        settings: Settings, with an optimizer that learns from pairs.
        source: A folder of `finqa prefs`, or its pairs.jsonl.
        run: A new folder, or with `resume` the folder of an interrupted run.
        resume: Resume after the newest checkpoint.
        most: Most training pairs, and most held-out pairs; 0: all.
        reporter: Shows the progress.
        stopper: Stops the run after signals.
        again: See `RunContext`.

    Raises:
        DataError: There are no usable pairs, a row is wrong, or the pairs are of evaluation tasks.
        ConfigError: The settings do not fit, or the pairs or the model differ from those with which the run started.
        FinqaError: A loss was not finite.
        InterruptedRun: A signal stopped the run; `--resume` continues after the newest checkpoint.
    """
    started = time.perf_counter()
    optimizer = _preference_optimizer(settings)
    path = pairs_file(source)
    trained = {pair.id for pair in read_pairs(path) if not pair.held_out}
    guard_demonstrations(settings, [path], trained, reporter)
    start = await asyncio.to_thread(find_start, settings.model.name, run)
    checkpoint = checkpoints.latest(run) if resume else None
    with reporter.work(f"reading and encoding the pairs of {path}"):
        codec = await asyncio.to_thread(make_codec, settings, start.model)
        pairs = load_pairs(path, codec, most=most)
    _report_pairs(pairs, reporter)
    parameters = _parameters(settings, source, most)
    if checkpoint is None:
        check_disk(settings, start, run)
        await asyncio.to_thread(check_learner, settings, start)
    with training_run(run, checkpoint, command="dpo", settings=settings, resume=resume) as folder:
        if not resume:  # a resumed run needs its parameters, even if it was interrupted early
            write_manifest(run, "dpo", parameters=parameters, inputs={})
        folder.link(str(source))
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        model = await asyncio.to_thread(whole_model, start, run, reporter)
        inputs: dict[str, Any] = {"pairs": {"path": str(path), "sha256": await asyncio.to_thread(sha256_of, path)}}
        inputs["format"] = dict(codec.facts())
        with reporter.work(f"computing the digest of {model.model}"):
            inputs["policy"] = await asyncio.to_thread(start_inputs, model, run)
        folder.pin("pairs digest", inputs["pairs"]["sha256"])
        folder.pin("policy digest", inputs["policy"]["sha256"] or model.model)
        write_manifest(run, "dpo", parameters=parameters, inputs=inputs)
        plan = optimizer.plan()
        count = len(pair_steps(pairs.train, plan, settings.train.seed))
        if count < 1:
            raise DataError(f"{plan.epochs:g} epochs of {len(pairs.train)} pairs give no step.", remedy="--epochs 1")
        planned = fit_memory(schedule_steps(settings, "linear", warmup_share=plan.warmup_share, steps=count), run)
        context = RunContext(
            settings=planned, folder=folder, tracking=tracking, reporter=reporter, stopper=stopper, again=again
        )
        companies = {pair.cluster for pair in pairs.train}
        questions = choose_questions(settings, plan.validation_samples, companies, reporter)
        make = partial(_loop, context, optimizer, pairs)
        training = await train_on_file(context, model, questions, checkpoint, make)
        result = _result(run, training, len(pairs.train), time.perf_counter() - started)
        write_json(run / "report.json", result_document(result))
        write_manifest(run, "dpo", parameters=parameters, inputs=inputs, outputs=_outputs(result))
        folder.finish("completed")
    return result


def _preference_optimizer(settings: Settings) -> PreferenceOptimizer:
    """Return the method.

    Raises:
        ConfigError: It does not learn from pairs.
    """
    optimizer = make_optimizer(settings)
    if not isinstance(optimizer, PreferenceOptimizer):
        raise ConfigError(
            f"Method {settings.optimizer.name!r} does not learn from pairs.", remedy="--set optimizer.name=dpo"
        )
    return optimizer


def _result(run: Path, training: PreferenceTraining, pairs: int, seconds: float) -> DpoResult:
    return DpoResult(
        run=run,
        policy=final_policy(run),
        best=best_policy(run) if training.best else None,
        best_step=training.best.step if training.best else None,
        steps=training.done,
        pairs=pairs,
        before=training.before,
        after=training.after,
        seconds=seconds,
    )


def _outputs(result: DpoResult) -> list[Path]:
    folders = (result.policy, result.run / SAMPLES)
    files = (path for folder in folders for path in sorted(folder.glob("*")) if path.is_file())
    return [result.run / "report.json", *files]


async def _loop(
    context: RunContext, optimizer: PreferenceOptimizer, pairs: PairSet, learner: Learner, ask: Ask | None
) -> PreferenceTraining:
    """Construct the training loop. If the loss needs them, reference log-probabilities are computed first."""
    plan, loss = optimizer.plan(), optimizer.pair_loss()
    train, held_out = pairs.train, pairs.held_out
    if loss.needs_reference:
        train = await add_references(context, learner, train, name="reference")
        held_out = await add_references(context, learner, held_out, name="held-out reference")
    steps = pair_steps(train, plan, context.settings.train.seed)
    return PreferenceTraining(context, learner, loss, steps, held_out, ask, evaluate_every=plan.validate_every)


def _parameters(settings: Settings, source: Path, most: int) -> dict[str, Any]:
    return {
        "target": str(source),
        "most_pairs": most,
        "model": settings.model.name,
        "optimizer": settings.optimizer.name,
        **settings.optimizer.options,
        "learning_rate": settings.train.learning_rate,
        "max_grad_norm": settings.train.max_grad_norm,
        "lora": settings.lora.model_dump(mode="json"),
        "seed": settings.train.seed,
    }


def _report_pairs(pairs: PairSet, reporter: Reporter) -> None:
    reporter.line(f"{len(pairs.train)} pairs to train on, {len(pairs.held_out)} held out.")
    if pairs.encoded_again:
        reporter.line(
            f"{pairs.encoded_again} pairs are encoded from their texts, because they have no token "
            "ids or ids of another tokenizer or template."
        )
    if pairs.alike:
        reporter.line(f"{pairs.alike} pairs are skipped: both sides have the same tokens.")
