"""Use of the sandboxes and the engine, and usable episodes, compared with the published scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.figures import Figure, at_least, at_most, exactly, note
from benchmarks.sandboxes.ideal import ideal_schedule, lower_bound_s
from benchmarks.sandboxes.published import PublishedIteration, PublishedScheduler
from benchmarks.sandboxes.rollouts import Rollouts, collect, is_whole
from benchmarks.sandboxes.world import Fleet

UTILISATION, SPEEDUP, CPU_MS = 0.9, 2.0, 5.0


async def throughput(fleet: Fleet, clean: Rollouts) -> list[Figure]:
    """All figures; `clean` are the rounds without faults."""
    stats = await fleet.world.loopback.async_control.stats()
    published = await published_iteration(fleet)
    until_target = await collect(fleet, target_groups=fleet.world.scale.target_groups, iteration=2)
    return [
        at_least("sessions at once", stats["websockets_most"], fleet.world.scale.sandboxes, timed=True),
        exactly("groups lost", sum(not is_whole(group) for group in clean.groups), 0, f"of {len(clean.groups)}"),
        *utilisation(fleet, clean),
        *comparison(fleet, clean, until_target, published),
        _cpu(clean),
    ]


async def published_iteration(fleet: Fleet) -> PublishedIteration:
    """The published scheduler on the same sandboxes, with the same engine and questions."""
    scale = fleet.world.scale
    async with AsyncExitStack() as stack:
        leases = [await stack.enter_async_context(fleet.pool.lease()) for _ in range(scale.sandboxes)]
        urls = [sandbox.url() for sandbox in leases if sandbox is not None]
        scheduler = PublishedScheduler(urls, fleet.engine, fleet.tasks, seed=fleet.world.seed)
        await scheduler.connect()
        try:
            return await scheduler.iteration(
                group_size=scale.group_size, target_groups=scale.target_groups, max_rounds=scale.rounds
            )
        finally:
            await scheduler.close()


def utilisation(fleet: Fleet, clean: Rollouts) -> list[Figure]:
    """Ours by the ideal schedule's, for the same episodes in the same order."""
    played = [(trajectory.seed, len(trajectory.turns)) for trajectory in clean.episodes]
    sandboxes, ours = fleet.world.scale.sandboxes, clean.schedule
    ideal = ideal_schedule(fleet.world.scale.latency, played, sandboxes)
    bound = lower_bound_s([trajectory.seconds for trajectory in clean.episodes], sandboxes)
    turns = sum(count for _, count in played) / len(played)
    return [
        note("episodes played", len(played), f"{turns:.2f} turns on average, at most {max(n for _, n in played)}"),
        note("s for them", ours.seconds, f"ideal {ideal.seconds:.1f}; no schedule of these lengths under {bound:.1f}"),
        at_least(
            "sandbox utilisation, by the ideal's",
            ours.sandbox_share / ideal.sandbox_share,
            UTILISATION,
            f"{ours.sandbox_share:.3f} by {ideal.sandbox_share:.3f}",
            timed=True,
        ),
        at_least(
            "engine utilisation, by the ideal's",
            ours.engine_load / ideal.engine_load,
            UTILISATION,
            f"{ours.engine_load:.0f} by {ideal.engine_load:.0f} requests at once",
            timed=True,
        ),
    ]


def comparison(
    fleet: Fleet, clean: Rollouts, until_target: Rollouts, published: PublishedIteration
) -> Sequence[Figure]:
    """Usable grouped episodes a minute: members of exact groups under one policy version."""
    per_minute = 60 / published.seconds
    theirs = published.groups * fleet.world.scale.group_size * per_minute
    rounds, target = (run.usable * 60 / run.schedule.seconds for run in (clean, until_target))
    whole = sum(run.usable > 0 for run in (clean, until_target))
    assert whole == 2, "no group is whole: see the trajectories"
    return [
        note(
            "published: usable episodes a minute",
            theirs,
            f"{published.groups} groups of {published.episodes} episodes in {published.rounds} rounds and "
            f"{published.seconds:.0f} s; {published.left_over} left over, {published.cancelled} cancelled, "
            f"length bias {published.length_bias:+.2f}, {published.engine_load:.0f} requests at once",
        ),
        at_least(
            "usable episodes a minute, by the published scheduler's",
            rounds / max(theirs, 1e-9),
            SPEEDUP,
            f"{rounds:.0f}; {fleet.world.scale.rounds} rounds each",
            timed=True,
        ),
        at_least(
            f"the same until {fleet.world.scale.target_groups} groups stand",
            target / max(theirs, 1e-9),
            SPEEDUP,
            f"{target:.0f}; {len(until_target.groups)} groups in {until_target.schedule.seconds:.0f} s, "
            "and ours counts only informative groups towards its target",
            timed=True,
        ),
        note(
            "usable episodes a minute, by all that the published scheduler finishes",
            rounds / (published.episodes * per_minute),
            "as if every one found a group sooner or later, under any policy",
        ),
    ]


def _cpu(clean: Rollouts) -> Figure:
    return at_most(
        "orchestrator CPU ms a tool call",
        clean.cpu_s * 1000 / clean.tool_calls,
        CPU_MS,
        f"{clean.cpu_s:.1f} s for {clean.tool_calls} calls, everything in this process but the simulated engine",
        timed=True,
    )
