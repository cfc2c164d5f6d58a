"""Runs the solutions that come with data, as the expert's episodes in sandboxes, and reports those that fail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.evaluation.evaluate import evaluate, read_attempts
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import Reporter
from finqa_cli.settings import Choice, Settings
from finqa_cli.wiring.build import open_environment

EXPERT = "scripted"
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*$", re.MULTILINE)
_MODULE = re.compile(r"No module named '([\w.]+)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSolutions:
    """Outcome of the solutions that come with data.

    Attributes:
        played: Number of solutions that were run.
        failed: `ID: reason` for each that does not solve its own task.
        missing: Modules that solutions or tests import, and that the sandbox does not have.
    """

    played: int
    failed: tuple[str, ...]
    missing: tuple[str, ...]


async def run_solutions(settings: Settings, folder: Path, *, reporter: Reporter, stopper: Stopper) -> OwnSolutions:
    """Plays one episode of the expert for each task of every split, with the tests that a policy meets.

    Args:
        settings: Settings with the environment and its data.
        folder: Empty folder for the records.
        reporter: Receives progress.
        stopper: Decides when to stop.

    Raises:
        DataError: A task has no solution.
        ConfigError: The sandbox or an option is wrong.
        InterruptedRun: A signal stopped it.
    """
    played = 0
    failed: list[str] = []
    missing: set[str] = set()
    for split in open_environment(settings, reporter).splits():
        chosen = settings.model_copy(
            update={
                "engine": Choice(name=EXPERT),
                "data": settings.data.model_copy(update={"eval_split": split}),
                "eval": settings.eval.model_copy(update={"limit": 0, "attempts": 1}),
            }
        )
        await evaluate(chosen, EXPERT, folder / split, reporter=reporter, stopper=stopper)
        for record in read_attempts(folder / split):
            played += 1
            if record["reward"] is None or record["reward"] < 1.0:
                told = "\n".join([*(turn["observation"]["text"] for turn in record["turns"]), record["error"]])
                error = _ERROR.search(told)
                failed.append(f"{record['task']['id']}: {error[0] if error else record['explanation'] or told.strip()}")
                missing.update(name.partition(".")[0] for name in _MODULE.findall(told))
    return OwnSolutions(played=played, failed=tuple(failed), missing=tuple(sorted(missing)))
