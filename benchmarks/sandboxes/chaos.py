"""A fifth of the sandboxes is killed in mid-episode, some freeze: what is lost, and what does it cost?"""

from __future__ import annotations

import asyncio
from collections import Counter

from benchmarks.figures import Figure, at_most, exactly, note
from benchmarks.sandboxes.rollouts import Rollouts, collect, is_whole
from benchmarks.sandboxes.world import Fleet

KILLED = 0.2
WHEN = 0.3
SLOWDOWN = 1.3


async def chaos(fleet: Fleet, clean: Rollouts) -> list[Figure]:
    """The rounds of `clean` again, with faults after three tenths of its time, when every sandbox has an episode."""

    async def strike() -> tuple[int, int]:
        await asyncio.sleep(WHEN * clean.schedule.seconds)
        control = fleet.world.loopback.async_control
        killed = await control.kill(share=KILLED)
        frozen = await control.freeze(share=fleet.world.scale.frozen / (1 - KILLED))
        return len(killed), len(frozen)

    striking = asyncio.create_task(strike())
    hit = await collect(fleet, target_groups=0)
    killed, frozen = await striking
    reported = Counter(trajectory.id for trajectory in hit.episodes)
    expected, found = rewards(clean), rewards(hit)
    twice = sum(count - 1 for count in reported.values()) + sum(len(g.trajectories) for g in hit.groups) - len(found)
    stats = fleet.pool.stats()
    return [
        exactly("sandboxes killed", killed, round(KILLED * fleet.world.scale.sandboxes)),
        exactly("sandboxes frozen", frozen, round(fleet.world.scale.frozen * fleet.world.scale.sandboxes)),
        exactly("groups lost", sum(not is_whole(group) for group in hit.groups), 0, f"of {len(hit.groups)}"),
        exactly("groups missing or new", len(asked(clean) ^ asked(hit)), 0),
        exactly("rollouts counted twice", twice, 0, f"of {len(hit.episodes)}"),
        exactly(
            "rewards that differ from the run without faults",
            sum(found.get(key) != reward for key, reward in expected.items()) + abs(len(found) - len(expected)),
            0,
            "so nothing is scored 0 by a fault",
        ),
        note("episodes that continued in another sandbox", sum(bool(t.recoveries) for t in hit.episodes)),
        note("sandboxes replaced by then", stats.replaced, f"of {stats.lost} that were lost"),
        note("episodes that started again", sum(bool(t.retries) for t in hit.episodes)),
        at_most(
            "wall time by that without faults",
            hit.schedule.seconds / clean.schedule.seconds,
            SLOWDOWN,
            f"{hit.schedule.seconds:.1f} by {clean.schedule.seconds:.1f} s",
            timed=True,
        ),
    ]


def asked(rollouts: Rollouts) -> set[tuple[int, str]]:
    """The question of each group, by its place."""
    return {(place, group.task.id) for place, group in enumerate(rollouts.groups)}


def rewards(rollouts: Rollouts) -> dict[tuple[int, int], float | None]:
    """The reward of each member by the place of its group and its own: the same in every run of one seed."""
    return {
        (place, member.member): member.reward
        for place, group in enumerate(rollouts.groups)
        for member in group.trajectories
    }
