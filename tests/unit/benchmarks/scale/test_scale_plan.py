from __future__ import annotations

import statistics
from dataclasses import replace
from functools import cache

import pytest

from benchmarks.scale.engine_latency import LatencyModel
from benchmarks.scale.plan import Planner, Prices, ScalePlan, draw_turns
from benchmarks.scale.types import Costs, Design

FLAT = LatencyModel(step_s_per_request=0.0)
SMALL = Design(sandboxes=100, episodes_at_once=100)


@cache
def planned(design: Design, *, hours: float = 8.0, latency: LatencyModel = FLAT, **costs: float) -> ScalePlan:
    prices = Prices(sandbox_hour=0.1, gpu_hour=2.0)
    return Planner(Costs(**costs), latency, draw_turns(4.5)).plan(design, hours=hours, prices=prices)


@pytest.mark.parametrize("mean", [1.0, 1.2, 4.5, 12.0])
def test_turns_have_their_mean(mean: float) -> None:
    turns = draw_turns(mean)
    assert statistics.mean(turns) == pytest.approx(mean, rel=0.05) and min(turns) >= 1


@pytest.mark.parametrize(
    ("design", "costs", "limit", "change"),
    [
        (SMALL, {}, "sandboxes", "More sandboxes"),
        (replace(SMALL, episodes_at_once=20), {}, "concurrency", "--max-concurrent-play 100 uses"),
        (SMALL, {"turn_s": 0.2}, "process", "--set cluster.rollout_workers="),
        (replace(SMALL, workers=2), {"turn_s": 0.2}, "workers", "--set cluster.rollout_workers="),
        (replace(SMALL, workers=2), {"receive_s": 2.0}, "controller", "--sandboxes"),
        (replace(SMALL, fresh=True, create_limit=10), {}, "creates", "create_limit=20"),
    ],
)
def test_what_limits_is_named_with_what_to_change(
    design: Design, costs: dict[str, float], limit: str, change: str
) -> None:
    plan = planned(design, **costs)
    assert plan.limit == limit and any(change in each for each in plan.changes), plan


def test_an_engine_that_slows_down_limits() -> None:
    plan = planned(SMALL, latency=LatencyModel(step_s_per_request=0.01))
    assert plan.limit == "engine" and plan.changes[0].startswith("--engine-replicas 100,")


def test_long_filling_limits_a_short_run() -> None:
    design = replace(SMALL, create_limit=10)
    assert planned(design, hours=0.5).limit == "creates" and planned(design, hours=8).limit == "sandboxes"


def test_sandboxes_that_one_process_carries_are_carried() -> None:
    found = planned(SMALL, turn_s=0.2)
    carried = int(found.changes[0].split()[1])
    smaller = planned(replace(SMALL, sandboxes=carried, episodes_at_once=carried), turn_s=0.2)
    assert smaller.limit == "sandboxes" and smaller.full.controller == pytest.approx(0.6, abs=0.1)
    workers = int(found.changes[1].removeprefix("--set cluster.rollout_workers=").partition(":")[0])
    more = planned(replace(SMALL, workers=workers), turn_s=0.2)
    assert more.limit == "sandboxes" and max(more.full.workers) < 0.8


def test_hours_count_from_the_first_start() -> None:
    design = replace(SMALL, create_limit=10)
    plan = planned(design)
    assert plan.fill_s is not None and 540 < plan.fill_s < 560
    steady = plan.full.episodes_per_s * 8 * 3600
    assert 0.98 * steady < plan.episodes < 0.995 * steady and plan.groups == plan.episodes // 6
    assert 790 < plan.sandbox_hours < 796 and plan.gpu_hours == 16
    assert plan.cost_usd == pytest.approx(0.1 * plan.sandbox_hours + 32)
    before_it_is_full = planned(design, hours=0.05)
    assert 0 < before_it_is_full.episodes < 0.5 * plan.full.episodes_per_s * 180


def test_a_design_that_is_not_built_says_so() -> None:
    assert planned(SMALL).not_built == ()
    assert planned(replace(SMALL, workers=2)).not_built == ()
    assert planned(replace(SMALL, accounts=2)).not_built == ("several accounts in one run",)
