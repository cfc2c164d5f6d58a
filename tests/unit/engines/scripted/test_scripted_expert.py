from __future__ import annotations

import json
import sqlite3
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.contracts import ChatEngine, EngineContext
from finqa_cli.data import DataSet, GenerateSpec, Question, Table
from finqa_cli.data.generated import vocabulary as words
from finqa_cli.data.generated.generate import generate, run_query
from finqa_cli.data.snapshots.compile import table_info
from finqa_cli.errors import ConfigError
from finqa_cli.extend import registry
from finqa_cli.types import AssistantTurn, ChatRequest, Message, Sampling, ToolCall, ToolSpec
from finqa_plugins.engines.scripted.scripted_engine import UNKNOWN, ScriptedConfig, ScriptedEngine, next_call
from finqa_plugins.engines.scripted.scripted_sql import Habits, parse_question, rank_tables

TOOLS = (ToolSpec(name="submit_answer", description="", parameters={}),)
SPECS = {
    "numbers": GenerateSpec(companies=25, questions=60, seed=31),
    "text": GenerateSpec(companies=10, questions=60, seed=32, cells="text"),
}


@cache
def dataset_of(cells: str) -> DataSet:
    """Generated when a test asks for it, not when the file is collected: each takes 0.3 s."""
    return generate(SPECS[cells])


def reply(call: ToolCall, tables: list[Table]) -> str:
    by_name = {table.name: table for table in tables}
    arguments = call.arguments
    if call.name == "get_descriptions":
        return json.dumps(sorted(by_name))
    table = by_name[arguments["table_name"]]
    if call.name == "get_table_info":
        return table_info(table)
    try:
        return json.dumps([{"value": run_query(table, arguments["query"])}])
    except (sqlite3.Error, AssertionError) as error:
        return f"Error executing query: {error}"


async def play(engine: ScriptedEngine, question: Question, tables: list[Table], seed: int) -> list[ToolCall]:
    opening = f"Company: {question.company}\nQuestion: {question.user_query}"
    messages = [Message(role="system", content="You are an analyst."), Message(role="user", content=opening)]
    calls: list[ToolCall] = []
    while not calls or calls[-1].name != "submit_answer":
        request = ChatRequest(key="k", messages=tuple(messages), tools=TOOLS, sampling=Sampling(seed=seed))
        turn = await engine.respond(request)
        assert turn.tool_call is not None
        calls.append(turn.tool_call)
        messages.append(Message(role="assistant", content=turn.text, tool_call=turn.tool_call))
        if turn.tool_call.name != "submit_answer":
            messages.append(Message(role="tool", content=reply(turn.tool_call, tables), name=turn.tool_call.name))
        assert len(calls) <= 7
    return calls


def tables_of(dataset: DataSet) -> dict[str, list[Table]]:
    tables: dict[str, list[Table]] = {}
    for table in dataset.tables:
        tables.setdefault(table.company, []).append(table)
    return tables


@pytest.mark.parametrize("cells", list(SPECS))
async def test_the_expert_solves_every_generated_question_in_four_turns(cells: str) -> None:
    dataset = dataset_of(cells)
    engine, tables = ScriptedEngine(None, EngineContext()), tables_of(dataset)
    for seed, question in enumerate(dataset.questions):
        calls = await play(engine, question, tables[question.company], seed)
        assert [call.name for call in calls] == ["get_descriptions", "get_table_info", "sql_query", "submit_answer"]
        assert calls[2].arguments["query"] == question.gold_sql
        assert calls[3].arguments == {"answer": question.answer}


def test_every_generated_wording_is_understood() -> None:
    for question in (*dataset_of("numbers").questions, *dataset_of("text").questions):
        assert parse_question(question.user_query).kind == question.type, question.user_query


def test_every_line_item_leads_to_its_statement_first() -> None:
    names = {kind: name.format(ticker="vlmf") for kind, name in words.TABLE_NAMES.items()}
    for kind, labels in words.STATEMENTS.items():
        for label in (label for synonyms in labels.values() for label in synonyms):
            assert rank_tables(sorted(names.values()), [label.replace("_", " ")], ())[0] == names[kind], label


