from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from fixtures.openai_calls import OPENING, TOOLS, ask
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from finqa_cli.types import ChatRequest, Message, Sampling, ToolCall, transcribe_calls
from finqa_plugins.engines._http.chat_replies import NOTHING_SAID
from finqa_plugins.engines._http.json_documents import BadReplyError, parse_document
from finqa_plugins.engines._http.usage import Ledger, Usage, read_usage
from finqa_plugins.engines.openai.chat_messages import (
    chat_messages,
    read_reply,
    request_body,
    turn_seed,
)
from finqa_plugins.engines.openai.config import OpenAIEngineConfig

CALL = ToolCall(name="sql_query", arguments={"query": 'SELECT "2021" — ü', "n": 1})


def reply(message: dict[str, Any], finish: str = "stop", **facts: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}], **facts}


def call(arguments: Any, name: Any = "sql_query") -> dict[str, Any]:
    return {"content": None, "tool_calls": [{"id": "x", "function": {"name": name, "arguments": arguments}}]}


def test_a_request_carries_all_that_was_asked_for() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=33, seed=5)
    request = ChatRequest(key="a#0000", messages=OPENING, tools=TOOLS, sampling=sampling)
    body = request_body(request, "m", OpenAIEngineConfig(base_url="http://h/v1", extra_body={"top_k": -1}))
    assert body["tools"] == [TOOLS[0].as_function()] and body["parallel_tool_calls"] is False
    wanted = {"model": "m", "max_tokens": 33, "temperature": 0.7, "top_p": 0.9, "top_k": -1}
    assert wanted.items() <= body.items() and 0 <= body["seed"] < 2**31
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_what_a_model_refuses_can_be_left_out() -> None:
    body = request_body(ask(tools=False), "m", OpenAIEngineConfig(omit=("temperature", "seed")))
    assert not {"temperature", "seed", "tools", "parallel_tool_calls", "max_tokens"} & body.keys()
    assert body["max_completion_tokens"] == 512 and body["top_p"] == 1.0


def test_seeds_differ_by_turn_and_episode_and_nothing_else() -> None:
    assert turn_seed(1, "a/b#0001") == turn_seed(1, "c/d#0001")
    assert len({turn_seed(seed, f"a#{turn:04d}") for seed in range(30) for turn in range(30)}) == 900


def test_a_call_and_its_reply_go_back_as_they_came() -> None:
    spoken = reply({**call(json.dumps(dict(CALL.arguments))), "content": "Let me look.", "reasoning_content": "Hm."})
    turn = read_reply(spoken, tools=True).turn
    assert turn.tool_call == CALL and turn.parse_error == ""
    assert turn.text == f"<think>\nHm.\n</think>\n\nLet me look.\n{transcribe_calls([CALL])}"
    said = Message(role="assistant", content=turn.text, tool_call=turn.tool_call)
    sent = chat_messages((*OPENING, said, Message(role="tool", content="[]", name="sql_query")))
    (made,) = sent[2]["tool_calls"]
    assert sent[2]["content"] == "Let me look." and json.loads(made["function"]["arguments"]) == CALL.arguments
    assert sent[3] == {"role": "tool", "tool_call_id": made["id"], "content": "[]"}
    assert len(made["id"]) == 9 and made["id"].isalnum()


def test_several_calls_go_out_and_back_where_the_session_takes_them() -> None:
    body = request_body(replace(ask(), several_calls=True), "m", OpenAIEngineConfig(base_url="http://h/v1"))
    assert body["parallel_tool_calls"] is True
    first, second = (call(json.dumps({"query": query})) for query in ("SELECT 1", "SELECT 2"))
    spoken = reply({"content": "Both.", "tool_calls": [*first["tool_calls"], *second["tool_calls"]]})
    assert "2 tool calls found" in read_reply(spoken, tools=True).turn.parse_error
    turn = read_reply(spoken, tools=True, several_calls=True).turn
    assert [each.arguments["query"] for each in turn.calls] == ["SELECT 1", "SELECT 2"]
    said = Message(role="assistant", content=turn.text, tool_call=turn.calls[0], further_calls=turn.further_calls)
    replies = [Message(role="tool", content=text, name="sql_query") for text in ("[1]", "[2]")]
    sent = chat_messages((*OPENING, said, *replies, said, *replies))
    names = [made["id"] for message in sent for made in message.get("tool_calls", ())]
    assert sent[2]["content"] == "Both." and len(set(names)) == 4
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == names


