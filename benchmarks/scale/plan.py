"""The plan of a run with many sandboxes: how long the start takes, the episodes played, the bottleneck and the cost.

All figures come from `simulation`. The starts of all sandboxes are simulated. Rollouts are simulated with half of
the episodes at once and with all of them, and the hours are extrapolated from both. Only rollouts are planned: the
learner is assumed to keep up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.scale.engine_latency import LatencyModel
from benchmarks.scale.simulation import DRAWN, Simulation
from benchmarks.scale.types import Costs, Design, Outcome

FULL, COMFORTABLE = 0.9, 0.6
"""Busy shares of a core. From the first on, the process is the bottleneck. Up to the second, it is not late."""

ENGINE_GAIN = 1.5
"""If twice as many episodes at once give less than this factor more turns per second, the engine is the bottleneck."""

LONG_FILL = 0.1
"""Share of the hours that the starts must take to be the bottleneck."""

MOST_SIMULATED = 10_000
"""Most episodes simulated before the measurement begins, and most episodes measured. The warm-up is short because the
simulation begins with episodes in progress."""

GPUS_PER_REPLICA = 2
"""GPUs per replica of the engine that `LatencyModel` describes."""

NOT_BUILT = "not built yet"
SHARED_SESSIONS = 32
"""Sessions per sandbox that are suggested where sessions can share a sandbox."""

LIMITS = {
    "creates": "creates: the account's limit",
    "process": "the process: one core plays and keeps the record of all episodes",
    "controller": "the controller's core",
    "workers": "the cores of the rollout workers",
    "engine": "the engine: more episodes at once make each reply slower",
    "concurrency": "--max-concurrent-play: sandboxes are idle",
    "sandboxes": "the sandboxes: nothing else is full",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices in US dollars for an hour of one sandbox and of one GPU (0: not counted), and GPUs per engine replica."""

    sandbox_hour: float = 0.0
    gpu_hour: float = 0.0
    gpus_per_replica: int = GPUS_PER_REPLICA


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """Result of `python -m benchmarks.scale`.

    Attributes:
        design: The design that was simulated.
        hours: Duration of the run in hours, starts included.
        at_once: Episodes at once when all sandboxes are ready.
        fill_s: Seconds until the last sandbox is ready; None if each episode gets a fresh sandbox.
        episodes: Episodes in all hours.
        full: Figures of the rollouts when all sandboxes are ready.
        limit: The bottleneck, a key of `LIMITS`.
        changes: Suggested changes, each a sentence.
        not_built: Parts of the design that finqa does not have yet.
        sandbox_hours: Hours of all sandboxes together.
        gpu_hours: Hours of the engine's GPUs together.
        cost_usd: Cost in US dollars at the known prices; None if no price is known.
    """

    design: Design
    hours: float
    at_once: int
    fill_s: float | None
    episodes: int
    full: Outcome
    limit: str
    changes: tuple[str, ...]
    not_built: tuple[str, ...]
    sandbox_hours: float
    gpu_hours: float
    cost_usd: float | None

    @property
    def groups(self) -> int:
        """Complete groups in all hours."""
        return self.episodes // self.design.group_size


def draw_turns(mean: float, *, seed: int = 0) -> list[int]:
    """Draw the turns of `DRAWN` episodes from a geometric distribution with this mean, which is at least 1."""
    rng = random.Random(seed)
    more = 1.0 - 1.0 / mean
    return [1 + (int(math.log(1.0 - rng.random()) / math.log(more)) if more > 0 else 0) for _ in range(DRAWN)]


