"""Servers whose words nobody listed: refusals are judged by structure, requests are adapted, replies are read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from fixtures.openai_calls import OPENING, ask, started
from fixtures.openai_server import Fault, OpenAIServer, calls, error_body, openai_server, says

from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import ChatRequest, Message, Sampling, ToolCall
from finqa_plugins.engines._http.json_documents import parse_events
from finqa_plugins.engines._http.refusals import Meaning, read_refusal, room_of
from finqa_plugins.engines.openai.chat_messages import read_reply

SUBMIT = ToolCall(name="submit_answer", arguments={"answer": "5"})

UNLISTED = [
    # wordings of a full context that no pattern of the code knows
    (422, "`inputs` + `max_new_tokens` = 3534 > 2048"),
    (422, "validation failed: messages.4"),
    (400, "Trying to keep the first 5000 tokens"),
    (400, "InternalError.Algo.InvalidParameter"),
    (400, "no slot has room for 5000 more"),
    (400, "n_past + n_eval > n_ctx"),
    (400, "conversation buffer overflow"),
    (400, "KV cache of this slot is exhausted"),
    (400, "zu viele Zeichen"),
    (400, ""),
]


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server(lambda body: calls(("submit_answer", {"answer": "5"}))) as running:
        yield running


def longer(key: str, characters: int = 400) -> ChatRequest:
    said = (Message(role="assistant", content="", tool_call=SUBMIT), Message(role="tool", content="x" * characters))
    first = ask(key)
    return ChatRequest(key=key, messages=(*OPENING, *said), tools=first.tools, sampling=Sampling(max_tokens=512))


@pytest.mark.parametrize(("status", "words"), UNLISTED)
async def test_an_unknown_refusal_of_a_longer_prompt_is_a_full_context(
    server: OpenAIServer, status: int, words: str
) -> None:
    assert read_refusal(status, {}, "", {"error": {"message": words}}).meaning is Meaning.OTHER, "a pattern knows it"
    async with started(server) as engine:
        assert (await engine.respond(ask("a#0"))).tool_call == SUBMIT
        server.faults = [Fault(status=status, body=error_body(words), times=9)]
        assert (await engine.respond(longer("a#1"))).stop == "full"
        with pytest.raises(EngineError, match="rejected"):  # nothing of this episode was accepted before
            await engine.respond(longer("b#0"))


async def test_a_prompt_that_fits_gets_a_shorter_reply(server: OpenAIServer) -> None:
    async with started(server) as engine:
        await engine.respond(ask("a#0"))
        server.faults = [Fault(status=400, body=error_body("no room"), times=1)]
        assert (await engine.respond(longer("a#1"))).tool_call == SUBMIT
    assert [body["max_tokens"] for body in server.asked] == [512, 512, 1, 128]


def test_numbers_tell_the_room_whatever_the_words() -> None:
    assert room_of("prompt 3474 plus reply 60 exceed 4096", 60, 3000) == 622
    assert room_of("at most 2,048 tokens, but 3,474 came", 60, 3400) == 2048 - 3474
    assert room_of("no numbers", 60, 3000) is None and room_of("error 4711 of 99 at 17", 60, 3000) is None


async def test_a_run_whose_first_requests_are_all_refused_ends(server: OpenAIServer) -> None:
    server.faults = [Fault(status=400, body=error_body("the messages are strange"), times=99)]
    async with started(server) as engine:
        for number in range(2):
            with pytest.raises(EngineError):
                await engine.respond(ask(f"{number}#0"))
        with pytest.raises(ConfigError, match=r"messages \(system, user\)") as raised:
            await engine.respond(ask("2#0"))
    assert "system_message=fold" in raised.value.remedy and "analyst" not in raised.value.message.split("had:")[1]


def _picky(body: Mapping[str, Any]) -> str:
    roles = [message["role"] for message in body["messages"]]
    if "max_tokens" in body:
        return "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    if "temperature" in body:
        return "Unsupported value: 'temperature' does not support 0.0 with this model."
    if "seed" in body:
        return 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'
    if "system" in roles:
        return "System role not supported"
    if any(first == second == "user" for first, second in itertools.pairwise(roles)):
        return "Conversation roles must alternate user/assistant/user/assistant/..."
    return ""


async def test_requests_are_adapted_to_what_the_answer_names(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Fault | None:
        words = _picky(server.asked[-1])
        return Fault(status=400, body=error_body(words)) if words else None

    monkeypatch.setattr(server, "fault", refuse)
    server.answer = lambda body: says("5")
    messages = (*OPENING, Message(role="user", content="Please."))
    async with started(server) as engine:
        request = ChatRequest(key="a#0", messages=messages, tools=(), sampling=Sampling(temperature=0.0))
        assert (await engine.respond(request)).text == "5"
        assert len(engine.usage("a")["adapted"]) == 5
    body = server.asked[-1]
    assert body["messages"] == [{"role": "user", "content": "You are an analyst.\n\nHow much?\n\nPlease."}]
    assert body["max_completion_tokens"] == 512 and "temperature" not in body


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [{"function": {"name": "submit_answer", "arguments": json.dumps(json.dumps({"answer": "5"}))}}]},
        {"function_call": {"name": "submit_answer", "arguments": '{"answer": "5"}'}},
        {"content": '<tool_call>\n{"name": "submit_answer", "arguments": {"answer": "5"}}\n</tool_call>'},
        {"content": '<think>\nHm.\n</think>\n\n<tool_call>{"name": "submit_answer", "arguments": {"answer": "5"}}'},
        {"tool_calls": [{"function": {"name": "submit_answer<|channel|>commentary", "arguments": {"answer": "5"}}}]},
        {"tool_calls": [{"name": "submit_answer", "arguments": '{"answer": "5"}'}]},
    ],
)
def test_calls_in_other_encodings_are_read(message: dict[str, Any]) -> None:
    turn = read_reply({"choices": [{"message": message, "finish_reason": "stop"}]}, tools=True).turn
    assert turn.tool_call == SUBMIT and not turn.parse_error


async def test_a_server_that_streams_unasked_is_read(server: OpenAIServer) -> None:
    async with started(server, extra_body={}) as engine:
        event = {"choices": [{"index": 0, "delta": {"content": "5"}, "finish_reason": "stop"}]}
        server.faults = [Fault(status=200, body=f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())]
        assert (await engine.respond(ask("a#0", tools=False))).text == "5"
    parts = [
        {"index": 0, "function": {"name": "submit_answer", "arguments": '{"answ'}},
        {"index": 0, "function": {"arguments": 'er": "5"}'}},
    ]
    deltas = [{"choices": [{"delta": {"tool_calls": [part]}, "finish_reason": None}]} for part in parts]
    events = [*deltas, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    assert read_reply(parse_events(data.encode()), tools=True).turn.tool_call == SUBMIT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Rate limit reached. Please try again in 7.66s. Visit ...", 7.66),
        ("Please try again in 450ms.", 0.45),
        ('"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26s"', 26.0),
        ("try again later", None),
    ],
)
def test_waits_are_read_from_the_body(text: str, seconds: float | None) -> None:
    assert read_refusal(429, {}, text, {"error": {"message": text}}).retry_after_s == seconds
