"""Starting all sandboxes: as fast as the create limit allows, and through a storm of refused and lost creates."""

from __future__ import annotations

import time

from benchmarks.figures import Figure, at_most, exactly, note
from benchmarks.sandboxes.scale import Scale
from benchmarks.sandboxes.world import Fleet, World, filled, pool_for
from finqa_testing import Faults

READY = 1.2
STORM = Faults(rate_limited=0.3, server_error=0.05, lost_reply=0.01)


def allowed_s(scale: Scale) -> float:
    """Seconds until the last sandbox can be ready: its create must wait for its window, and then it has to start."""
    windows = (scale.sandboxes - 1) // scale.create_limit
    return windows * scale.create_window_s + scale.cloud.create.median_s + scale.cloud.start.median_s


async def ready(fleet: Fleet) -> list[Figure]:
    """How long the pool took to fill."""
    stats = await fleet.world.loopback.async_control.stats()
    allowed = allowed_s(fleet.world.scale)
    limit = f"{fleet.world.scale.create_limit} creates in {fleet.world.scale.create_window_s:g} s"
    return [
        exactly("sandboxes ready", fleet.pool.stats().alive, fleet.world.scale.sandboxes),
        at_most(
            "s until all were ready, by what the limit allows",
            fleet.ready_s / allowed,
            READY,
            f"{fleet.ready_s:.1f} by {allowed:.1f} s at {limit}",
            timed=True,
        ),
        at_most("most creates in a window", stats["busiest_window"], fleet.world.scale.create_limit),
        note("answers 429", stats["creates"]["limited"]),
    ]


async def creates(world: World) -> list[Figure]:
    """The storm: 30 % of creates refused with 429, 5 % of all requests with 5xx, 1 % of creates lose their reply."""
    scale, control = world.scale, world.loopback.async_control
    before = await control.stats()
    await control.set_faults(STORM)
    pool = await pool_for(world, "storm")
    began = time.perf_counter()
    try:
        await pool.start()
        await filled(pool, scale)
        took = time.perf_counter() - began
        alive, stats, sandboxes = pool.stats().alive, await control.stats(), await control.sandboxes()
    finally:
        await pool.close()
        await control.set_faults(Faults())
    left = await control.sandboxes()
    made = stats["sandboxes_ever"] - before["sandboxes_ever"]
    ours = [sandbox for sandbox in sandboxes if sandbox["labels"].get("finqa.run") == "storm"]
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(stats["faults"].items()))
    return [
        exactly("sandboxes ready", alive, scale.sandboxes, f"through {faults}"),
        exactly("orphans while the pool is full", len(sandboxes) - alive, 0, "sandboxes that the pool does not know"),
        exactly("sandboxes without our labels", len(sandboxes) - len(ours), 0),
        exactly("duplicates", stats["duplicates"] + stats["name_conflicts"], 0, f"{made} sandboxes ever made"),
        exactly("sandboxes left after the end", len(left), 0),
        at_most("most creates in a window", stats["busiest_window"], scale.create_limit),
        note("s until all were ready, by what the limit allows", took / allowed_s(scale), f"{took:.1f} s"),
    ]