class Planner:
    """Simulates one design and variants of it."""

    def __init__(self, costs: Costs, latency: LatencyModel, turns: Sequence[int], *, seed: int = 0) -> None:
        """Keep what all variants share; see `Simulation` for the arguments."""
        self._costs, self._latency, self._turns, self._seed = costs, latency, turns, seed
        self._simulated: dict[Design, Outcome] = {}

    def plan(self, design: Design, *, hours: float, prices: Prices) -> ScalePlan:
        """Simulate a design and plan a run of `hours` hours."""
        at_once = min(design.episodes_at_once, design.sandboxes * design.sessions_per_sandbox)
        if design.fresh:
            full = half = self._fresh(design)
            fill_s, episodes = None, full.episodes_per_s * 3600 * hours
            sandbox_hours = full.in_sandboxes * hours
        else:
            full, half = (self.rollouts(design, count) for count in (at_once, max(1, at_once // 2)))
            ready = self._simulation(design).run().ready
            fill_s = ready[-1]
            episodes = _episodes(design, ready, 3600 * hours, half, full, at_once)
            sandbox_hours = sum(max(0.0, hours - moment / 3600) for moment in ready)
        gpu_hours = design.replicas * prices.gpus_per_replica * hours
        cost = sandbox_hours * prices.sandbox_hour + gpu_hours * prices.gpu_hour
        limit = _limit(design, at_once, half, full, (fill_s or 0.0) / (3600 * hours))
        return ScalePlan(
            design=design,
            hours=hours,
            at_once=at_once,
            fill_s=fill_s,
            episodes=int(episodes),
            full=full,
            limit=limit,
            changes=tuple(self._changes(design, limit, at_once)),
            not_built=_not_built(design),
            sandbox_hours=sandbox_hours,
            gpu_hours=gpu_hours,
            cost_usd=cost if prices.sandbox_hour or prices.gpu_hour else None,
        )

    def rollouts(self, design: Design, at_once: int) -> Outcome:
        """Simulate rollouts with all sandboxes ready and `at_once` episodes at once, under constant load."""
        sandboxes = -(-at_once // design.sessions_per_sandbox)
        full = replace(design, sandboxes=sandboxes, episodes_at_once=at_once)
        if full not in self._simulated:
            since = min(max(at_once // 4, 200), MOST_SIMULATED)
            measured = min(max(at_once // 2, 2000), MOST_SIMULATED)
            outcome = self._simulation(full).run(episodes=since + measured, filled=True, since=since)
            self._simulated[full] = outcome
        return self._simulated[full]

    def _fresh(self, design: Design) -> Outcome:
        """Simulate several windows of the create limit, with a new sandbox for each episode."""
        window = design.accounts * design.create_limit
        return self._simulation(design).run(episodes=9 * window, since=3 * window)

    def _simulation(self, design: Design) -> Simulation:
        return Simulation(design, self._costs, self._latency, self._turns, seed=self._seed)

    def _changes(self, design: Design, limit: str, at_once: int) -> list[str]:
        """Return suggested changes for a bottleneck, as sentences with flags and settings."""
        if limit in ("process", "controller", "workers"):
            carried, workers = self._carried(design, at_once), self._workers(design, at_once)
            less = [f"--sandboxes {carried} --max-concurrent-play {carried} keeps it at 60 % of a core."]
            more = [
                f"--set cluster.rollout_workers={workers}: they play {at_once} episodes at once at 60 % of a core each."
            ]
            return {"process": less + more, "controller": less, "workers": more}[limit]
        if limit == "creates":
            tier = f"--set sandbox.options.create_limit={2 * design.create_limit}, where the account's tier allows it."
            few = -(-at_once // SHARED_SESSIONS)
            shared = f"--sandboxes {few} --sessions-per-sandbox {SHARED_SESSIONS}, where sessions can share a sandbox."
            return [tier] if design.fresh or design.sessions_per_sandbox > 1 else [tier, shared]
        if limit == "engine":
            slope = self._latency.step_s_per_request / self._latency.step_s
            replicas = max(design.replicas + 1, math.ceil(2 * at_once * slope))
            return [f"--engine-replicas {replicas}, each on GPUs of its own."]
        if limit == "concurrency":
            return [f"--max-concurrent-play {design.sandboxes * design.sessions_per_sandbox} uses all sandboxes."]
        return ["More sandboxes give about as many more episodes."]

    def _carried(self, design: Design, at_once: int) -> int:
        """Return the number of episodes at once at which the busiest process of a design uses 60 % of a core."""
        found = self.rollouts(design, at_once)
        while at_once > 1 and max(found.controller, *found.workers, 0.0) >= FULL:
            at_once //= 2
            found = self.rollouts(design, at_once)
        return max(1, int(at_once * COMFORTABLE / max(found.controller, *found.workers, 0.0)))

    def _workers(self, design: Design, at_once: int) -> int:
        """Return the number of rollout workers that play `at_once` episodes at 60 % of a core each.

        The rate of turns comes from a simulation in which no core is busy, so that no CPU delays it.
        """
        costs = self._costs
        free = replace(costs, turn_s=0.0, episode_s=0.0, record_s=0.0, receive_s=0.0, relay_s=0.0, message_s=0.0)
        found = Planner(free, self._latency, self._turns, seed=self._seed).rollouts(design, at_once)
        return math.ceil(found.turns * costs.turn_s / found.seconds / COMFORTABLE)


def _episodes(
    design: Design, ready: Sequence[float], seconds: float, half: Outcome, full: Outcome, at_once: int
) -> float:
    """Return the number of episodes in `seconds`, starts included.

    At each moment the rate of episodes is interpolated by the number of episodes at once, between 0, the rate of half
    of them and the rate of all.

    Args:
        design: The design.
        ready: Seconds at which each sandbox is ready, in order.
        seconds: Duration of the run.
        half: Rollouts with half of the episodes at once.
        full: Rollouts with all episodes at once.
        at_once: Episodes at once when all sandboxes are ready.
    """
    middle = max(1, at_once // 2)
    knots = [(0, 0.0), (middle, half.episodes_per_s), (max(at_once, middle + 1), full.episodes_per_s)]
    total = 0.0
    for number, began in enumerate(ready, start=1):
        ended = ready[number] if number < len(ready) else seconds
        playing = min(number * design.sessions_per_sandbox, at_once)
        (low, low_rate), (high, high_rate) = knots[:2] if playing <= middle else knots[1:]
        rate = low_rate + (high_rate - low_rate) * (playing - low) / (high - low)
        total += rate * max(0.0, min(ended, seconds) - began)
    return total


def _limit(design: Design, at_once: int, half: Outcome, full: Outcome, filling: float) -> str:
    """Return the bottleneck of a design, a key of `LIMITS`; `filling` is the share of the hours that starts take."""
    creates_per_s = design.accounts * design.create_limit / design.create_window_s
    if design.fresh and full.episodes_per_s >= FULL * creates_per_s:
        return "creates"
    if full.controller >= FULL:
        return "controller" if design.workers else "process"
    if design.workers and sum(full.workers) / design.workers >= FULL:
        return "workers"
    if not design.fresh and at_once > 1 and full.turns_per_s < ENGINE_GAIN * half.turns_per_s:
        return "engine"
    if at_once < design.sandboxes * design.sessions_per_sandbox:
        return "concurrency"
    return "creates" if filling > LONG_FILL else "sandboxes"


def _not_built(design: Design) -> tuple[str, ...]:
    return ("several accounts in one run",) if design.accounts > 1 else ()
