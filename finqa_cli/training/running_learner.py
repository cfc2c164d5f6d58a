"""The learner of a command: made, started, watched and ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from finqa_cli.contracts import Learner, LearnerEvents
from finqa_cli.errors import ConfigError, DeviceMemoryError, FinqaError, LearnerProcessError
from finqa_cli.runs.interrupts import to_the_end
from finqa_cli.runs.jsonl import read_jsonl
from finqa_cli.runs.reporter import Reporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.settings import Settings
from finqa_cli.wiring.build import make_learner

MEMORY_EVENT = "out_of_memory"


def fit_memory(settings: Settings, run: Path) -> Settings:
    """The settings with the token budget that an earlier part of the run got down to, where memory was full."""
    events = run / "events.jsonl"
    known = [record.get("token_budget", 0) for record in (read_jsonl(events) if events.exists() else ())]
    budget = min([settings.train.token_budget, *filter(None, known)])
    return settings.model_copy(update={"train": settings.train.model_copy(update={"token_budget": budget})})


@asynccontextmanager
async def learning(
    settings: Settings, model: str, folder: RunFolder, reporter: Reporter, *, resume: str
) -> AsyncIterator[Learner]:
    """A learner that is started, for the length of the block.

    What it reports goes into the run's events. When one of its processes ends, the block is cancelled.

    Args:
        settings: What to build.
        model: Folder or hub id of the base model.
        folder: Of the run.
        reporter: Shows that memory was full.
        resume: Command that resumes the run.

    Raises:
        ConfigError: The learner is for one process.
        LearnerProcessError: One of its processes ended.
        DeviceMemoryError: The memory of its device is full, and smaller micro-batches do not help or need a resumed
            run.
    """
    learner, processes = make_learner(settings, model, logs=folder.path / "logs"), settings.train.learner_processes
    if processes > 1 and not learner.starts_processes:
        raise ConfigError(
            f"Learner {settings.learner.name!r} trains in one process, not in {processes}.",
            remedy="--learner-processes 1",
        )
    block, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert block is not None, "it runs in a task"
    failures: list[FinqaError] = []
    inside = True

    def fail(error: FinqaError) -> None:
        failures.append(error)
        if inside:  # else the block has ended, perhaps with the same error from the call that was under way
            block.cancel()

    def record(name: str, facts: Mapping[str, Any]) -> None:
        folder.event(name, **facts)
        reporter.line(_describe(facts))

    learner.report_to(
        LearnerEvents(
            event=lambda name, facts: _call(loop, record, name, facts),
            failed=lambda error: _call(loop, fail, error),
        )
    )
    try:
        await asyncio.to_thread(learner.start)
        yield learner
    except asyncio.CancelledError:
        if not failures:
            raise
        raise _resumable(failures[0], folder, resume) from None
    except (LearnerProcessError, DeviceMemoryError) as error:
        raise _resumable(error, folder, resume) from error.__cause__
    finally:
        inside = False
        await to_the_end(asyncio.to_thread(learner.close))


def _resumable(error: FinqaError, folder: RunFolder, resume: str) -> FinqaError:
    """The error with the command that resumes the run, where that helps."""
    helps = isinstance(error, LearnerProcessError)
    if isinstance(error, DeviceMemoryError) and error.token_budget:
        folder.event(MEMORY_EVENT, reason=error.message, token_budget=error.token_budget)
        helps = True
    if helps:
        error.remedy = resume
    return error


def _call(loop: asyncio.AbstractEventLoop, work: Any, *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(work, *arguments)


def _describe(facts: Mapping[str, Any]) -> str:
    if budget := facts.get("token_budget"):
        return (
            f"The learner's device has no memory for a micro-batch of {facts['tokens']:,} tokens; from now on they "
            f"have at most {budget:,}."
        )
    if budget := facts.get("scoring_budget"):
        return (
            f"The learner's device has no memory to score a micro-batch of {facts['tokens']:,} tokens; from now on it "
            f"scores at most {budget:,} at once."
        )
    return f"The learner's device had no memory left ({facts.get('work')}); what was kept for later is released."
