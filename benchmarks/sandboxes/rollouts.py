"""One iteration of rollouts by the product's own scheduler, measured from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.sandboxes.ideal import Schedule
from benchmarks.sandboxes.world import Fleet
from finqa_cli.rollout.groups import Collection
from finqa_cli.rollout.seeds import TaskWalk
from finqa_cli.rollout.stream import streaming
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.types import Group, PolicyVersion, Trajectory
from finqa_cli.wiring.build import make_optimizer
from finqa_cli.wiring.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What was played.

    Attributes:
        groups: All of them.
        episodes: Every attempt that was reported, in the order in which they began.
        schedule: How sandboxes and engine were used.
        cpu_s: What this process needed for it, less what the simulated engine needed.
        tool_calls: Of all episodes.
    """

    groups: Sequence[Group]
    episodes: Sequence[Trajectory]
    schedule: Schedule
    cpu_s: float
    tool_calls: int

    @property
    def usable(self) -> int:
        """Episodes of groups in which each member was graded."""
        return sum(len(group.trajectories) for group in self.groups if is_whole(group))


def is_whole(group: Group) -> bool:
    """Each member was graded, none ended in a fault."""
    return all(member.reward is not None and not member.status.is_fault for member in group.trajectories)


def stage_of(fleet: Fleet) -> Stage:
    """The fleet as the product's workflows see it."""
    return Stage(
        environment=fleet.world.environment,
        pool=fleet.pool,
        engine=fleet.engine,
        codec=None,
        policy=PolicyVersion(number=0, model=""),
        data=fleet.world.environment.data(),
    )


async def collect(fleet: Fleet, *, target_groups: int, iteration: int = 1) -> Rollouts:
    """One iteration under the settings of the fleet; every trajectory is recorded as `finqa train` does it."""
    train = fleet.world.settings.train.model_copy(update={"target_groups_per_iter": target_groups})
    settings = fleet.world.settings.model_copy(update={"train": train})
    ended: list[tuple[float, Trajectory]] = []
    path = fleet.world.home / f"runs/{time.time_ns()}"
    engine, sandboxes = fleet.engine, fleet.world.scale.sandboxes
    with RunFolder.create(path, command="benchmark", settings={}, save_token_ids=False) as folder:

        async def heard(trajectory: Trajectory) -> None:
            await asyncio.wrap_future(folder.trajectory(trajectory, phase="train", iteration=iteration))
            ended.append((time.perf_counter() - trajectory.seconds, trajectory))

        cpu, simulated, served, turns = time.process_time(), engine.cpu_s, engine.request_seconds, engine.turns
        began = time.perf_counter()
        walk = TaskWalk(fleet.tasks, seed=settings.train.seed)
        player = stage_of(fleet).player(settings, temperature=1.0)
        async with streaming(player, concurrency=settings.pool.concurrency) as stream:
            collected = await Collection(
                stream, walk, make_optimizer(settings), settings, iteration=iteration, on_trajectory=heard
            ).collected()
        seconds = time.perf_counter() - began
        cpu_s = time.process_time() - cpu - (engine.cpu_s - simulated)
    ended.sort(key=lambda pair: pair[0])
    held = sum(trajectory.seconds for _, trajectory in ended)
    return Rollouts(
        groups=collected.groups,
        episodes=[trajectory for _, trajectory in ended],
        schedule=Schedule(
            seconds=seconds,
            sandbox_share=held / (sandboxes * seconds),
            engine_load=(engine.request_seconds - served) / seconds,
        ),
        cpu_s=cpu_s,
        tool_calls=engine.turns - turns,
    )
