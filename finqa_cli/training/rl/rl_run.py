"""Training from settings to a finished run: set up, resume, loop, before and after."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Optimizer, PreferenceOptimizer, TokenEngine
from finqa_cli.errors import AuthenticationError, ConfigError, ServiceUnavailableError, UsageError
from finqa_cli.evaluation.evaluate import eval_tasks
from finqa_cli.evaluation.reward_tests import reward_digest, reward_facts
from finqa_cli.runs import checkpoints
from finqa_cli.runs.durable_files import storage
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.new_runs import new_run
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.step_manifest import write_manifest
from finqa_cli.runs.tracking import Tracking
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.training.guarded_splits import guard_training
from finqa_cli.training.rl.trainer import Progress, Trainer
from finqa_cli.training.rl.training_tasks import training_tasks
from finqa_cli.training.rl.updates import length_limit, training_loss, training_passes
from finqa_cli.training.running_learner import fit_memory, learning
from finqa_cli.training.schedules import scheduled
from finqa_cli.training.start_points import find_start, start_inputs, whole_model
from finqa_cli.types import PolicyVersion
from finqa_cli.wiring.build import make_optimizer, make_trackers
from finqa_cli.wiring.policies import of_checkpoint
from finqa_cli.wiring.stage import stage


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """`before` and `after` are the evaluations of the first and the last policy on held-out companies."""

    run: Path
    iterations: int
    before: dict[str, Any]
    after: dict[str, Any]
    seconds: float


async def train(settings: Settings, run: Path, *, resume: bool, reporter: Reporter, stopper: Stopper) -> TrainResult:
    """Runs the training loop in a new run folder, or goes on after the newest checkpoint of an existing one.

    Raises:
        UsageError: The optimizer learns from pairs or from demonstrations, which are not played.
        ConfigError: The engine cannot serve training, or the settings do not fit the data or each other.
        DataError: The data is for evaluation only, or overlaps with what is evaluated on.
        ServiceUnavailableError: No sandbox can be had, or too many are lost; the remedy ends with how to go on.
        InterruptedRun: A signal stopped it; what the newest checkpoint holds is kept, later iterations are redone.
        ThresholdError: More episodes ended in faults than the settings allow.
    """
    started = time.perf_counter()
    checkpoint = checkpoints.latest(run) if resume else None
    start = await asyncio.to_thread(find_start, settings.model.name, run)
    check_method(settings)
    guard_training(settings, reporter)
    with _folder(settings, run, resume, checkpoint.iteration if checkpoint else -1) as folder:
        base = await asyncio.to_thread(whole_model, start, run, reporter)
        progress = _progress(run, base, checkpoint)
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        try:
            with tracking.run(to_public_dict(settings)):
                trainer = await _train(settings, folder, base, progress, checkpoint, tracking, reporter, stopper)
        except (AuthenticationError, ServiceUnavailableError) as error:
            error.remedy = ", then ".join(filter(None, (error.remedy, f"finqa train --resume {run}")))
            raise
    evaluations = _evaluations(run)
    return TrainResult(
        run=run,
        iterations=trainer.progress.iteration,
        before=evaluations[0] if evaluations else {},
        after=evaluations[-1] if evaluations else {},
        seconds=time.perf_counter() - started,
    )


def check_method(settings: Settings) -> None:
    """Looks whether the method can train with the settings, before boxes and engine are started.

    Raises:
        UsageError: The optimizer learns from pairs or from demonstrations, which are not played.
        ConfigError: An option is wrong, or settings do not go with the method or with each other.
    """
    _check_sampling(settings)
    optimizer = make_optimizer(settings)
    _check_groups(optimizer, settings)
    training_loss(optimizer, settings.train)
    length_limit(settings.train, settings.generation.max_gen_tokens)
    scheduled(settings, training_passes(optimizer, settings.train))


async def _train(
    settings: Settings,
    folder: RunFolder,
    base: PolicyVersion,
    progress: Progress,
    checkpoint: checkpoints.Checkpoint | None,
    tracking: Tracking,
    reporter: Reporter,
    stopper: Stopper,
) -> Trainer:
    async with stage(
        settings,
        progress.policy,
        run_id=folder.path.name,
        reporter=reporter,
        trains=True,
        run_dir=folder.path,
        check_stop=lambda: stopper.check(f"finqa train --resume {folder.path}"),
        on_event=lambda name, facts: folder.event(name, **facts),
    ) as parts:
        engine = parts.engine
        assert isinstance(engine, TokenEngine), "the stage gives training no other"
        folder.pin("snapshot digest", parts.data.digest)
        tasks = await training_tasks(parts, settings, reporter)
        inputs = {"policy": await asyncio.to_thread(start_inputs, base, folder.path), "data": asdict(parts.data)}
        parameters = _parameters(settings)
        folder.pin("reward digest", reward_digest(parameters["reward"]))
        write_manifest(folder.path, "train", parameters=parameters, inputs=inputs)
        optimizer = make_optimizer(settings)
        settings = fit_memory(settings, folder.path)
        of_plan = scheduled(settings, training_passes(optimizer, settings.train))
        async with learning(
            of_plan, base.model, folder, reporter, resume=f"finqa train --resume {folder.path}"
        ) as learner:
            if checkpoint is not None:
                await asyncio.to_thread(learner.load, checkpoint.path / "learner")
            trainer = Trainer(
                settings=settings,
                parts=parts,
                engine=engine,
                learner=learner,
                optimizer=optimizer,
                tasks=tasks,
                held_out=eval_tasks(parts.environment, settings),
                folder=folder,
                tracking=tracking,
                reporter=reporter,
                stopper=stopper,
                progress=progress,
            )
            await trainer.run(fresh=checkpoint is None)
    outputs = _outputs(folder.path, trainer.progress.iteration)
    await asyncio.to_thread(write_manifest, folder.path, "train", parameters=parameters, inputs=inputs, outputs=outputs)
    folder.finish("completed")
    return trainer


def _outputs(run: Path, iteration: int) -> list[Path]:
    """The records, and the checkpoint of the last iteration with the trained policy in it."""
    checkpoint = checkpoints.folder_of(run, iteration)
    files = [run / "metrics.jsonl", run / "trajectories.jsonl", *sorted(checkpoint.rglob("*"))]
    return [path for path in files if path.is_file()]


def _parameters(settings: Settings) -> dict[str, Any]:
    """What the trained policy and its figures depend on."""
    public = to_public_dict(settings)
    sections = ("environment", "optimizer", "learner", "engine", "codec", "data", "lora", "generation")
    return {
        "model": settings.model.name,
        "seed": settings.train.seed,
        **{section: public[section] for section in (*sections, "train", "eval")},
        "reward": reward_facts(settings),
    }


def _check_groups(optimizer: Optimizer, settings: Settings) -> None:
    name = settings.optimizer.name
    if name == "sft":
        raise UsageError(
            "sft imitates all that it is shown, right or wrong, so it learns from demonstrations and not from groups "
            "that the policy plays itself.",
            remedy="finqa eval scripted --split train, finqa sft RUN",
        )
    if isinstance(optimizer, PreferenceOptimizer):
        raise UsageError(
            f"{name} learns from recorded pairs of attempts, not from groups that are played, and no pairs are given.",
            remedy=f"finqa sample TARGET, finqa prefs RUN, finqa train --optimizer {name} --pairs PAIRS",
        )


def _check_sampling(settings: Settings) -> None:
    if settings.generation.top_p < 1:
        raise ConfigError(
            f"generation.top_p={settings.generation.top_p:g} cannot be trained with: the sampler's log-probabilities "
            "are of the nucleus and the learner's of the whole vocabulary, so their ratio would be wrong.",
            remedy="--set generation.top_p=1",
        )


def _progress(run: Path, base: PolicyVersion, checkpoint: checkpoints.Checkpoint | None) -> Progress:
    if checkpoint is None:
        return Progress(policy=base)
    checkpoints.discard_after(run, checkpoint.iteration)
    shutil.rmtree(run / "policies", ignore_errors=True)  # newer ones among them would pass for the latest
    newest = of_checkpoint(checkpoint)
    number = int(checkpoint.state["serving_version"])
    policy = base
    if number:
        # What the engine serves moves out of the checkpoint, which will be pruned while it is still needed.
        lags = number != newest.number  # the engine was behind the learner when the checkpoint was written
        served = checkpoint.path / ("serving" if lags else "policy")
        folder = run / "policies" / f"v{number:05d}"
        with storage(folder):
            shutil.copytree(served, folder)
        if newest.adapter is None:
            policy = PolicyVersion(number=number, model=str(folder))
        else:
            policy = PolicyVersion(number=number, model=newest.model, adapter=folder)
    return Progress(
        iteration=checkpoint.iteration,
        cursor=int(checkpoint.state["cursor"]),
        unsettled=checkpoint.state.get("unsettled", ()),
        policy=policy,
        published=newest.number,
        informative_share=checkpoint.state.get("informative_share"),
        probe_tolerance=checkpoint.state.get("probe_tolerance"),
    )


def _folder(settings: Settings, run: Path, resume: bool, iteration: int) -> AbstractContextManager[RunFolder]:
    if not resume:
        return new_run(run, command="train", settings=settings)
    facts = to_public_dict(settings)
    return RunFolder.reopen(run, settings=facts, save_token_ids=settings.run.save_token_ids, iteration=iteration)


def _evaluations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "eval"]
