"""The learner of a run: its learning-rate schedule, token budget and disk space, and its start and end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NotRequired

from finqa_cli.contracts import Learner, LearnerEvents
from finqa_cli.errors import (
    ConfigError,
    DeviceMemoryError,
    FinqaError,
    InterruptedRun,
    LearnerProcessError,
    StorageError,
)
from finqa_cli.extend import registry
from finqa_cli.local_models import cached_model
from finqa_cli.placement.known_models import read_architecture
from finqa_cli.placement.memory_formulas import FP32, trained
from finqa_cli.runs.interrupts import to_the_end
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.run_notes import ROUTINE
from finqa_cli.settings import Settings, TrainSettings
from finqa_cli.settings.learning_rates import TRAIN_RATES, rate_for
from finqa_cli.training.training_loop import RunContext
from finqa_cli.types import Passes, PolicyVersion
from finqa_cli.types.run_events import RunEvent
from finqa_cli.wiring.build import make_learner
from finqa_cli.wiring.hub_models import bring_model

MEMORY_EVENT = "out_of_memory"

CHECKPOINT_BYTES = 12
"""Bytes per trained weight in a checkpoint: the weight and AdamW's two moments, each in float32."""

SCHEDULE_OPTIONS = ("schedule", "warmup_steps", "total_steps")
"""Options of the learner that define a schedule."""


class OutOfMemory(RunEvent):
    """The memory of the learner's device was full. The step is repeated with smaller micro-batches, or the run ends."""

    event: Literal["out_of_memory"]
    reason: str
    """The error of the device."""
    work: NotRequired[str]
    """`update` or `scoring`; absent if the run ends."""
    tokens: NotRequired[int]
    """Tokens of the micro-batch; absent if cached memory was released and nothing else changed."""
    token_budget: NotRequired[int | None]
    """Most tokens of a micro-batch from now on, and in a resumed run."""
    scoring_budget: NotRequired[int]
    """Most tokens that are scored at once from now on."""


def is_scheduled(train: TrainSettings) -> bool:
    """Return whether the learning rate depends on the number of planned steps."""
    return train.schedule != "constant" or train.warmup_share > 0


def apply_schedule(settings: Settings, passes: Passes) -> Settings:
    """Return the settings with the learner's options that follow from `train.schedule` and `train.warmup_share`.

    The schedule covers all steps of all iterations. A skipped step does not advance it.

    Raises:
        ConfigError: The learner's own options define a schedule too.
    """
    train, learner = settings.train, settings.learner
    if not is_scheduled(train):
        return settings
    if twice := sorted(set(SCHEDULE_OPTIONS) & set(learner.options)):
        named = ", ".join(f"learner.options.{option}" for option in twice)
        raise ConfigError(
            f"train.schedule and train.warmup_share set the schedule of the learning rate, and so does {named}.",
            remedy="keep train.schedule and train.warmup_share, which count the steps themselves",
        )
    steps = train.iterations * passes.epochs * passes.minibatches
    return _with_options(settings, {**learner.options, **_plan(train.schedule, train.warmup_share, steps)})


def schedule_steps(
    settings: Settings, schedule: str, *, warmup_share: float, steps: int, warmup_steps: int | None = None
) -> Settings:
    """Return the settings of training on a file. The learner's own options have priority over the schedule.

    The learning rate rises for `warmup_steps` steps, at most all but the last, or for the share `warmup_share`.

    The temperature is set to 1, because these losses are defined on the model's own distribution.
    """
    share = warmup_share if warmup_steps is None else min(1.0, warmup_steps / steps)
    planned = _with_options(settings, {**_plan(schedule, share, steps), **settings.learner.options})
    generation = settings.generation.model_copy(update={"temperature": 1.0})
    return planned.model_copy(update={"generation": generation})


def _plan(schedule: str, warmup_share: float, steps: int) -> dict[str, Any]:
    warmup = min(steps - 1, round(warmup_share * steps))
    return dict(zip(SCHEDULE_OPTIONS, (schedule, warmup, steps), strict=True))


def _with_options(settings: Settings, options: dict[str, Any]) -> Settings:
    return settings.model_copy(update={"learner": settings.learner.model_copy(update={"options": options})})


def rate_words(settings: Settings) -> str:
    """Return the learning rate, and what is trained at it."""
    rank = settings.lora.rank
    rate = settings.train.learning_rate or rate_for(rank, TRAIN_RATES)
    return f"{rate:g} ({f'an adapter of rank {rank}' if rank else 'all weights'})"


def fit_memory(settings: Settings, run: Path) -> Settings:
    """Return the settings with the smallest token budget to which earlier sessions of the run were reduced."""
    events = run / "events.jsonl"
    known = [record.get("token_budget", 0) for record in (read_jsonl(events) if events.exists() else ())]
    budget = min([settings.train.token_budget, *filter(None, known)])
    return settings.model_copy(update={"train": settings.train.model_copy(update={"token_budget": budget})})


