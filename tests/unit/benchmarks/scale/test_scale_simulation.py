from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from benchmarks.scale.engine_latency import LatencyModel
from benchmarks.scale.plan import Planner, draw_turns
from benchmarks.scale.simulation import Simulation
from benchmarks.scale.types import LATENCY_MEAN, Costs, Design, Outcome
from finqa_plugins.sandboxes._quota.sliding_window import SlidingWindow

TURNS = draw_turns(4.5)
UNCROWDED = LatencyModel(step_s=0.02, step_s_per_request=0.0)
FREE = Costs(
    turn_s=0.0, create_s=0.0, idle_s=0.0, episode_s=0.0, record_s=0.0, receive_s=0.0, relay_s=0.0, message_s=0.0
)


def simulate(design: Design, costs: Costs = FREE, latency: LatencyModel = UNCROWDED, *, seed: int = 0) -> Outcome:
    episodes = 10 * design.episodes_at_once
    return Simulation(design, costs, latency, TURNS, seed=seed).run(
        episodes=episodes, since=design.episodes_at_once, filled=True
    )


def most_in_a_window(moments: list[float], window_s: float) -> int:
    """The most of ordered moments that any half-open window contains."""
    first = most = 0
    for place, moment in enumerate(moments):
        while moments[first] <= moment - window_s:
            first += 1
        most = max(most, place - first + 1)
    return most


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(("workers", "accounts", "limit"), [(0, 1, 40), (1, 2, 7), (4, 1, 25), (26, 3, 40)])
def test_creates_stay_below_the_accounts_limit_in_every_window(
    workers: int, accounts: int, limit: int, fresh: bool, seed: int
) -> None:
    design = Design(
        sandboxes=150,
        episodes_at_once=150,
        accounts=accounts,
        create_limit=limit,
        create_window_s=10.0,
        workers=workers,
        fresh=fresh,
    )
    found = Simulation(design, Costs(), LatencyModel(), TURNS, seed=seed).run(episodes=300 if fresh else 0)
    assert len(found.ready) >= 150 and len(found.creates) == accounts
    assert all(most_in_a_window(list(counted), 10.0) <= limit for counted in found.creates)


@pytest.mark.parametrize(("sandboxes", "limit"), [(250, 300), (301, 300), (1000, 300), (3000, 250)])
def test_filling_takes_what_the_providers_own_gate_takes(sandboxes: int, limit: int) -> None:
    window, now = SlidingWindow(limit, 60.0), 0.0
    for _ in range(sandboxes):
        now += window.delay(now)
        window.end(window.begin(now), now + 0.5)
    design = Design(sandboxes=sandboxes, episodes_at_once=1, create_limit=limit, starting=sandboxes)
    filled = Simulation(design, FREE, UNCROWDED, TURNS).run().ready[-1]
    assert now <= filled <= 1.05 * now + 8.0  # the latencies of the last start


def test_equal_seeds_give_equal_runs() -> None:
    design = Design(sandboxes=40, episodes_at_once=40, workers=3, replicas=2)
    assert simulate(design, Costs()) == simulate(design, Costs())
    assert simulate(design, Costs()) != simulate(design, Costs(), seed=1)


def test_without_contention_an_episode_takes_the_time_of_its_turns() -> None:
    design = Design(sandboxes=60, episodes_at_once=60)
    found = simulate(design)
    replies = statistics.mean(UNCROWDED.steps(0, number) for number in range(9973)) * UNCROWDED.step_s
    calls = FREE.tool_s * LATENCY_MEAN
    turns = statistics.mean(TURNS)
    assert found.episodes_per_s == pytest.approx(60 / (turns * (replies + calls) + calls), rel=0.05)
    assert found.in_sandboxes == pytest.approx(60, rel=0.02)
    assert found.engine_slowdown == pytest.approx(1.0, rel=0.02)  # requests under way at either end are half counted


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_full_core_gives_what_its_cpu_allows(workers: int) -> None:
    costs = Costs(turn_s=0.5, record_s=0.1)
    design = Design(sandboxes=200, episodes_at_once=200, workers=workers)
    found = simulate(design, costs)
    cpu_s = statistics.mean(TURNS) * costs.turn_s + costs.record_s
    assert found.episodes_per_s == pytest.approx(max(1, workers) / cpu_s, rel=0.06)
    busy = found.workers or [found.controller]
    assert all(share == pytest.approx(1.0, abs=0.03) for share in busy)


