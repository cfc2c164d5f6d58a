"""The `anthropic` engine against a re-creation of the messages API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fixtures.anthropic_server import KEY, AnthropicServer, anthropic_server, calls, says
from fixtures.openai_calls import OPENING, TOOLS
from fixtures.openai_server import Fault
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import EngineContext
from finqa_cli.errors import AuthenticationError, ConfigError, EngineError
from finqa_cli.types import ChatRequest, Message, Sampling, ToolCall
from finqa_plugins.engines._http.json_documents import BadReplyError
from finqa_plugins.engines.anthropic.anthropic_engine import AnthropicEngine
from finqa_plugins.engines.anthropic.anthropic_messages import conversation, read_reply
from finqa_plugins.engines.anthropic.config import AnthropicConfig

SUBMIT = ToolCall(name="submit_answer", arguments={"answer": "5"})


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest.fixture
def server() -> Iterator[AnthropicServer]:
    with anthropic_server(lambda body: calls("submit_answer", {"answer": "5"}, text="So.")) as running:
        yield running


@asynccontextmanager
async def started(server: AnthropicServer, model: str = "claude-sonnet-4-5", **options: Any) -> AsyncIterator[Any]:
    config = AnthropicConfig(**{"base_url": server.url, "backoff_s": 0.01, **options})
    engine = AnthropicEngine(config, EngineContext(model=model, seed=1))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def ask(*more: Message, key: str = "a/0#0000", **facts: Any) -> ChatRequest:
    sampling = Sampling(**{"max_tokens": 100, "temperature": 0.0, **facts})
    return ChatRequest(key=key, messages=(*OPENING, *more), tools=TOOLS, sampling=sampling)


def said(turn: Any, result: str = "Noted.") -> tuple[Message, Message]:
    spoken = Message(role="assistant", content=turn.text, tool_call=turn.tool_call)
    return spoken, Message(role="tool", content=result, name="submit_answer")


async def test_a_conversation_with_calls_is_cached_and_metered(server: AnthropicServer) -> None:
    async with started(server, prices={"claude-sonnet-4-5": {"input": 3, "output": 15, "cached_input": 0.3}}) as engine:
        turn = await engine.respond(ask())
        assert turn.tool_call == SUBMIT and turn.text.startswith("So.")
        again = await engine.respond(ask(*said(turn), key="a/0#0001"))
        assert again.tool_call == SUBMIT
        usage = engine.usage("a/0")
    assert usage["requests"] == 2 and usage["cached_tokens"] > 0 and usage["cost_usd"] > 0
    first, second = server.asked
    assert first["system"][0]["text"] == OPENING[0].content and first["temperature"] == 0.0 and "seed" not in first
    assert first["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert second["messages"][1]["content"][-1]["input"] == {"answer": "5"}


async def test_signed_reasoning_goes_back_unchanged() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "signed"}
    with anthropic_server(lambda body: [thought, *calls("submit_answer", {"answer": "5"})]) as server:
        async with started(server, thinking_tokens=1024) as engine:
            turn = await engine.respond(ask())
            assert "<think>\nHm.\n</think>" in turn.text
            assert (await engine.respond(ask(*said(turn), key="a/0#0001"))).tool_call == SUBMIT
    assert server.asked[0]["max_tokens"] == 1124 and "temperature" not in server.asked[0]


async def test_a_full_context_is_no_fault(server: AnthropicServer) -> None:
    server.context = 400
    async with started(server) as engine:
        turn = await engine.respond(ask())
        assert turn.tool_call == SUBMIT
        short = await engine.respond(ask(*said(turn, "x" * 600), key="a/0#0001"))
        assert short.tool_call == SUBMIT and server.asked[-1]["max_tokens"] < 100, "the reply is limited to the room"
        full = await engine.respond(ask(*said(turn, "x" * 2000), key="a/0#0002"))
        assert full.stop == "full"


def refusal(status: int, kind: str, message: str, times: int = 1) -> Fault:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    return Fault(status=status, body=body, times=times)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (refusal(529, "overloaded_error", "Overloaded"), None),
        (refusal(429, "rate_limit_error", "This request would exceed your rate limit"), None),
        (refusal(500, "api_error", "Internal server error"), None),
        (refusal(400, "invalid_request_error", "`temperature` is deprecated for this model."), None),
        (refusal(401, "authentication_error", "invalid x-api-key"), AuthenticationError),
        (refusal(404, "not_found_error", "model: claude-none"), ConfigError),
        (refusal(400, "invalid_request_error", "Your credit balance is too low"), Exception),
        (refusal(400, "invalid_request_error", "something new", times=9), EngineError),
    ],
)
async def test_refusals(server: AnthropicServer, fault: Fault, error: type[Exception] | None) -> None:
    server.faults = [fault]
    async with started(server) as engine:
        if error is None:
            assert (await engine.respond(ask())).tool_call == SUBMIT
        else:
            with pytest.raises(error):
                await engine.respond(ask())


async def test_the_key_goes_to_anthropic_only(server: AnthropicServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong-key-of-mine")
    with pytest.raises(AuthenticationError, match="rejected"):
        async with started(server):
            pass


BLOCKS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "tool_use", "thinking", "other"])},
        optional={name: st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.integers())
                  for name in ("text", "name", "input", "thinking", "id")},
    )
)  # fmt: skip


@given(BLOCKS, st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.integers()), st.booleans())
def test_any_content_is_a_turn_that_can_be_sent_back(content: list[dict[str, Any]], usage: Any, tools: bool) -> None:
    document = {"type": "message", "content": content, "usage": usage}
    turn = read_reply(document, tools=tools).turn
    sent = conversation([*OPENING, *said(turn)], {})
    json.dumps(sent, allow_nan=False).encode()
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert all(block.get("text") != "" for message in sent for block in message["content"])


@given(st.dictionaries(st.text(), st.none() | st.text() | st.integers()))
def test_other_documents_are_faults_of_the_server(document: Mapping[str, Any]) -> None:
    with pytest.raises(BadReplyError):
        read_reply(document, tools=True)


def test_several_results_are_one_message() -> None:
    both = Message(role="assistant", content="", tool_call=SUBMIT, further_calls=(SUBMIT,))
    results = [Message(role="tool", content=text, name="submit_answer") for text in ("1", "2")]
    *_, message = conversation([*OPENING, both, *results], {})
    assert [block["content"][0]["text"] for block in message["content"]] == ["1", "2"]
    assert says("") and len({block["tool_use_id"] for block in message["content"]}) == 2