def check_disk(settings: Settings, start: PolicyVersion, run: Path) -> None:
    """Compare the free disk space with what a new run will write, before its folder exists.

    The estimate counts the checkpoints that are kept, the one that is being written, and the whole model into which an
    adapter is merged. If the size of the model is not known, nothing is checked.

    Args:
        settings: Settings of the run.
        start: The policy that the run starts from.
        run: Folder of the run, which need not exist.

    Raises:
        StorageError: There is less free space.
    """
    model = read_architecture(start.model)
    if model is None:
        return
    train, lora = settings.train, settings.lora
    checkpoint = CHECKPOINT_BYTES * trained(model, lora.target_modules, lora.rank)
    merged = FP32 * model.parameters if start.adapter else 0
    kept = train.keep_checkpoints or -(-train.iterations // train.checkpoint_every)
    needed = merged + (kept + 1) * checkpoint
    there = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free >= needed:
        return
    fewer = ", or fewer with --set train.keep_checkpoints=1" if merged + 2 * checkpoint <= free else ""
    raise StorageError(
        f"The disk of {there} has {free / 1e9:.2f} GB free, and {kept} checkpoints of {start.model} "
        f"and one that is being written need about {needed / 1e9:.2f} GB.",
        remedy=f"choose a --run-dir on another disk{fewer}",
    )


def check_learner(settings: Settings, start: PolicyVersion) -> None:
    """Check that the learner of the settings can train the model of a new run, before its folder exists.

    Raises:
        ConfigError: It cannot train this model, or not the layers that are named.
    """
    learner = make_learner(settings, start.model)
    try:
        learner.check()
    finally:
        learner.close()


@asynccontextmanager
async def run_learner(context: RunContext, model: str) -> AsyncIterator[Learner]:
    """Yield a started learner, made by the settings of the context, and close it at the end of the block.

    Its events are recorded in the run's events. When one of its processes ends, the block is cancelled.

    Args:
        context: Common parts of the run.
        model: Folder or hub id of the base model.

    Raises:
        ConfigError: Several processes are requested, but the learner supports only one; or the hub's cache has another
            commit of the model than when the run began.
        FinqaError: The model of a hub id cannot be downloaded; see `bring_model`.
        InterruptedRun: A signal stopped a call of the learner between two of its parts.
        LearnerProcessError: One of its processes ended.
        DeviceMemoryError: The memory of its device is full, and smaller micro-batches do not help or need a resumed
            run.
    """
    settings, folder = context.settings, context.folder
    await asyncio.to_thread(registry().load, "learner", settings.learner.name)  # not in the loop, which handles signals
    learner, processes = make_learner(settings, model, logs=folder.path / "logs"), settings.train.learner_processes
    if processes > 1 and not learner.starts_processes:
        raise ConfigError(
            f"Learner {settings.learner.name!r} trains in one process, not in {processes}.",
            remedy="--learner-processes 1",
        )
    block, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert block is not None, "it runs in a task"
    failures: list[FinqaError] = []
    inside, shown = True, (0, 0)

    def fail(error: FinqaError) -> None:
        failures.append(error)
        if inside:  # otherwise the block has ended, perhaps with the same error, raised by the call in progress
            block.cancel()

    def record(name: str, facts: Mapping[str, Any]) -> None:
        folder.event(name, **facts)
        if name not in ROUTINE:
            context.reporter.line(_describe(facts))

    def begin_part(done: int, total: int) -> None:
        nonlocal shown
        context.stopper.check_work()
        if not inside:
            raise InterruptedRun("The run has ended.", remedy=context.resume_command)
        if (done, total) != shown:
            shown = (done, total)
            _call(loop, context.reporter.advance_work, done, total)

    learner.report_to(
        LearnerEvents(
            event=lambda name, facts: _call(loop, record, name, facts),
            failed=lambda error: _call(loop, fail, error),
            part=begin_part,
        )
    )
    if settings.train.learning_rate is not None:
        context.reporter.line(f"learning rate: {rate_words(settings)}")
    try:
        if learner.loads_model:
            await asyncio.to_thread(bring_model, model, context.reporter)
        if (cached := cached_model(model)) is not None:
            folder.pin("model digest", cached.name)  # the commit: a resumed run must not train a newer model
        with context.work(f"loading {model} to train it"):
            await asyncio.to_thread(learner.start)
        yield learner
    except asyncio.CancelledError:
        if not failures:
            raise
        raise _resumable(failures[0], context) from None
    except (LearnerProcessError, DeviceMemoryError) as error:
        raise _resumable(error, context) from error.__cause__
    finally:
        inside = False
        await to_the_end(asyncio.to_thread(learner.close))


def _resumable(error: FinqaError, context: RunContext) -> FinqaError:
    """Return the error, with the command that resumes the run as its remedy if that helps."""
    helps = isinstance(error, LearnerProcessError)
    if isinstance(error, DeviceMemoryError) and error.token_budget:
        context.folder.event(MEMORY_EVENT, reason=error.message, token_budget=error.token_budget)
        helps = True
    if helps:
        error.remedy = context.resume_command
    return error


def _call(loop: asyncio.AbstractEventLoop, work: Any, *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(work, *arguments)


def _describe(facts: Mapping[str, Any]) -> str:
    if budget := facts.get("token_budget"):
        return (
            f"The learner's device does not have enough memory for a micro-batch of {facts['tokens']:,} "
            f"tokens; from now on, micro-batches have at most {budget:,} tokens."
        )
    if budget := facts.get("scoring_budget"):
        return (
            "The learner's device does not have enough memory to score a micro-batch of "
            f"{facts['tokens']:,} tokens; from now on, it scores at most {budget:,} tokens at once."
        )
    return f"The learner's device ran out of memory ({facts.get('work')}); cached memory was released."
