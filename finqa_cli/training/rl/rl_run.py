"""A reinforcement learning run from settings to its result: checks, set-up, resumption, training loop, manifest."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Environment, Optimizer, PreferenceOptimizer, TokenEngine
from finqa_cli.deletion import discard
from finqa_cli.errors import (
    AuthenticationError,
    ConfigError,
    FailingCodeError,
    NothingToLearnError,
    ServiceUnavailableError,
    UsageError,
)
from finqa_cli.evaluation.evaluate import held_out_tasks, pin_inputs
from finqa_cli.evaluation.reward_tests import reward_facts
from finqa_cli.runs import checkpoints
from finqa_cli.runs.checkpoints import Checkpoint
from finqa_cli.runs.durable_files import storage
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import is_untouched, read_run, training_run, write_manifest
from finqa_cli.runs.spending import SPENT, make_meter
from finqa_cli.runs.tracking import Tracking
from finqa_cli.runs.trajectory_records import has_graded
from finqa_cli.settings import Loaded, Settings, is_shipped, to_public_dict
from finqa_cli.training.estimate import Again, Pace, no_command
from finqa_cli.training.rl.device_turns import give_to_engine
from finqa_cli.training.rl.preflight import advise_on_reward, check_learnable, own_reward
from finqa_cli.training.rl.trainer import Trainer
from finqa_cli.training.rl.updates import length_limit, training_loss, training_passes
from finqa_cli.training.running_learner import (
    apply_schedule,
    check_disk,
    check_learner,
    fit_memory,
    is_scheduled,
    run_learner,
)
from finqa_cli.training.training_data import guard_training, split_tasks, training_tasks
from finqa_cli.training.training_loop import RunContext
from finqa_cli.types import IdleOption, PolicyVersion
from finqa_cli.wiring.build import make_optimizer, make_trackers
from finqa_cli.wiring.policies import find_start, of_checkpoint, start_inputs, whole_model
from finqa_cli.wiring.stage import stage

_CHOSEN_FOR_THE_USER = ("default", "profile", "auto", "plan")
"""Kinds of origins of settings that the user did not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Result of a training run.

    Attributes:
        run: Folder of the run.
        iterations: Number of finished iterations.
        before: Record of the first evaluation on held-out questions; empty without one.
        after: Record of the last evaluation; empty without one.
        seconds: Wall-clock seconds of this call.
        was_finished: The run was to be resumed, but it was already completed.
    """

    run: Path
    iterations: int
    before: dict[str, Any]
    after: dict[str, Any]
    seconds: float
    was_finished: bool = False


async def train(
    settings: Settings,
    run: Path,
    *,
    resume: bool,
    reporter: Reporter,
    stopper: Stopper,
    again: Again = no_command,
) -> TrainResult:
    """Train in a new run folder, or resume an existing run after its newest checkpoint.

    Args:
        settings: Settings of the run.
        run: Folder of the run.
        resume: Resume after the newest checkpoint.
        reporter: Shows the progress.
        stopper: Stops the run after signals.
        again: See `RunContext`.

    Raises:
        UsageError: The optimizer learns from pairs or from demonstrations, not from played groups.
        ConfigError: The engine cannot be used for training, the settings do not fit the data or each other, or a run
            is to be resumed for fewer iterations than it has finished.
        DataError: The data is for evaluation only, or overlaps with evaluation data.
        ServiceUnavailableError: No sandbox can be started, or too many are lost; the remedy ends with the command that
            resumes the run.
        InterruptedRun: A signal stopped it. A resumed run continues after the newest checkpoint and repeats later
            iterations.
        ThresholdError: More episodes ended in faults than the settings allow, or the user's code always fails.
        NothingToLearnError: The preflight, or the whole run, had no informative group.
    """
    started = time.perf_counter()
    checkpoint = checkpoints.latest(run) if resume else None
    _check_length(settings, run, checkpoint)
    is_complete = checkpoint is not None and checkpoint.iteration >= settings.train.iterations
    if checkpoint is not None and is_complete and read_run(run)["status"] == "completed":
        return _result(run, checkpoint.iteration, started, was_finished=True)
    start = await asyncio.to_thread(find_start, settings.model.name, run)
    check_method(settings)
    guard_training(settings, reporter)
    if checkpoint is None:
        check_disk(settings, start, run)
        await asyncio.to_thread(check_learner, settings, start)
    with training_run(run, checkpoint, command="train", settings=settings, resume=resume) as folder:
        base = await asyncio.to_thread(whole_model, start, run, reporter)
        served = _serve_checkpoint(run, base, checkpoint)
        tracking = Tracking(folder, make_trackers(settings, run), reporter)
        context = RunContext(
            settings=settings, folder=folder, tracking=tracking, reporter=reporter, stopper=stopper, again=again
        )
        try:
            with tracking.run(to_public_dict(settings)):
                iterations = await _train(context, base, served, checkpoint)
        except (AuthenticationError, ServiceUnavailableError) as error:
            resumes = isinstance(error, ServiceUnavailableError) or not is_untouched(run)
            resumes = resumes and context.resume_command not in error.remedy
            error.remedy = ", then ".join(filter(None, (error.remedy, context.resume_command if resumes else "")))
            raise
        except FailingCodeError as error:
            kept = checkpoints.latest(run) is not None and has_graded(run)
            error.remedy += f", then {'start again with another --run-dir' if kept else context.resume_command}"
            raise
    iterated = [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "train"]
    if iterated and not any(record.get("updates", 1) for record in iterated):
        raise NothingToLearnError(
            f"No group of {len(iterated)} iterations was informative, so the policy is unchanged. Run: {run}",
            remedy=f"{advise_on_reward(own_reward(settings))}choose questions that the policy answers sometimes, or "
            "train it by imitation first: finqa sft DEMONSTRATIONS",
        )
    return _result(run, iterations, started)


def lengthen(settings: Settings, run: Path, iterations: int | None) -> Settings:
    """Return the settings of a run to resume, with another number of iterations if one is given.

    Raises:
        ConfigError: The learning rate follows a schedule, and would have been different from the first step.
    """
    planned = settings.train.iterations
    if iterations in (None, planned):
        return settings
    if is_scheduled(settings.train):
        raise ConfigError(
            f"The learning rate of {run} is planned for {planned} iterations (train.schedule="
            f"{settings.train.schedule}, train.warmup_share={settings.train.warmup_share:g}); for "
            f"{iterations} it would have been different from the first step.",
            remedy=f"finqa train --resume {run}, or a new run with --iterations {iterations}",
        )
    return settings.model_copy(update={"train": settings.train.model_copy(update={"iterations": iterations})})


def _check_length(settings: Settings, run: Path, checkpoint: Checkpoint | None) -> None:
    """Refuse fewer iterations than a run that is resumed has finished."""
    done, wanted = checkpoint.iteration if checkpoint is not None else 0, settings.train.iterations
    if checkpoint is not None and wanted < done:
        raise ConfigError(
            f"{run} has finished {done} iterations already, so --iterations {wanted} would have no effect.",
            remedy=f"finqa train --resume {run}, or --iterations with a number above {done}",
        )


def _result(run: Path, iterations: int, started: float, *, was_finished: bool = False) -> TrainResult:
    evaluations = [record for record in read_jsonl(run / "metrics.jsonl") if record["kind"] == "eval"]
    return TrainResult(
        run=run,
        iterations=iterations,
        before=evaluations[0] if evaluations else {},
        after=evaluations[-1] if evaluations else {},
        seconds=time.perf_counter() - started,
        was_finished=was_finished,
    )


def _most_episodes(environment: Environment, settings: Settings) -> int:
    """Return the most episodes at once: one group per task for each iteration in progress, or an evaluation."""
    train = settings.train
    played = len(split_tasks(environment, settings)) * (1 + train.max_staleness) * train.group_size
    return max(played, len(held_out_tasks(environment, settings)) * settings.eval.attempts)


def check_method(settings: Settings) -> None:
    """Check that the optimizer can train with the settings, before sandboxes and engine are started.

    Raises:
        UsageError: The optimizer learns from pairs or from demonstrations, not from played groups.
        ConfigError: An option is wrong, or settings do not fit the optimizer or each other.
    """
    check_group_size(settings)
    _check_sampling(settings)
    optimizer = make_optimizer(settings)
    _check_groups(optimizer, settings)
    training_loss(optimizer, settings.train)
    length_limit(settings.train, settings.generation.max_gen_tokens)
    apply_schedule(settings, training_passes(optimizer, settings.train))


def check_group_size(settings: Settings) -> None:
    """Check that groups have several attempts, which training compares; only a dry run plays groups of one.

    Raises:
        ConfigError: They have one.
    """
    if settings.train.group_size < 2:
        raise ConfigError(
            "train.group_size is 1, but training compares the attempts of a group, so it needs at least 2.",
            remedy="--group-size 2, or --dry-run, which plays without training",
        )


async def _train(context: RunContext, base: PolicyVersion, served: PolicyVersion, checkpoint: Checkpoint | None) -> int:
    """Train with an engine that serves `served` at first, and return the number of finished iterations."""
    settings, folder = context.settings, context.folder
    meter = make_meter(settings, context.reporter, context.stopper)
    meter.keep_in(partial(folder.note, SPENT))
    if checkpoint is not None:
        meter.add_recorded(read_jsonl(folder.path / "trajectories.jsonl"))
    async with stage(
        settings,
        served,
        run_id=folder.path.name,
        reporter=context.reporter,
        trains=True,
        run_dir=folder.path,
        episodes=lambda environment: _most_episodes(environment, settings),
        check_stop=context.check_stop,
        on_event=lambda name, facts: folder.event(name, **facts),
        meter=meter,
    ) as parts:
        parameters = _parameters(settings)
        pin_inputs(folder, parts, parameters["reward"])
        tasks = await training_tasks(parts, settings, context.reporter)
        with context.work(f"computing the digest of {base.model}"):
            policy = await asyncio.to_thread(start_inputs, base, folder.path)
        inputs = {"policy": policy, **parts.inputs()}
        write_manifest(folder.path, "train", parameters=parameters, inputs=inputs)
        optimizer = make_optimizer(settings)
        planned = apply_schedule(fit_memory(settings, folder.path), training_passes(optimizer, settings.train))
        context = replace(context, settings=planned)
        pace = Pace()
        if checkpoint is None and settings.train.preflight:
            pace = await check_learnable(parts, settings, tasks, optimizer, context.reporter, context.stopper)
        assert isinstance(parts.engine, TokenEngine), "for training, `stage` accepts no other engine"
        if parts.engine.sleeps:
            await parts.engine.sleep()  # the learner loads its model to the same device
        async with run_learner(context, base.model) as learner:
            await give_to_engine(parts.engine, learner)
            held_out = held_out_tasks(parts.environment, settings)
            trainer = Trainer(context, parts, learner, optimizer, tasks, held_out)
            trainer.pace = pace
            if checkpoint is not None:
                await trainer.resume(checkpoint)
            iterations = settings.train.iterations - trainer.done
            left = iterations * settings.train.target_groups_per_iter * settings.train.group_size
            meter.plan(left, folder.path, settings)
            await trainer.run()
        inputs |= parts.inputs()
    outputs = _outputs(folder.path, trainer.done)
    await asyncio.to_thread(write_manifest, folder.path, "train", parameters=parameters, inputs=inputs, outputs=outputs)
    folder.finish("completed")
    return trainer.done


def _outputs(run: Path, iteration: int) -> list[Path]:
    """Return the files of the records, and of the checkpoint of the last iteration with the trained policy."""
    checkpoint = checkpoints.folder_of(run, iteration)
    files = [run / "metrics.jsonl", run / "trajectories.jsonl", *sorted(checkpoint.rglob("*"))]
    return [path for path in files if path.is_file()]


def _parameters(settings: Settings) -> dict[str, Any]:
    """Return the settings that the trained policy and its figures depend on."""
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
            "sft imitates all given episodes, right or wrong, so it trains on demonstrations and not "
            "on groups that the policy plays.",
            remedy="finqa eval scripted --split train, then finqa sft RUN",
        )
    if isinstance(optimizer, PreferenceOptimizer):
        raise UsageError(
            f"{name} trains on recorded pairs of attempts, not on played groups, and no pairs are given.",
            remedy=f"finqa sample TARGET, then finqa prefs RUN, then finqa train --optimizer {name} --pairs PAIRS",
        )


def _check_sampling(settings: Settings) -> None:
    if settings.generation.top_p < 1:
        raise ConfigError(
            f"generation.top_p={settings.generation.top_p:g} cannot be used for training: the "
            "sampler's log-probabilities refer to the nucleus and the learner's to the whole "
            "vocabulary, so their ratio would be wrong.",
            remedy="--set generation.top_p=1",
        )


def _serve_checkpoint(run: Path, base: PolicyVersion, checkpoint: Checkpoint | None) -> PolicyVersion:
    """Return the version that the engine serves first.

    It is copied out of the checkpoint, because the checkpoint may be deleted while the engine serves it. If the engine
    was behind the learner when the checkpoint was written, its version is in the checkpoint's folder `serving`.
    """
    if checkpoint is None:
        return base
    discard(run / "policies")  # versions after the checkpoint would look like the newest
    newest = of_checkpoint(checkpoint)
    number = int(checkpoint.state["serving_version"])
    if not number:
        return base
    folder = run / "policies" / f"v{number:05d}"
    with storage(folder):
        shutil.copytree(checkpoint.path / ("policy" if number == newest.number else "serving"), folder)
    if newest.adapter is None:
        return PolicyVersion(number=number, model=str(folder))
    return PolicyVersion(number=number, model=newest.model, adapter=folder)


def check_idle_options(loaded: Loaded) -> str:
    """Check which options of the optimizer change no gradient under these settings.

    Returns:
        One line that names the options without effect that the user did not set; empty if there are none, or if no
        option of the optimizer was set at all.

    Raises:
        ConfigError: The user set an option without effect, by a flag, a file, a variable or `--set`; or an option is
            wrong.
    """
    optimizer = make_optimizer(loaded.settings)
    passes = training_passes(optimizer, loaded.settings.train)
    idle = optimizer.idle_options(passes.epochs * passes.minibatches)
    named = [(option, origin) for option in idle if _names(origin := _origin(loaded, option))]
    if named:
        options = loaded.settings.optimizer.options
        given = ", ".join(f"{_path(one)}={options[one.name]} ({origin})" for one, origin in named)
        leave = " and ".join(one.name for one, _ in named)
        raise ConfigError(
            f"{given} would have no effect: {_reasons([one for one, _ in named])}.",
            remedy=f"{', '.join(dict.fromkeys(one.remedy for one, _ in named))}; or leave out {leave}",
        )
    chosen = any(path.startswith("optimizer.options.") for path in loaded.origins)
    if not (idle and chosen):
        return ""
    remedies = ", ".join(dict.fromkeys(one.remedy for one in idle))
    names = ", ".join(one.name for one in idle)
    return f"no effect: {loaded.settings.optimizer.name}'s {names} ({_reasons(idle)}; {remedies} changes that)"


def _names(origin: str) -> bool:
    return origin.partition(" ")[0] not in _CHOSEN_FOR_THE_USER and not is_shipped(origin)


def _origin(loaded: Loaded, option: IdleOption) -> str:
    return loaded.origins.get(_path(option), "default")


def _path(option: IdleOption) -> str:
    return f"optimizer.options.{option.name}"


def _reasons(options: list[IdleOption] | tuple[IdleOption, ...]) -> str:
    return "; ".join(dict.fromkeys(option.reason for option in options))
