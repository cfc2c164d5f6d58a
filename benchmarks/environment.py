"""How fast is the FinQA environment over local sandboxes, and does every gold answer score 1?

    python -m benchmarks.environment [--sandboxes 500] [--episodes 2000]

Compiles the embedded data set, starts the boxes and plays the gold solution of its questions through the real server:
list the tables, describe one, run the gold query, submit. Prints seconds to start, calls per second of one session,
episodes per second by concurrency, and the memory of each server process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from finqa_cli.contracts import EnvironmentContext, Sandbox, SandboxContext
from finqa_cli.data.snapshots import LocalSnapshots
from finqa_cli.types import Snapshot, Task, ToolCall
from finqa_plugins.local_sandbox.provider import LocalSandboxProvider
from finqa_plugins.openenv_finqa.environment import FinQAEnvironment

CALLS_OF_ONE_SESSION = 1000


@dataclass(frozen=True, slots=True)
class Solution:
    """A task and the calls that solve it."""

    task: Task
    calls: tuple[ToolCall, ...]


def solutions(snapshot: Snapshot, environment: FinQAEnvironment) -> list[Solution]:
    """Gold solutions of all questions that have a gold query."""
    tasks = {task.id: task for split in environment.splits() for task in environment.tasks(split)}
    lines = (snapshot.path / "truth.jsonl").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    found = []
    for row in map(json.loads, lines):
        task = tasks[row["id"]]
        names = {"company_name": task.cluster, "table_name": row["table_name"]}
        calls = (
            ToolCall(name="get_descriptions", arguments={"company_name": task.cluster}),
            ToolCall(name="get_table_info", arguments=names),
            ToolCall(name="sql_query", arguments={**names, "query": row["gold_sql"]}),
            ToolCall(name="submit_answer", arguments={"answer": row["answer"]}),
        )
        found.append(Solution(task, calls))
    return found


async def play(environment: FinQAEnvironment, solution: Solution, box: Sandbox) -> None:
    """One episode.

    Raises:
        AssertionError: A call failed or the gold answer is not worth 1.
    """
    session = await environment.open(solution.task, seed=0, sandbox=box)
    for call in solution.calls:
        observation = await session.step(call)
        assert not observation.is_error, (solution.task.id, observation.text)
    rewards = await session.grade()
    assert rewards.total == 1.0, (solution.task.id, rewards)
    await session.close()


async def play_many(
    environment: FinQAEnvironment, todo: Sequence[Solution], boxes: Sequence[Sandbox], concurrency: int
) -> float:
    """Episodes per second."""
    queue = iter(enumerate(todo))

    async def work() -> None:
        for place, solution in queue:
            await play(environment, solution, boxes[place % len(boxes)])

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return len(todo) / (time.perf_counter() - began)


async def calls_per_second(environment: FinQAEnvironment, solution: Solution, box: Sandbox) -> float:
    """SQL calls of one session, one after the other."""
    session = await environment.open(solution.task, seed=0, sandbox=box)
    began = time.perf_counter()
    for _ in range(CALLS_OF_ONE_SESSION):
        await session.step(solution.calls[2])
    seconds = time.perf_counter() - began
    await session.close()
    return CALLS_OF_ONE_SESSION / seconds


async def measure(sandboxes: int, episodes: int) -> None:
    """Prints all figures."""
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
        snapshot, _ = LocalSnapshots(Path(folder)).build_default()
        environment = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot, max_turns=CALLS_OF_ONE_SESSION))
        provider = LocalSandboxProvider(None, SandboxContext(home=Path(folder)))
        gold = solutions(snapshot, environment)
        todo = [gold[place % len(gold)] for place in range(max(episodes, len(gold)))]
        try:
            began = time.perf_counter()
            spec = environment.sandbox_spec()
            boxes = await asyncio.gather(*(provider.start(spec, {"finqa.run": "bench"}) for _ in range(sandboxes)))
            servers = {box.pid for box in boxes}
            print(f"{sandboxes} sandboxes on {len(servers)} processes in {time.perf_counter() - began:.1f} s")
            speed = await calls_per_second(environment, gold[0], boxes[0])
            print(f"one session: {speed:.0f} SQL calls a second")
            for concurrency in (1, 64, sandboxes):
                rate = await play_many(environment, todo, boxes, concurrency)
                print(f"{concurrency} at once: {rate:.0f} episodes of 4 calls a second, all scored 1")
            print("memory of the servers:", ", ".join(f"{_resident_mib(pid):.0f} MiB" for pid in sorted(servers)))
        finally:
            await provider.close()


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return float(line.split()[1]) / 1024


def main() -> None:
    """Reads the flags and runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandboxes", type=int, default=500)
    parser.add_argument("--episodes", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}")
    asyncio.run(measure(arguments.sandboxes, arguments.episodes))


if __name__ == "__main__":
    main()
