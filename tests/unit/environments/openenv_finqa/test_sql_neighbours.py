"""Sessions that send SQL bombs, on a real server: they are graded, and their neighbours hardly notice them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from fixtures.finqa_server import RunningServer
from fixtures.hostile_sql import ATTACKS, BOMBS, TABLE

from finqa_cli.types import Task, ToolCall

SMALL = f"SELECT \"2024\" FROM {TABLE} WHERE line_item = 'total_revenues'"
WITH = f'WITH a AS (SELECT "2024" x FROM {TABLE} WHERE margin > 0.2) SELECT max(x) AS most FROM a'
ANSWERS = {SMALL: '[{"2024":6118}]', WITH: '[{"most":6118}]'}
TASK = Task(id="q1", prompt="What are total revenues in 2024?", split="train", cluster="acme", kind="lookup")


def sql(query: str) -> ToolCall:
    return ToolCall(name="sql_query", arguments={"company_name": "acme", "table_name": TABLE, "query": query})


async def bomb(server: RunningServer, names: list[str], replies: Counter[str]) -> float:
    """Play an episode of bombs and the right answer; return its reward."""
    session = await server.environment().open(TASK, seed=1, sandbox=server)
    try:
        for name in names:
            observation = await session.step(sql(ATTACKS[name]))
            assert observation.is_error and not observation.done, (name, observation)
            replies[observation.text] += 1
        await session.step(ToolCall(name="submit_answer", arguments={"answer": "6118"}))
        return (await session.grade()).total
    finally:
        await session.close()


async def be_honest(server: RunningServer, queries: int) -> None:
    session = await server.environment().open(TASK, seed=1, sandbox=server)
    try:
        for query in itertools.islice(itertools.cycle(ANSWERS), queries):
            assert (await session.step(sql(query))).text == ANSWERS[query]
    finally:
        await session.close()


@pytest.mark.parametrize(
    ("bombers", "honest", "each"),
    [(12, 4, 1), pytest.param(200, 20, 1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
async def test_bombs_are_graded_and_neighbours_are_served_first(
    server: RunningServer, bombers: int, honest: int, each: int
) -> None:
    """All of it begins at once; the honest sessions end when most bombs still run or wait, however slow the machine."""
    names, replies = itertools.cycle(BOMBS), Counter[str]()
    bombing = [asyncio.create_task(bomb(server, list(itertools.islice(names, each)), replies)) for _ in range(bombers)]
    try:
        await asyncio.gather(*(be_honest(server, 10) for _ in range(honest)))
        served = replies.total()
        rewards = await asyncio.gather(*bombing)
    finally:
        for task in bombing:
            task.cancel()
    assert served < bombers * each / 2
    assert rewards == [1.0] * bombers
    assert replies.total() == bombers * each
    assert all(text.startswith("Error executing query: ") for text in replies)
    assert server.log.read_text() == ""
