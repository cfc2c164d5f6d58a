"""Training from settings to a finished run: set up, resume, loop, before and after."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finqa_cli.contracts import TokenEngine
from finqa_cli.errors import ConfigError, DataError
from finqa_cli.record import checkpoints
from finqa_cli.record.jsonl import read_jsonl
from finqa_cli.record.run_folder import RunFolder
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.types import PolicyVersion
from finqa_cli.workflows.evaluate import eval_tasks
from finqa_cli.workflows.interrupts import Stopper
from finqa_cli.workflows.policies import of_checkpoint, resolve
from finqa_cli.workflows.reporter import Reporter
from finqa_cli.workflows.tracking import Tracking
from finqa_cli.workflows.trainer import Progress, Trainer
from finqa_cli.workflows.wiring import make_learner, make_optimizer, make_trackers, stage


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
        ConfigError: The engine cannot serve training, or the settings do not fit the data.
        InterruptedRun: A signal stopped it; the last finished iteration is in a checkpoint.
        ThresholdError: More episodes ended in faults than the settings allow.
    """
    started = time.perf_counter()
    checkpoint = checkpoints.latest(run) if resume else None
    base = resolve(settings.model.name)
    progress = _progress(base, checkpoint)
    with _folder(settings, run, resume, progress.iteration if checkpoint else -1) as folder:
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        tracking.run_start(to_public_dict(settings))
        async with stage(settings, progress.policy, run_id=run.name, reporter=reporter) as parts:
            engine = parts.engine
            if not isinstance(engine, TokenEngine):
                raise ConfigError(
                    f"Engine {settings.engine.name!r} gives no token ids and log-probabilities, so it cannot train.",
                    remedy="finqa train --engine transformers",
                )
            tasks = parts.environment.tasks(settings.data.train_split)
            if not tasks:
                raise DataError(f"Split {settings.data.train_split!r} of {settings.data.snapshot!r} has no questions.")
            learner = make_learner(settings, base.model)
            await asyncio.to_thread(learner.start)
            if checkpoint is not None:
                await asyncio.to_thread(learner.load, checkpoint.path / "learner")
            trainer = Trainer(
                settings=settings,
                parts=parts,
                engine=engine,
                learner=learner,
                optimizer=make_optimizer(settings),
                tasks=tasks,
                held_out=eval_tasks(parts.environment, settings),
                folder=folder,
                tracking=tracking,
                reporter=reporter,
                stopper=stopper,
                progress=progress,
            )
            await trainer.run(fresh=checkpoint is None)
        folder.finish("completed")
        tracking.run_end("completed")
    evaluations = _evaluations(run)
    return TrainResult(
        run=run,
        iterations=trainer.progress.iteration,
        before=evaluations[0],
        after=evaluations[-1],
        seconds=time.perf_counter() - started,
    )


def _progress(base: PolicyVersion, checkpoint: checkpoints.Checkpoint | None) -> Progress:
    if checkpoint is None:
        return Progress(policy=base)
    newest = of_checkpoint(checkpoint)
    serving_number = int(checkpoint.state["serving_version"])
    serving = checkpoint.path / "serving"
    policy = newest
    if serving_number != newest.number:  # the engine was behind the learner when the checkpoint was written
        adapter = newest.adapter is not None
        policy = PolicyVersion(
            number=serving_number,
            model=newest.model if adapter else str(serving),
            adapter=serving if adapter else None,
        )
    if serving_number == 0:
        policy = base
    return Progress(
        iteration=checkpoint.iteration,
        cursor=int(checkpoint.state["cursor"]),
        policy=policy,
        published=newest.number,
    )


def _folder(settings: Settings, run: Path, resume: bool, iteration: int) -> RunFolder:
    save_token_ids = settings.run.save_token_ids
    if resume:
        return RunFolder.reopen(run, save_token_ids=save_token_ids, iteration=iteration)
    return RunFolder.create(run, command="train", settings=to_public_dict(settings), save_token_ids=save_token_ids)


def _evaluations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "eval"]
