"""The simulator of `benchmarks.scale` against real runs: costs measured with few sandboxes predict runs with many.

The real runs are those of the other parts: a Daytona on loopback, the product's pool, scheduler and records, and a
simulated engine. What is compared are the seconds until all sandboxes were ready, the length of three rounds of
rollouts, the requests that the engine served at once, and the CPU of this process. The simulator gets the settings of
the loopback's latencies, and costs that were measured at 100 sandboxes; nothing of the runs that it predicts. The CPU
of the same work moves by a third within an hour on a shared machine, so the costs are the mean of what was measured
just before and just after a run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.figures import Figure, as_table, at_most, note
from benchmarks.sandboxes.controller_cost import controller_cost
from benchmarks.sandboxes.policy import plan
from benchmarks.sandboxes.rollouts import Rollouts, collect
from benchmarks.sandboxes.scale import Scale
from benchmarks.sandboxes.world import fleet, world
from benchmarks.scale.simulation import Simulation
from benchmarks.scale.types import LATENCY_MEAN, Costs, Design

CALIBRATED_AT, SIZES = 100, (500, 1000)
QUICK_AT, QUICK_SIZES = 10, (20,)
AGREEMENT = 0.15
IDLE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A run as it was measured: seconds and CPU seconds of this process while it filled, and its rollouts.

    `idle_s` is the CPU of a sandbox without an episode for a second; 0.0 where it was not measured.
    """

    sandboxes: int
    fill_s: float
    fill_cpu_s: float
    idle_s: float
    rollouts: Rollouts


async def simulator(scale: Scale, home: Path, *, quick: bool = False) -> list[Figure]:
    """All figures; `quick` is for tests."""
    first, sizes = (QUICK_AT, QUICK_SIZES) if quick else (CALIBRATED_AT, SIZES)
    with world(replace(scale, sandboxes=1), 0, home / "imports") as account:
        async with fleet(account):
            pass  # the first start in a process imports the SDK, which is no cost of a sandbox
    idle_for = IDLE_S / 10 if quick else IDLE_S
    before = await _costs_at(scale, home / "before", first, idle_for)
    figures: list[Figure] = []
    for size in sizes:
        run = await _run(scale, home / str(size), size)
        after = await _costs_at(scale, home / f"after-{size}", first, idle_for)
        costs = _mean(before, after)
        figures += [*_measured(costs, first, size), *_compared(scale, costs, run)]
        print(as_table({"simulator": figures}), file=sys.stderr, flush=True)  # the next one takes minutes
        before = after
    return figures


def _mean(one: Costs, two: Costs) -> Costs:
    second = asdict(two)
    return Costs(**{name: (value + second[name]) / 2 for name, value in asdict(one).items()})


def _measured(costs: Costs, first: int, size: int) -> list[Figure]:
    parts = {
        "CPU ms of a turn": costs.turn_s,
        "CPU ms of a start": costs.create_s,
        "CPU ms of a record": costs.record_s,
        "CPU ms of an idle sandbox for a second": costs.idle_s,
        "ms of a tool call (median)": costs.tool_s,
    }
    return [note(f"{name}, measured at {first} sandboxes beside {size}", 1000 * value) for name, value in parts.items()]


async def _run(scale: Scale, home: Path, sandboxes: int, *, idle_for: float = 0.0) -> RealRun:
    with world(replace(scale, sandboxes=sandboxes), 0, home) as account:
        cpu = time.process_time()
        async with fleet(account) as ready:
            filled = time.process_time()
            await asyncio.sleep(idle_for)
            idle_s = (time.process_time() - filled) / idle_for / sandboxes if idle_for else 0.0
            rollouts = await collect(ready, target_groups=0)
            return RealRun(
                sandboxes=sandboxes,
                fill_s=ready.ready_s,
                fill_cpu_s=filled - cpu,
                idle_s=idle_s,
                rollouts=rollouts,
            )


async def _costs_at(scale: Scale, home: Path, sandboxes: int, idle_for: float) -> Costs:
    """Costs of the parts, from a run: of the controller by itself, of all else by what is left."""
    run = await _run(scale, home, sandboxes, idle_for=idle_for)
    controller = await controller_cost(home, episodes=600 if run.sandboxes < CALIBRATED_AT else 6000)
    played, calls = run.rollouts, run.rollouts.tool_calls
    episodes = len(played.episodes)
    engine_s = played.schedule.engine_load * played.schedule.seconds
    idle_s = max(0.0, run.sandboxes * played.schedule.seconds - sum(each.seconds for each in played.episodes))
    known_s = episodes * (controller.bookkeeping_s + controller.record_s) + run.idle_s * idle_s
    turn_s = (played.cpu_s - known_s) / calls
    waited_s = sum(trajectory.seconds for trajectory in played.episodes) - engine_s - calls * turn_s
    return Costs(
        turn_s=turn_s,
        create_s=run.fill_cpu_s / run.sandboxes,
        idle_s=run.idle_s,
        episode_s=controller.bookkeeping_s,
        receive_s=controller.receive_s,
        record_s=controller.record_s,
        reply_s=scale.cloud.create.median_s,
        ready_s=scale.cloud.start.median_s,
        tool_s=waited_s / (calls + episodes) / LATENCY_MEAN,  # each episode opens a session as well
    )


def _compared(scale: Scale, costs: Costs, run: RealRun) -> Sequence[Figure]:
    design = Design(
        sandboxes=run.sandboxes,
        episodes_at_once=run.sandboxes,
        create_limit=scale.create_limit,
        create_window_s=scale.create_window_s,
        group_size=scale.group_size,
    )
    turns = [plan(number, "").turns for number in range(4999)]
    real, episodes = run.rollouts, len(run.rollouts.episodes)
    filling = Simulation(design, costs, scale.latency, turns).run()
    playing = Simulation(design, costs, scale.latency, turns).run(episodes=episodes, filled=True)
    pairs = {
        "s until all were ready": (filling.ready[-1], run.fill_s),
        f"s for {episodes} episodes": (playing.seconds, real.schedule.seconds),
        "requests at once in the engine": (playing.engine_load, real.schedule.engine_load),
        "CPU s of this process": (playing.controller * playing.seconds, real.cpu_s),
    }
    return [
        at_most(
            f"{run.sandboxes} sandboxes: {name}, off by",
            abs(simulated / measured - 1),
            AGREEMENT,
            f"simulated {simulated:.3g}, measured {measured:.3g}",
            timed=True,
        )
        for name, (simulated, measured) in pairs.items()
    ]
