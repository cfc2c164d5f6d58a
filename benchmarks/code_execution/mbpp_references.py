"""All reference solutions of MBPP through the `mbpp` environment, in one run, and how long that takes.

Task 123 sums amicable numbers up to 10,000 and gets a longer limit; the others have that of an evaluation.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figure, at_least, at_most
from finqa_cli.contracts import EnvironmentContext, ExecutingSandbox
from finqa_cli.types import Task
from finqa_plugins.environments.code.config import MbppConfig
from finqa_plugins.environments.code.mbpp_environment import MbppEnvironment

DATA = Path(__file__).parents[3] / "shared" / "data" / "mbpp" / "mbpp.jsonl"
SLOW = {"123": 60.0}
MOST_S = 240.0


async def measure_references(sandbox: ExecutingSandbox, data: Path | None = None) -> list[Figure]:
    """The figures; empty without the data, which `finqa data fetch mbpp` fetches.

    Args:
        sandbox: Executes the solutions, as many at once as it can.
        data: The file or folder; MBPP's file beside the checkout when it is there.
    """
    path = data or DATA
    if not path.exists():
        return []
    usual, patient = (
        MbppEnvironment(config, EnvironmentContext(snapshot=None, data=path))
        for config in (MbppConfig(), MbppConfig(time_limit_s=max(SLOW.values()), wall_s=2 * max(SLOW.values())))
    )
    tasks = [task for split in usual.splits() for task in usual.tasks(split)]
    began = time.perf_counter()
    wrong = await _wrong([task for task in tasks if task.id not in SLOW], usual, sandbox)
    late = await _wrong([task for task in tasks if task.id in SLOW], patient, sandbox)
    seconds = time.perf_counter() - began
    failed = ", ".join([*wrong, *late]) or "none"
    right = len(tasks) - len(wrong) - len(late)
    return [
        at_least("MBPP references that pass", right, len(tasks) - 1, f"of {len(tasks)}; wrong: {failed}"),
        at_most("MBPP references, seconds", round(seconds, 1), MOST_S, f"{os.cpu_count()} cores", timed=True),
    ]


async def _wrong(tasks: Sequence[Task], environment: MbppEnvironment, sandbox: ExecutingSandbox) -> list[str]:
    """Ids of the tasks whose reference does not pass at the first attempt."""

    async def passes(task: Task) -> bool:
        session = await environment.open(task, seed=0, sandbox=sandbox)
        turn = environment.demonstrate(session.prompt().messages)
        assert turn is not None, f"MBPP has a reference for every problem, but none for {task.id}"
        observation = await session.reply(turn.text)
        return observation.done and not observation.is_error

    passed = await asyncio.gather(*map(passes, tasks))
    return [task.id for task, right in zip(tasks, passed, strict=True) if not right]
