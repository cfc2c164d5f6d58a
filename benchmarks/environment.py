"""How fast is the FinQA environment, beside a re-creation of OpenEnv's own server on the same machine in the same run?

    python -m benchmarks.environment [--repeats 5] [--sessions 500] [--stock-python PYTHON]

Both serve the same data (`environment_data`) to the same client, which plays gold solutions: reset, state, five calls;
every one must be worth 1. The re-creation (tests/fixtures/stock_finqa_app.py) does what the original was seen to do for
each call, on OpenEnv's own server classes; `make compat` builds the environment that it needs. Prints a markdown table;
each figure is the median of the repeats and [min..max], each ratio is taken within one repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment_data import benchmark_data
from benchmarks.server_processes import cpu_seconds, free_port, resident_mib, wait_until_healthy
from finqa_cli.contracts import EnvironmentContext, SandboxContext
from finqa_cli.data.dataset import DataSet
from finqa_cli.data.openenv_layout.layout import write_layout
from finqa_cli.data.snapshots.snapshot_store import LocalSnapshots
from finqa_cli.types import ServerSpec, Snapshot
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.local_provider import LocalSandboxProvider
from finqa_plugins.sandboxes.local.server_process import ServerProcess

ROOT = Path(__file__).parents[1]
STOCK_PYTHON = ROOT / ".venv-compat/openenv-core-0.3.0/bin/python"
STOCK_APP = ROOT / "tests/fixtures/stock_finqa_app.py"
OUR_SESSIONS = 64

Calls = Sequence[tuple[str, Mapping[str, str]]]
Figures = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Side:
    """A running server, and how much of each load is right for it."""

    url: str
    pid: int
    queries: int
    episodes: int


def gold_calls(dataset: DataSet) -> dict[str, Calls]:
    """The calls that solve each question, by its id; the query is run twice, for five calls as in the baseline."""
    found: dict[str, Calls] = {}
    for question in dataset.questions:
        table = {"company_name": question.company, "table_name": question.table_name}
        query = ("sql_query", {**table, "query": question.gold_sql})
        first = (("get_descriptions", {"company_name": question.company}), ("get_table_info", table))
        answer = question.answer.removeprefix("\\boxed{").removesuffix("}")
        found[question.id] = (*first, query, query, ("submit_answer", {"answer": answer}))
    return found


@asynccontextmanager
async def session(url: str) -> AsyncIterator[OpenEnvClient]:
    """An open session."""
    client = OpenEnvClient(url)
    await client.connect()
    try:
        yield client
    finally:
        await client.close()


async def play(client: OpenEnvClient, gold: Mapping[str, Calls]) -> None:
    """One episode of the question that the server assigns.

    Raises:
        AssertionError: The gold solution is not worth 1.
    """
    await client.reset()
    state = await client.state()
    reply: dict[str, Any] = {}
    for tool, arguments in gold[state["question_id"]]:
        reply = await client.call_tool(tool, arguments)
    assert (reply["done"], reply["reward"]) == (True, 1.0), (state["question_id"], reply)


async def episodes_per_second(side: Side, gold: Mapping[str, Calls], sessions: int) -> tuple[float, float]:
    """Episodes a second with so many sessions at once, and the server's CPU milliseconds for one."""
    left = iter(range(side.episodes))

    async def work(client: OpenEnvClient) -> None:
        for _ in left:
            await play(client, gold)

    clients = [OpenEnvClient(side.url) for _ in range(sessions)]
    await asyncio.gather(*(client.connect() for client in clients))
    cpu, began = cpu_seconds(side.pid), time.perf_counter()
    await asyncio.gather(*(work(client) for client in clients))
    seconds, cpu = time.perf_counter() - began, cpu_seconds(side.pid) - cpu
    await asyncio.gather(*(client.close() for client in clients))
    return side.episodes / seconds, cpu / side.episodes * 1000


async def queries_per_second(side: Side, gold: Mapping[str, Calls]) -> tuple[float, float]:
    """`sql_query` calls of one session, one after the other, over all questions; the server's CPU milliseconds each."""
    queries = itertools.cycle([calls[2][1] for calls in gold.values()])
    async with session(side.url) as client:
        await client.reset()
        cpu, began = cpu_seconds(side.pid), time.perf_counter()
        for arguments in itertools.islice(queries, side.queries):
            reply = await client.call_tool("sql_query", arguments)
            assert not reply["done"], "the step limit of the server ends the measurement"
        seconds, cpu = time.perf_counter() - began, cpu_seconds(side.pid) - cpu
        return side.queries / seconds, cpu / side.queries * 1000


async def measure_side(name: str, side: Side, gold: Mapping[str, Calls], sessions: int, figures: Figures) -> None:
    """One repeat."""

    def note(what: str, value: float) -> None:
        figures.setdefault(f"{name}: {what}", []).append(value)

    rate, cpu_ms = await queries_per_second(side, gold)
    note("sql_query/s", rate)
    note("server CPU ms per sql_query", cpu_ms)
    rate, cpu_ms = await episodes_per_second(side, gold, 1)
    note("episodes/s, one session", rate)
    note("server CPU ms per episode", cpu_ms)
    if sessions > 1:
        note(f"episodes/s, {sessions} sessions", (await episodes_per_second(side, gold, sessions))[0])
    note("RSS MiB of the process", resident_mib(side.pid))