@pytest.mark.parametrize("workers", [0, 4])
def test_sandboxes_without_an_episode_cost_the_process_that_has_them(workers: int) -> None:
    design = Design(sandboxes=100, episodes_at_once=20, workers=workers)
    found = simulate(design, replace(FREE, idle_s=0.002))
    idle = 0.002 * (100 - found.in_sandboxes)
    assert found.in_sandboxes == pytest.approx(20, rel=0.05)
    shares = found.workers or [found.controller]
    assert shares == [pytest.approx(idle / max(1, workers), rel=0.01)] * max(1, workers)


def test_a_crowded_engine_is_slower_and_more_replicas_are_not() -> None:
    crowded = LatencyModel(step_s=0.02, step_s_per_request=0.002)
    one, four = (
        simulate(Design(sandboxes=80, episodes_at_once=80, replicas=replicas), FREE, crowded) for replicas in (1, 4)
    )
    assert one.engine_slowdown > 2 * four.engine_slowdown > 2.0 and four.episodes_per_s > 2 * one.episodes_per_s


def test_an_iteration_ends_with_whole_groups() -> None:
    design = Design(sandboxes=50, episodes_at_once=50, group_size=6)
    found = Simulation(design, Costs(), LatencyModel(), TURNS).run(episodes=144, filled=True)
    assert (found.episodes, found.groups) == (144, 24)
    assert found.turns == sum(TURNS[:144])


def test_fresh_sandboxes_are_limited_by_creates_of_all_accounts() -> None:
    planner = Planner(Costs(), LatencyModel(), TURNS)
    for accounts in (1, 3):
        design = Design(sandboxes=900, episodes_at_once=900, accounts=accounts, create_limit=60, fresh=True)
        found = planner._fresh(design)
        assert 0.9 * accounts < found.episodes_per_s < 1.1 * accounts  # 60 a minute are one a second


@pytest.mark.slow
def test_rollouts_are_linear_in_workers_until_the_controller_is_full() -> None:
    planner = Planner(Costs(), LatencyModel(), TURNS)
    found = {}
    for workers, direct in ((1, True), (2, True), (4, True), (8, True), (2, False), (8, False)):
        count = 1000 * workers
        design = Design(sandboxes=count, episodes_at_once=count, workers=workers, direct=direct, replicas=2 * workers)
        found[workers, direct] = planner.rollouts(design, count)
    rates = {workers: found[workers, True].episodes_per_s for workers in (1, 2, 4, 8)}
    assert all(rates[workers] >= 0.9 * workers * rates[1] for workers in rates), rates
    assert found[8, True].controller < 0.6 and found[8, True].lag_p99_s < 0.1
    assert found[2, False].controller > 3 * found[2, True].controller, "each turn passes through it"
    assert found[8, False].controller > 0.9


@pytest.mark.slow
def test_one_controller_carries_fifty_thousand_sandboxes() -> None:
    planner = Planner(Costs(), LatencyModel(), TURNS)
    few = Design(sandboxes=1000, episodes_at_once=1000, workers=1, replicas=2)
    one = planner.rollouts(few, few.sandboxes)
    many = Design(sandboxes=50_000, episodes_at_once=50_000, workers=52, replicas=100)
    found = planner.rollouts(many, many.sandboxes)
    assert found.controller < 0.6 and found.lag_p99_s < 0.1
    assert found.episodes_per_s > 0.9 * 50 * one.episodes_per_s
