"""Do sessions that send SQL bombs hold up, or fail, those beside them?

    python -m benchmarks.sql_neighbours [--bombers 200] [--bombs 3] [--honest 20] [--seconds 60] [--against CHECKOUT]

Starts a real FinQA server and plays on it: bombers run queries that are slow or large by their own doing, then submit
the right answer; honest sessions run queries of a few milliseconds with pauses. Prints the times of the honest queries,
those of the bombs, faults and graded episodes. `--against` runs the server of another checkout in turn, for comparison.
Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.server_processes import resident_mib
from finqa_cli.contracts import EnvironmentContext
from finqa_cli.errors import EpisodeError
from finqa_plugins.environments._openenv.openenv_client import OpenEnvClient
from finqa_plugins.environments.openenv_finqa.finqa_environment import FinQAEnvironment
from finqa_plugins.sandboxes.local.server_process import ServerProcess
from tests.fixtures.hostile_sql import ATTACKS, BOMBS, TABLE
from tests.fixtures.tiny_snapshot import write_tiny_snapshot

WORST_P99_S = 1.0
PAUSE_S = 0.1
HONEST = {
    f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'": '[{"2024":6118}]',
    f'SELECT sum("2024") AS total FROM {TABLE} WHERE "2024" > 0': '[{"total":9177}]',
    f'WITH a AS (SELECT "2023" x FROM {TABLE} WHERE "2023" > 100) SELECT max(x) AS most FROM a': '[{"most":5000}]',
    f'SELECT a.line_item FROM {TABLE} a JOIN {TABLE} b WHERE a."2024" > b."2024" GROUP BY 1 HAVING count(1) > 1': (
        '[{"line_item":"total_revenues"}]'
    ),
}


@dataclass
class Figures:
    """What happened to one server."""

    honest_s: list[float] = field(default_factory=list)
    with_s: list[float] = field(default_factory=list)
    bombs_s: list[float] = field(default_factory=list)
    graded: int = 0
    processes_mib: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)


async def query(client: OpenEnvClient, sql: str) -> str:
    """Return the text of the reply."""
    arguments = {"company_name": "acme", "table_name": TABLE, "query": sql}
    reply = await client.call_tool("sql_query", arguments)
    return str(reply["observation"]["result"]["data"])


async def be_honest(url: str, until: float, seed: int, figures: Figures) -> None:
    """Queries of a few milliseconds with pauses; each has to be answered, and rightly."""
    dice = random.Random(seed)
    client = OpenEnvClient(url)
    try:
        await client.connect()
        await client.reset(question_id="q1")
        while time.monotonic() < until:
            sql, expected = dice.choice(list(HONEST.items()))
            began = time.perf_counter()
            text = await query(client, sql)
            seconds = time.perf_counter() - began
            (figures.with_s if sql.startswith("WITH") else figures.honest_s).append(seconds)
            if text != expected:
                figures.wrong[text[:100]] += 1
            await asyncio.sleep(PAUSE_S * dice.uniform(0.5, 1.5))
    except EpisodeError as fault:
        figures.faults[f"honest: {fault}"] += 1
    finally:
        await client.close()


async def bomb(url: str, until: float, seed: int, bombs: int, figures: Figures) -> None:
    """Episodes of bombs and the right answer; an episode that has started is played to its end."""
    dice = random.Random(seed)
    while time.monotonic() < until:
        client = OpenEnvClient(url)
        try:
            await client.connect()
            await client.reset(question_id="q1")
            for _ in range(bombs):
                began = time.perf_counter()
                text = await query(client, ATTACKS[dice.choice(BOMBS)])
                figures.bombs_s.append(time.perf_counter() - began)
                figures.replies[text[:80]] += 1
            reply = await client.call_tool("submit_answer", {"answer": "6118"})
            figures.graded += reply["done"] and reply["reward"] == 1.0
        except EpisodeError as fault:
            figures.faults[f"bomber: {fault}"] += 1
        finally:
            await client.close()


async def measure(folder: Path, arguments: argparse.Namespace) -> Figures:
    """Play on a fresh server."""
    snapshot = write_tiny_snapshot(folder / "snapshot")
    spec = FinQAEnvironment(None, EnvironmentContext(snapshot=snapshot, max_turns=10**6)).sandbox_spec()
    assert spec is not None, "no url is set"
    server = ServerProcess(spec, folder / "server.log")
    figures = Figures()
    try:
        await server.wait_until_healthy(60.0)
        until = time.monotonic() + arguments.seconds
        bombers = [
            bomb(server.url, until, arguments.seed + place, arguments.bombs, figures)
            for place in range(arguments.bombers)
        ]
        honest = [be_honest(server.url, until, arguments.seed - place, figures) for place in range(arguments.honest)]
        await asyncio.gather(*bombers, *honest)
        figures.processes_mib = [resident_mib(pid) for pid in (server.pid, *children(server.pid))]
    finally:
        await server.stop(3.0)
    return figures


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for names in lists for child in names.read_text(encoding="utf-8").split()]


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of values; 0 of none."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def show(name: str, figures: Figures) -> None:
    """Print the figures of one server."""
    print(f"{name}, load {os.getloadavg()[0]:.1f}")
    rows = {
        "honest queries": figures.honest_s + figures.with_s,
        "of them, with WITH": figures.with_s,
        "bombs": figures.bombs_s,
    }
    for label, values in rows.items():
        spread = ", ".join(f"{mark} {quantile(values, share):.3f} s" for mark, share in _MARKS)
        print(f"  {label}: {len(values)}, {spread}")
    print(f"  memory of the server and its processes: {', '.join(f'{mib:.0f}' for mib in figures.processes_mib)} MiB")
    print(f"  episodes of bombers graded: {figures.graded}; faults: {sum(figures.faults.values())}")
    for what, counted in (("fault", figures.faults), ("wrong reply", figures.wrong), ("bomb", figures.replies)):
        for text, count in counted.most_common(5):
            print(f"    {what}, {count} times: {text}")


_MARKS = (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))


def missed(figures: Figures) -> list[str]:
    """Return the targets that were missed."""
    p99 = quantile(figures.honest_s + figures.with_s, 0.99)
    targets = {
        f"p99 of honest queries {p99:.2f} s": p99 <= WORST_P99_S,
        f"{sum(figures.faults.values())} faults": not figures.faults,
        "wrong replies": not figures.wrong,
        "no bomber was graded": figures.graded > 0,
    }
    return [name for name, met in targets.items() if not met]


def main() -> int:
    """Read the flags and run; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bombers", type=int, default=200)
    parser.add_argument("--bombs", type=int, default=3, help="Bombs of an episode")
    parser.add_argument("--honest", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--against", type=Path, help="Another checkout, whose server is measured as well")
    arguments = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    failures: list[str] = []
    inherited = os.environ.get("PYTHONPATH")
    for _ in range(arguments.repeats):
        for checkout in [None, arguments.against] if arguments.against else [None]:
            if checkout is not None:
                os.environ["PYTHONPATH"] = f"{checkout.absolute()}:{checkout.absolute() / 'plugins'}"
            elif inherited is None:
                os.environ.pop("PYTHONPATH", None)
            else:
                os.environ["PYTHONPATH"] = inherited
            with tempfile.TemporaryDirectory(prefix="finqa-neighbours-") as folder:
                figures = asyncio.run(measure(Path(folder), arguments))
            show("this checkout" if checkout is None else str(checkout), figures)
            failures += missed(figures) if checkout is None else []
    print("missed: " + "; ".join(failures) if failures else "all targets met")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