async def many_sessions(spec: ServerSpec, home: Path, sessions: int, gold: Mapping[str, Calls]) -> dict[str, float]:
    """Sandboxes from nothing, all connected and reset; then one episode in each."""
    provider = LocalSandboxProvider(None, SandboxContext(home=home))
    try:
        began = time.perf_counter()
        sandboxes = await asyncio.gather(*(provider.start(spec, {"finqa.run": "bench"}) for _ in range(sessions)))
        started = time.perf_counter()
        clients = [OpenEnvClient(sandbox.url()) for sandbox in sandboxes]
        await asyncio.gather(*(client.connect() for client in clients))
        await asyncio.gather(*(client.reset() for client in clients))
        connected = time.perf_counter()
        await asyncio.gather(*(play(client, gold) for client in clients))
        played = time.perf_counter()
        pids = {sandbox.pid for sandbox in sandboxes}
        figures = {
            "s to start": started - began,
            "s to connect and reset all": connected - started,
            "s to play an episode in each": played - connected,
            "server processes": len(pids),
            "RSS MiB of all server processes": sum(map(resident_mib, pids)),
        }
        await asyncio.gather(*(client.close() for client in clients))
    finally:
        await provider.close()
    return figures


@asynccontextmanager
async def our_server(spec: ServerSpec, home: Path) -> AsyncIterator[Side]:
    """Our server, as the local provider starts it."""
    process = ServerProcess(spec, home / "server.log")
    try:
        await process.wait_until_healthy(60.0)
        yield Side(process.url, process.pid, queries=1000, episodes=640)
    finally:
        await process.stop(3.0)


@asynccontextmanager
async def stock_server(python: Path, data: Path) -> AsyncIterator[Side]:
    """The re-creation, with its one session."""
    port = free_port()
    # The step limit of the original would end the measurement of queries, which is one long episode.
    environment = {**os.environ, "STOCK_MAX_STEPS": "1000000"}
    with (data.parent / "stock.log").open("wb") as log:  # it writes a traceback for every client that hangs up
        process = subprocess.Popen([python, STOCK_APP, str(port), data], env=environment, stderr=log)  # noqa: ASYNC220
    try:
        await wait_until_healthy(port, process)
        yield Side(f"http://127.0.0.1:{port}", process.pid, queries=150, episodes=60)
    finally:
        process.terminate()
        process.wait(10)


async def measure(stock: Path | None, arguments: argparse.Namespace, folder: Path) -> None:
    """Prints all figures."""
    dataset = benchmark_data()
    gold = gold_calls(dataset)
    snapshot: Snapshot = LocalSnapshots(folder).build("benchmark", dataset)[0]
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot, max_turns=10**6)).sandbox_spec()
    assert spec is not None, "no url is set"
    write_layout(dataset, folder / "data")
    figures: Figures = {}
    async with our_server(spec, folder) as ours:
        if stock is None:
            for _ in range(arguments.repeats):
                await measure_side("ours", ours, gold, OUR_SESSIONS, figures)
        else:
            async with stock_server(stock, folder / "data") as theirs:
                for _ in range(arguments.repeats):
                    await measure_side("ours", ours, gold, OUR_SESSIONS, figures)
                    await measure_side("stock", theirs, gold, 1, figures)
    print_table(figures)
    print(f"\n{arguments.sessions} sessions of finqa, from nothing:")
    for _ in range(arguments.repeats):
        many = await many_sessions(spec, folder, arguments.sessions, gold)
        print("- " + ", ".join(f"{value:.1f} {what}" for what, value in many.items()))


def stock_python(python: Path) -> Path | None:
    """The interpreter when it can run the re-creation, with its versions printed; else says what is missing."""
    names = ("openenv-core", "fastmcp", "pandas", "uvicorn")
    code = f"from importlib.metadata import version; print({{name: version(name) for name in {names}}})"
    if not python.exists():
        print(f"No figures of the stock server: {python} is not there; `make compat` builds it.")
        return None
    told = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if told.returncode:
        print(f"No figures of the stock server: {told.stderr.strip().splitlines()[-1]} in {python}.")
        return None
    print(f"stock: {told.stdout.strip()}")
    return python


def print_table(figures: Figures) -> None:
    """Ours beside the stock server's; the rate of many sessions is compared with the stock server's one session."""
    print("\n| | ours | stock, re-created | ratio |\n| --- | --- | --- | --- |")
    many = f"episodes/s, {OUR_SESSIONS} sessions"
    rows = [
        ("sql_query/s", "sql_query/s"),
        ("episodes/s, one session", "episodes/s, one session"),
        (many, "episodes/s, one session"),
        ("server CPU ms per sql_query", "server CPU ms per sql_query"),
        ("server CPU ms per episode", "server CPU ms per episode"),
        ("RSS MiB of the process", "RSS MiB of the process"),
    ]
    for what, against in rows:
        ours, theirs = figures[f"ours: {what}"], figures.get(f"stock: {against}", [])
        ratios = [a / b if "/s" in what else b / a for a, b in zip(ours, theirs, strict=False)]
        print(f"| {what} | {_spread(ours)} | {_spread(theirs)} | {_spread(ratios)} |")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.4g} [{min(values):.4g}..{max(values):.4g}]"


def main() -> None:
    """Reads the flags and runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--stock-python", type=Path, default=STOCK_PYTHON)
    arguments = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}")
    print(json.dumps({"argv": sys.argv[1:]}))
    stock = stock_python(arguments.stock_python)
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
        asyncio.run(measure(stock, arguments, Path(folder)))
    if stock is not None:
        print("\nFastMCP alone, which our server does without:", flush=True)
        subprocess.run([stock, ROOT / "benchmarks/fastmcp_cost.py"], check=True)


if __name__ == "__main__":
    main()
