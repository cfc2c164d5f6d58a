"""How large everything is: as the figures ask for it, or small enough for a test."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.scale.engine_latency import LatencyModel
from finqa_testing import Delay, Latency

CLOUD = Latency(
    api=Delay(median_s=0.02, sigma=0.5),
    create=Delay(median_s=0.5, sigma=0.5),
    start=Delay(median_s=0.5, sigma=0.5),
    delete=Delay(median_s=0.5, sigma=0.5),
    proxy=Delay(median_s=0.02, sigma=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of all parts.

    Attributes:
        sandboxes: Sandboxes, and episodes at once.
        create_limit: Creates in any `create_window_s`; Daytona's Tier 1 by default.
        questions: As many as OpenEnv's FinQA data has, by default.
        rounds: Rounds that both schedulers play; the published one needs 3 for its 100 groups.
        target_groups: Where both stop when they play until enough groups stand.
        frozen: Share of the sandboxes that freeze; only health checks find them, which takes some 20 s.
        repeats: Runs for each kind of signal on each provider.
        signal_runs: A random choice of so many of those runs; None for all.
        signal_sandboxes: Sandboxes in those runs.
        soak_minutes: Length of the soak.
        latency: Of the simulated engine.
        cloud: Of the loopback Daytona.
    """

    sandboxes: int = 500
    create_limit: int = 300
    create_window_s: float = 60.0
    questions: int = 290
    group_size: int = 6
    rounds: int = 3
    target_groups: int = 100
    frozen: float = 0.05
    repeats: int = 20
    signal_runs: int | None = None
    signal_sandboxes: int = 4
    soak_minutes: float = 30.0
    latency: LatencyModel = field(default_factory=LatencyModel)
    cloud: Latency = CLOUD


FULL = Scale()
QUICK = Scale(
    sandboxes=20,
    create_limit=12,
    create_window_s=1.0,
    questions=30,
    group_size=2,
    rounds=2,
    target_groups=12,
    frozen=0.0,
    repeats=1,
    signal_runs=1,
    signal_sandboxes=2,
    soak_minutes=0.03,
    cloud=Latency(),
    latency=LatencyModel(step_s=0.0005, step_s_per_request=0.00001),
)