def test_thoughts_go_back_only_in_the_field_that_is_named_for_them() -> None:
    spoken = reply({**call("{}"), "content": "So.", "reasoning": "Hm."})
    turn = read_reply(spoken, tools=True).turn
    said = Message(role="assistant", content=turn.text, tool_call=turn.tool_call)
    (silent,), (open_minded,) = chat_messages([said]), chat_messages([said], "reasoning_content")
    assert "Hm." not in json.dumps(silent)
    assert open_minded == {**silent, "reasoning_content": "Hm."} and silent["content"] == "So."
    request = ChatRequest(key="a#0", messages=(*OPENING, said), tools=TOOLS, sampling=Sampling())
    body = request_body(request, "m", OpenAIEngineConfig(thoughts_field="reasoning"))
    assert body["messages"][2]["reasoning"] == "Hm."


def test_an_unreadable_call_is_answered_as_a_user() -> None:
    turns = Message(role="assistant", content=""), Message(role="tool", content="Error: no call.")
    assert chat_messages(turns) == [
        {"role": "assistant", "content": NOTHING_SAID},
        {"role": "user", "content": "Error: no call."},
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1}', ' {"a": 1}', {"a": 1}])
def test_arguments_come_as_text_or_as_an_object(arguments: Any) -> None:
    turn = read_reply(reply(call(arguments)), tools=True).turn
    assert turn.tool_call == ToolCall(name="sql_query", arguments={"a": 1})


@pytest.mark.parametrize("arguments", ["", "{}", None, {}])
def test_a_call_may_have_no_arguments(arguments: Any) -> None:
    assert read_reply(reply(call(arguments)), tools=True).turn.tool_call == ToolCall(name="sql_query", arguments={})


@pytest.mark.parametrize(
    ("message", "finish", "told"),
    [
        (call('{"a": '), "length", "not valid JSON: Expecting value at position 6."),
        (call("[1]"), "stop", "must be a JSON object"),
        (call('{"a": NaN}'), "stop", "NaN is not a JSON number"),
        (call('{"a": 1e999}'), "stop", "number that is not finite."),
        (call('{"a": "\\ud800"}'), "stop", "lone surrogate"),
        (call('{"a":' * 80 + "1" + "}" * 80), "stop", "64 levels"),
        (call("[" * 100_000), "stop", "not valid JSON"),
        (call("{}", name=""), "stop", "no name"),
        (call("{}", name=None), "stop", "no name"),
        ({"tool_calls": ["nonsense"]}, "stop", "no name"),
        ({"tool_calls": call("{}")["tool_calls"] * 2}, "tool_calls", "2 tool calls found. Make exactly one"),
        ({"content": "It is 5."}, "stop", "No tool call found"),
        ({"content": "It is"}, "length", "No tool call found"),
        ({"content": None}, "content_filter", "content filter"),
        ({"content": '<tool_call>{"name": "x</tool_call>'}, "stop", "written as text"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_to_the_model(message: dict[str, Any], finish: str, told: str) -> None:
    turn = read_reply(reply(message, finish), tools=True).turn
    assert turn.tool_call is None and told in turn.parse_error
    assert turn.stop == ("length" if finish == "length" else "stop")


def test_several_calls_stay_in_the_transcript() -> None:
    turn = read_reply(reply({"tool_calls": call('{"a": 1}')["tool_calls"] * 2}), tools=True).turn
    assert turn.text.count('<tool_call>\n{"name": "sql_query", "arguments": {"a": 1}}\n</tool_call>') == 2


def test_a_call_inside_thoughts_is_only_a_thought() -> None:
    found = read_reply(reply({"content": "5", "reasoning": "<tool_call>?"}), tools=True)
    assert not found.written_call and "No tool call" in found.turn.parse_error


def test_without_tools_the_text_is_all() -> None:
    turn = read_reply(reply({"content": [{"type": "text", "text": "5 \ud800"}]}), tools=False).turn
    assert (turn.text, turn.tool_call, turn.parse_error) == ("5 ?", None, "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "content": JSON,
        "reasoning_content": JSON,
        "refusal": JSON,
        "tool_calls": st.lists(
            JSON | st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": JSON, "arguments": JSON})})
        )
        | JSON,
    },
)


@given(st.fixed_dictionaries({}, optional={"choices": st.lists(st.fixed_dictionaries({"message": MESSAGES}) | JSON),
       "usage": JSON}) | st.dictionaries(st.text(), JSON), st.booleans())  # fmt: skip
def test_whatever_a_server_says_is_a_turn_or_nonsense(document: dict[str, Any], tools: bool) -> None:
    try:
        turn = read_reply(document, tools=tools).turn
    except BadReplyError:
        return
    said = Message(role="assistant", content=turn.text, tool_call=turn.tool_call)
    json.dumps(chat_messages((said, Message(role="tool", content="ok"))), allow_nan=False).encode()
    assert turn.tool_call is None or tools
    assert bool(turn.parse_error) == (tools and turn.tool_call is None)


@given(st.binary(max_size=200))
def test_bytes_are_an_object_or_nonsense(data: bytes) -> None:
    try:
        assert isinstance(parse_document(data), dict)
    except BadReplyError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(requests=1, prompt_tokens=9, completion_tokens=2)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 12}},
            Usage(requests=1, prompt_tokens=9, cached_tokens=9, completion_tokens=2),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 2}, Usage(requests=1, unmetered=1)),
        ({"prompt_tokens": 10**400, "completion_tokens": 2}, Usage(requests=1, unmetered=1)),
        ({"prompt_tokens": True, "completion_tokens": 2.0}, Usage(requests=1, unmetered=1)),
        (None, Usage(requests=1, unmetered=1)),
    ],
)
def test_usage_is_read_or_counted_as_missing(usage: Any, wanted: Usage) -> None:
    assert read_usage({"usage": usage}) == wanted


