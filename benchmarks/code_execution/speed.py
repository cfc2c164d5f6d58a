"""What isolation costs: executions of an empty program a second, beside a bare `python3 -I -c` of the same Python."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.figures import Figure, at_most, note
from finqa_cli.contracts import ExecutingSandbox
from finqa_cli.errors import SandboxError
from finqa_cli.types import PYTHON, Ending, ExecutionLimits, ExecutionRequest
from finqa_plugins.sandboxes.local.isolation import find_isolation

PROGRAM = "print(1)"
MOST_TIMES = 5.0
"""A sandbox may take as much as this many bare processes: namespaces and mounts, and a start under another user."""

Run = Callable[[], Awaitable[None]]


async def measure_speed(sandbox: ExecutingSandbox, count: int) -> list[Figure]:
    """Both ways in turn, so that both meet the same load; `count` executions each way, alone and as many as cores."""
    python = find_isolation().python

    async def sandboxed() -> None:
        request = ExecutionRequest(argv=(PYTHON, "-I", "-c", PROGRAM), limits=ExecutionLimits(cpu_s=10.0, wall_s=60.0))
        result = await sandbox.execute(request)
        if (result.ending, result.stdout) != (Ending.EXITED, b"1\n"):
            raise SandboxError(f"An execution ended otherwise: {result}")

    async def bare() -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(python, "-I", "-c", PROGRAM, stdout=pipe, env={})
        output, _ = await process.communicate()
        if output != b"1\n":
            raise SandboxError("A bare process ended otherwise.")

    alone = await _in_turn({"sandbox": sandboxed, "bare": bare}, count, at_once=1)
    together = await _in_turn({"sandbox": sandboxed, "bare": bare}, count, at_once=os.cpu_count() or 1)
    medians = {name: statistics.median(seconds) for name, (seconds, _) in alone.items()}
    rates = {name: count / total for name, (_, total) in together.items()}
    ratio = medians["sandbox"] / medians["bare"]
    how = f"{count} executions of `{PROGRAM}`, one at a time"
    return [
        note("median ms in a sandbox", medians["sandbox"] * 1000, how),
        note("median ms of a bare process", medians["bare"] * 1000, how),
        at_most("sandbox / bare", ratio, MOST_TIMES, "of the medians", timed=True),
        note("executions a second in sandboxes", rates["sandbox"], f"{os.cpu_count()} at once"),
        note("executions a second bare", rates["bare"], f"{os.cpu_count()} at once"),
    ]


async def _in_turn(ways: dict[str, Run], count: int, *, at_once: int) -> dict[str, tuple[list[float], float]]:
    """Seconds of each execution, and of all of a way, for each way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    totals = dict.fromkeys(ways, 0.0)
    for _ in range(count // at_once):
        for name, run in ways.items():
            began = time.perf_counter()
            seconds[name] += await asyncio.gather(*(_timed(run) for _ in range(at_once)))
            totals[name] += time.perf_counter() - began
    return {name: (seconds[name], totals[name] * count / (count // at_once * at_once)) for name in ways}


async def _timed(run: Run) -> float:
    began = time.perf_counter()
    await run()
    return time.perf_counter() - began
