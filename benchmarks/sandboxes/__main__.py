"""Five hundred sandboxes on a loopback Daytona: every figure with its limit, pass or fail.

    python -m benchmarks.sandboxes [--only NAME] [--quick] [--seed N] [--home FOLDER]

The loopback (`finqa_testing`) runs in its own process and real environment servers run behind it; pool,
provider, scheduler and records are the product's own. Only the engine is simulated: on GPUs of its own, with the
latency model of `latency.py` and the calls of `policy.py`. In the parts `client` and `engine` tokens come over HTTP
from servers in processes of their own (`token_server.py`), and no Daytona takes part. Prints a markdown table and, as
the last line, the same as JSON; the exit status is 1 when a figure fails. `--quick` is for tests: too small for its
times to be judged.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, machine, report, without_times
from benchmarks.sandboxes.chaos import chaos
from benchmarks.sandboxes.client_cost import client_cost
from benchmarks.sandboxes.creates import creates, ready
from benchmarks.sandboxes.lost_engine import lost_engine
from benchmarks.sandboxes.rollouts import collect
from benchmarks.sandboxes.scale import FULL, QUICK, Scale
from benchmarks.sandboxes.signals import signals
from benchmarks.sandboxes.simulator import simulator
from benchmarks.sandboxes.soak import soak
from benchmarks.sandboxes.throughput import throughput
from benchmarks.sandboxes.world import World, fleet, world
from finqa_cli import logs

ON_ONE_FLEET = ("ready", "throughput", "chaos", "soak")
ALONE: dict[str, Callable[[World], Awaitable[list[Figure]]]] = {"creates": creates, "signals": signals}
WITH_SERVERS: dict[str, Callable[[Scale, Path], Awaitable[list[Figure]]]] = {
    "client": lambda scale, home: client_cost(home, quick=scale.sandboxes == QUICK.sandboxes),
    "engine": lambda scale, home: lost_engine(home),
    "simulator": lambda scale, home: simulator(scale, home, quick=scale.sandboxes == QUICK.sandboxes),
}
PARTS = ("ready", "throughput", "chaos", "creates", "signals", "client", "engine", "simulator", "soak")


async def measure(parts: Collection[str], scale: Scale, seed: int, home: Path) -> dict[str, list[Figure]]:
    """The figures of these parts."""
    figures: dict[str, list[Figure]] = {}
    for name, measured in WITH_SERVERS.items():
        if name in parts:
            _say(name)
            figures[name] = await measured(scale, home)
    if any(part not in WITH_SERVERS for part in parts):
        with world(scale, seed, home) as account:
            if any(part in ON_ONE_FLEET for part in parts):
                figures |= await _on_one_fleet(parts, account)
            for name, part in ALONE.items():
                if name in parts:
                    _say(name)
                    figures[name] = await part(account)
    return {name: figures[name] for name in PARTS if name in figures}


async def _on_one_fleet(parts: Collection[str], account: World) -> dict[str, list[Figure]]:
    figures: dict[str, list[Figure]] = {}
    _say("starting the sandboxes")
    async with fleet(account) as sandboxes:
        if "ready" in parts:
            figures["ready"] = await ready(sandboxes)
        if "throughput" in parts or "chaos" in parts:
            _say("rounds without faults")
            clean = await collect(sandboxes, target_groups=0)
        if "throughput" in parts:
            _say("throughput")
            figures["throughput"] = await throughput(sandboxes, clean)
        if "chaos" in parts:
            _say("chaos")
            figures["chaos"] = await chaos(sandboxes, clean)
        if "soak" in parts:
            _say("soak")
            figures["soak"] = await soak(sandboxes, account.scale.soak_minutes)
    return figures


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Reads the flags and runs; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="20 sandboxes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slower", type=float, default=1.0, help="engine so many times slower, for a busy machine")
    parser.add_argument("--rounds", type=int, help="rounds of rollouts instead of 3, likewise")
    parser.add_argument("--home", type=Path, help="folder for snapshot, runs and logs; a temporary one by default")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    scale = replace(scale, latency=scale.latency.slower(arguments.slower), rounds=arguments.rounds or scale.rounds)
    logs.configure({"FINQA_LOG_LEVEL": "error"})  # faults are made on purpose, and each would be a line
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    facts = {
        **machine(),
        "seed": arguments.seed,
        "sandboxes": scale.sandboxes,
        "quick": arguments.quick,
        "slower": arguments.slower,
    }
    with tempfile.TemporaryDirectory(prefix="finqa-benchmark-") as folder:
        home = arguments.home or Path(folder)
        figures = asyncio.run(measure(arguments.only or PARTS, scale, arguments.seed, home))
    if arguments.quick:
        figures = {name: without_times(part) for name, part in figures.items()}
    return report(figures, facts)


if __name__ == "__main__":
    sys.exit(main())