async def test_habits_come_as_often_as_asked_and_cost_the_answer() -> None:
    config = ScriptedConfig(unquoted_years=0.7, undivided_percentages=0.5)
    numbers = dataset_of("numbers")
    engine, tables = ScriptedEngine(config, EngineContext()), tables_of(numbers)
    seen, right = Counter[str](), Counter[str]()
    for seed, question in enumerate(numbers.questions):
        calls = await play(engine, question, tables[question.company], seed)
        query = str(calls[2].arguments["query"])
        seen["unquoted"] += '"20' not in query
        seen["undivided"] += "* 100.0" in query
        seen["rates"] += question.type in ("growth_rate", "margin")
        assert "* 100.0" not in query or question.type in ("growth_rate", "margin")
        right[question.type] += calls[3].arguments["answer"] == question.answer
        right["all"] += calls[3].arguments["answer"] == question.answer
    assert 0.65 < seen["unquoted"] / len(numbers.questions) < 0.75
    assert 0.4 < seen["undivided"] / seen["rates"] < 0.6
    assert 0.2 < right["all"] / len(numbers.questions) < 0.4


async def test_an_episode_follows_from_its_seed() -> None:
    config = ScriptedConfig(unquoted_years=0.5)
    numbers = dataset_of("numbers")
    tables, question = tables_of(numbers), numbers.questions[0]
    played = [
        [await play(ScriptedEngine(config, EngineContext(seed=1)), question, tables[question.company], seed)]
        for seed in (*range(12), *range(12))
    ]
    assert played[:12] == played[12:] and len({str(calls) for calls in played}) == 2


@given(
    replies=st.lists(
        st.one_of(
            st.text(max_size=30),
            st.sampled_from(
                [
                    "[]",
                    "{}",
                    "null",
                    "[1]",
                    '["t"]',
                    '["a", "b", "c", "d", "e"]',
                    '[{"value": null}]',
                    "[{}]",
                    "Error executing query: no such column",
                    '{"column_dtypes": {"line_item": "object", "2020": "int64"}, '
                    '"unique_vals_per_col": {"line_item": ["net_sales", ""]}}',
                    '{"column_dtypes": {}, "unique_vals_per_col": {}}',
                    "[" * 5000,
                ]
            ),
        ),
        min_size=7,
        max_size=7,
    ),
    opening=st.one_of(
        st.text(max_size=60),
        st.sampled_from(["Company: a\nQuestion: What was net sales in 2020?", "Company: a\nQuestion: why in 2020?"]),
    ),
)
def test_any_replies_end_in_an_answer_within_seven_turns(replies: list[str], opening: str) -> None:
    messages: list[Message] = [Message(role="user", content=opening)]
    names = []
    for text in replies:
        call = next_call(messages, Habits())
        assert all(
            isinstance(value, str) and (value or call.name != "submit_answer") for value in call.arguments.values()
        )
        names.append(call.name)
        if call.name == "submit_answer":
            break
        messages += [Message(role="assistant", content="", tool_call=call)]
        messages += [Message(role="tool", content=text, name=call.name)]
    assert names[-1] == "submit_answer"


async def test_a_question_in_other_words_gets_the_row_that_sounds_like_it() -> None:
    table = Table(
        company="acme",
        name="acme_2008_page_3",
        columns=("line_item", "december_31_2008", "december_31_2007"),
        rows=(("total net revenue", 120, 100), ("fuel's cost", 30, 20)),
    )
    later = Table(company="acme", name="acme_2008_page_4", columns=table.columns, rows=(("cost of total debt", 7, 6),))
    asked = {
        "what was the growth in total net revenue from 2007 to 2008?": "0.2",
        "how large was fuel's cost, in millions, in 2008?": "30",
        "by how much did fuel's cost increase between 2007 and 2008?": "10",
        "why?": UNKNOWN,
    }
    for text, answer in asked.items():
        question = Question(id="q", company="acme", question=text, user_query=text, answer="", split="dev")
        calls = await play(ScriptedEngine(None, EngineContext()), question, [table, later], 0)
        assert calls[-1].arguments["answer"] == answer, text


async def test_without_tools_it_plays_solutions_or_says_that_there_is_none() -> None:
    task = Message(role="user", content="Write double(x).")
    request = ChatRequest(key="k", messages=(task,), tools=(), sampling=Sampling())
    solved = ScriptedEngine(
        None, EngineContext(demonstrate=lambda task, messages: AssistantTurn(text="def double(x): ..."))
    )
    assert (await solved.respond(request)).text == "def double(x): ..."
    with pytest.raises(ConfigError, match=r"none for this task: 'Write double\(x\)\.'"):
        await ScriptedEngine(None, EngineContext(demonstrate=lambda task, messages: None)).respond(request)


def test_it_registers_as_a_chat_engine_and_checks_its_options() -> None:
    engine = registry().create("engine", "scripted", {"unquoted_years": 0.25}, EngineContext())
    assert isinstance(engine, ChatEngine)
    with pytest.raises(ValidationError):
        ScriptedConfig(unquoted_years=1.5)
