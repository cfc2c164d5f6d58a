from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from benchmarks.sandboxes.engine import SimulatedEngine
from benchmarks.sandboxes.policy import MAX_TURNS, Plan, next_tool_call, plan
from benchmarks.scale.engine_latency import LatencyModel
from finqa_cli.types import ChatRequest, Message, Sampling, Task, ToolCall
from finqa_plugins.environments.openenv_finqa.finqa_prompt import TOOL_SPECS, read_prompt

QUICK = LatencyModel(step_s=0.0005, step_s_per_request=0.0)
TASK = Task(id="1", prompt="What was revenue in 2024?", split="test", cluster="acme")
MESSAGES = read_prompt(None).opening(TASK, TOOL_SPECS).messages


def seed_of(wanted: Plan) -> int:
    return next(seed for seed in range(10_000) if plan(seed, MESSAGES[1].content) == wanted)


def request(seed: int, messages: tuple[Message, ...] = MESSAGES) -> ChatRequest:
    return ChatRequest(key=str(seed), messages=messages, tools=TOOL_SPECS, sampling=Sampling(seed=seed))


def calls(seed: int) -> list[ToolCall]:
    """The calls of a whole episode on a server that answers every query with one row."""
    messages, found = MESSAGES, []
    while not found or found[-1].name != "submit_answer":
        call = next_tool_call(messages, seed)
        found.append(call)
        said = Message(role="assistant", content="", tool_call=call)
        reply = {
            "get_descriptions": '["income"]',
            "get_table_info": '{"column_dtypes": {"item": "object", "2024": "int64"},'
            ' "unique_vals_per_col": {"item": ["revenue"]}}',
            "sql_query": '[{"value": 7}]',
        }.get(call.name, "")
        messages = (*messages, said, Message(role="tool", content=reply, name=call.name))
    return found


def test_lengths_have_the_published_mean_and_a_long_tail() -> None:
    turns = [plan(seed, "question").turns for seed in range(20_000)]
    assert statistics.mean(turns) == pytest.approx(4.5, abs=0.1)
    assert max(turns) == MAX_TURNS and 0.01 < sum(turn >= 10 for turn in turns) / len(turns) < 0.05


def test_questions_differ_in_difficulty() -> None:
    shares = [statistics.mean(plan(seed, f"question {number}").right for seed in range(300)) for number in range(20)]
    assert min(shares) < 0.2 and max(shares) > 0.8


@pytest.mark.parametrize("turns", [1, 4, 7])
@pytest.mark.parametrize("right", [True, False])
def test_an_episode_is_as_long_and_as_good_as_its_plan(turns: int, right: bool) -> None:
    made = calls(seed_of(Plan(turns=turns, right=right)))
    assert len(made) == turns
    answer = made[-1].arguments["answer"]
    assert answer == ("7" if right and turns > 1 else "unknown")
    assert [call.name for call in made[2:-1]] == ["sql_query"] * (turns - 3)


async def test_the_engine_answers_when_the_model_says() -> None:
    engine = SimulatedEngine(QUICK)
    await engine.start()
    began = time.perf_counter()
    turns = await asyncio.gather(*(engine.respond(request(seed)) for seed in range(20)))
    took = time.perf_counter() - began
    longest = max(QUICK.steps(seed, 0) for seed in range(20)) * QUICK.step_s
    assert took >= longest
    assert engine.turns == 20 and all(turn.tool_call is not None for turn in turns)
    assert 0.0 < engine.cpu_s < took
    await engine.close()


async def test_a_cancelled_request_frees_its_place_and_harms_no_other() -> None:
    engine = SimulatedEngine(LatencyModel(step_s=0.001, step_s_per_request=0.001))
    await engine.start()
    others = [asyncio.create_task(engine.respond(request(seed))) for seed in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)  # they are under way, and none can be done
    others[0].cancel()
    assert isinstance((await asyncio.gather(*others, return_exceptions=True))[0], asyncio.CancelledError)
    served = engine.request_seconds
    await asyncio.sleep(0.05)
    assert engine.turns == 2 and engine.request_seconds == served
    await engine.close()