def test_costs_follow_the_price_table() -> None:
    config = OpenAIEngineConfig(prices={"m": {"input": 2, "output": 8, "cached_input": 0.5}})  # type: ignore[dict-item]
    used = Usage(requests=1, prompt_tokens=1000, cached_tokens=400, completion_tokens=100)
    ledger, free = Ledger(config.prices["m"], model="m"), Ledger(None, model="m")
    for episode in ("a#0", "a#1", "b#0"):
        ledger.add(episode, used)
        free.add(episode, used)
    assert ledger.episode("b")["cost_usd"] == pytest.approx((600 * 2 + 400 * 0.5 + 100 * 8) / 1e6)
    assert ledger.episode("a")["cost_usd"] == pytest.approx(2 * ledger.episode("b")["cost_usd"])
    assert ledger.running_total()["requests"] == 3 and ledger.episode("none")["requests"] == 0
    assert free.episode("a")["cost_usd"] is None and free.episode("a")["prompt_tokens"] == 2000


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"base_url": "127.0.0.1:8000/v1"}, "address such as"),
        ({"base_url": "http://h:x/v1"}, "[Pp]ort"),
        ({"base_url": "http://h/v1\n"}, "printable ASCII"),
        ({"base_url": "http://\u2603\ufffe/v1"}, "printable ASCII"),
        ({"base_url": "http://api.openai.com/v1"}, "https"),
        ({"base_url": "http://user:pass@h/v1"}, "key or password"),
        ({"base_url": "http://h/v1?key=1"}, "end with the path"),
        ({"base_url": "http://h/v1/chat/completions/"}, "without /chat/completions"),
        ({"extra_body": {"stream": True, "messages": []}}, "messages, stream"),
        ({"extra_body": {"since": date(2026, 1, 1)}}, "must be JSON"),
        ({"extra_body": {"top_k": float("nan")}}, "must be JSON"),
        ({"prices": {"m": {"input": -1, "output": 0}}}, "greater than or equal to 0"),
        ({"max_concurrent": 0}, "greater than or equal to 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        OpenAIEngineConfig(**options)
