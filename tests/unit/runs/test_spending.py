"""What a run used, what it will use, and the limits at which it stops."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.handed_on_runs import attempt
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.errors import BudgetReachedError, ConfigError
from finqa_cli.runs.interrupts import Stopper
from finqa_cli.runs.reporter import NullReporter
from finqa_cli.runs.run_folder import RunFolder
from finqa_cli.runs.spending import FIRST_ESTIMATE, SPENT, Meter, find_earlier
from finqa_cli.runs.trajectory_records import trajectory_record
from finqa_cli.settings import Settings, to_public_dict
from finqa_cli.settings.schema import RunSettings
from finqa_cli.types import Trajectory, Turn


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def episode(number: int, *, prompt: int = 70, sampled: int = 30) -> Trajectory:
    turn = Turn(text="", prompt_ids=(1,) * prompt, completion_ids=(1,) * sampled, logprobs=(0.0,) * sampled)
    return replace(attempt(f"q{number}", 0, 1.0), turns=(turn,))


def charged(name: str, tokens: int, cost: float | None) -> Trajectory:
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "cost_usd": cost}
    return replace(attempt(name, 0, 1.0), metadata={"usage": usage})


def test_tokens_stop_a_run_once() -> None:
    reasons: list[str] = []
    meter = Meter(RunSettings(max_tokens=250), gpus=0, stop=reasons.append)
    for number in range(2):
        meter.add(episode(number))
    assert not reasons
    for number in range(2, 5):
        meter.add(episode(number))
    assert reasons == ["300 tokens of --max-tokens 250 are used."]
    assert meter.spending.tokens == 500 and meter.spending.cost_usd is None, "nothing has a price"


def test_a_later_try_of_an_attempt_replaces_the_earlier_ones() -> None:
    meter = Meter(RunSettings(), gpus=0, stop=pytest.fail)
    for tokens, cost in ((100, 0.25), (300, 0.75)):  # the second says what both used
        meter.add(charged("q", tokens, cost))
    meter.add(charged("other", 50, None))
    assert (meter.spending.tokens, meter.spending.cost_usd) == (350, 0.75)


@given(st.integers(1, 5000), st.lists(st.integers(1, 400), min_size=60, max_size=60), st.integers(1, 64))
def test_a_limit_is_passed_by_one_episode_of_the_largest_size(limit: int, sizes: list[int], concurrency: int) -> None:
    stopped: list[str] = []
    meter = Meter(RunSettings(max_tokens=limit), gpus=0, stop=stopped.append)
    largest, running, waiting = max(sizes), [max(sizes)], deque(sizes)  # the first one shows the size
    number = 0
    while running:
        meter.add(charged(f"q{(number := number + 1)}", running.pop(0), None))
        while not stopped and waiting and len(running) < concurrency and meter.admits(len(running)):
            running.append(waiting.popleft())
    assert meter.spending.tokens <= max(limit, largest) + largest


def test_a_limit_of_cost_holds_only_back_what_is_charged() -> None:
    meter = Meter(RunSettings(max_cost=1.0), gpus=0, stop=pytest.fail)
    assert meter.admits(500), "hours are no matter of single episodes"
    meter.check_priced(True, {})
    assert meter.admits(0) and not meter.admits(1), "what an episode costs is not known yet"
    meter.add(charged("q", 10, 0.1))
    assert meter.admits(7) and not meter.admits(10)
    with pytest.raises(ConfigError, match="No part of this run has a price"):
        Meter(RunSettings(max_cost=1.0), gpus=0, stop=pytest.fail).check_priced(False, {})


def test_hours_have_prices() -> None:
    reasons: list[str] = []
    clock = Clock()
    prices = RunSettings(max_cost=10.0, gpu_hour_price=2.0, sandbox_hour_price=0.1)
    meter = Meter(prices, gpus=2, stop=reasons.append, clock=clock)
    clock.now = 3600.0
    meter.add_sandboxes(50, 3600.0)
    assert meter.spending.cost_usd == pytest.approx(2 * 2.0 + 50 * 0.1) and not reasons
    clock.now = 2 * 3600.0
    meter.check()
    assert reasons == ["$13 of --max-cost $10 is spent."]


def test_recorded_attempts_count_from_the_beginning_of_the_run() -> None:
    recorded = [trajectory_record(episode(0)), trajectory_record(charged("q", 40, 0.5))]
    live, resumed = (Meter(RunSettings(), gpus=0, stop=pytest.fail) for _ in range(2))
    live.add(episode(0))
    live.add(charged("q", 40, 0.5))
    resumed.add_recorded(recorded)
    assert resumed.spending == live.spending


def test_the_first_episodes_tell_what_all_will_use(tmp_path: Path) -> None:
    told: list[str] = []
    meter = Meter(RunSettings(max_tokens=10**6), gpus=0, stop=pytest.fail, tell=told.append)
    meter.plan(400, tmp_path / "run", Settings())
    assert len(told) == 1 and "No run beside" in told[0]
    for number in range(FIRST_ESTIMATE + 3):
        meter.add(episode(number))
    assert told[1:] == ["Estimate from the first 8 episodes: 400 episodes use about 40,000 tokens."]


def test_without_limits_and_prices_nothing_is_estimated(tmp_path: Path) -> None:
    meter = Meter(RunSettings(), gpus=4, stop=pytest.fail, tell=pytest.fail)
    meter.plan(400, tmp_path / "run", Settings())
    for number in range(FIRST_ESTIMATE):
        meter.add(episode(number))


def test_an_earlier_run_of_the_same_policy_tells_it_before(tmp_path: Path) -> None:
    public = to_public_dict(Settings())
    other = {**public, "model": {**public["model"], "name": "another"}}
    for name, settings, spent in (
        ("a", public, {"episodes": 10, "tokens": 1_000, "cost_usd": 0.5}),
        ("b", other, {"episodes": 10, "tokens": 9_999, "cost_usd": 0.5}),
        ("c", public, {"episodes": 0, "tokens": 0, "cost_usd": None}),
    ):
        with RunFolder.create(tmp_path / name, command="eval", settings=settings, save_token_ids=False) as folder:
            folder.note(SPENT, spent)
            folder.finish("completed")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text("no JSON")
    found = find_earlier(tmp_path / "run", Settings())
    assert found is not None and found[0] == tmp_path / "a"
    told: list[str] = []
    Meter(RunSettings(max_cost=1.0), gpus=0, stop=pytest.fail, tell=told.append).plan(40, tmp_path / "run", Settings())
    assert told == [f"Estimate from {tmp_path / 'a'}: 40 episodes use about 4,000 tokens and $2."]
    assert json.loads((tmp_path / "a" / "run.json").read_text())[SPENT]["tokens"] == 1_000


def test_a_spent_budget_ends_the_run_with_its_own_code() -> None:
    stopper = Stopper(NullReporter())
    stopper.check()
    stopper.spend_no_more("300 tokens were used, and --max-tokens is 250.")
    assert stopper.requested
    with pytest.raises(BudgetReachedError, match="300 tokens") as raised:
        stopper.check("finqa eval --resume runs/a")
    assert raised.value.exit_code == 75
    assert raised.value.remedy == "finqa eval --resume runs/a with a larger --max-cost or --max-tokens"
