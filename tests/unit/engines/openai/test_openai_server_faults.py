"""Whose mistake a failure is: the model's own are turns, the server's are faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from fixtures.openai_calls import ask, started
from fixtures.openai_server import Fault, OpenAIServer, calls, error_body, openai_server

from finqa_cli.errors import EngineError
from finqa_cli.types import ToolCall
from finqa_plugins.engines._http import usage
from finqa_plugins.engines._http.http_client import Gate

SUBMIT = ToolCall(name="submit_answer", arguments={"answer": "5"})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with openai_server(lambda body: calls((SUBMIT.name, SUBMIT.arguments))) as running:
        yield running


@pytest.mark.parametrize(
    ("status", "body", "written"),
    [
        (500, error_body("Failed to parse input at pos 9: <tool_call>{", code=500, type="server_error"), ""),
        (500, b'{"error": "error parsing tool call: raw=\'{]\', err=invalid character"}', ""),
        (400, error_body("Failed to call a function.", code="tool_use_failed", failed_generation="{\ud800"), "{?"),
        (500, error_body("Failed to parse input at pos 2: maximum context length"), ""),  # words of the model
    ],
)
async def test_a_call_that_the_server_cannot_read_is_a_turn_and_asked_for_once(
    server: OpenAIServer, status: int, body: bytes, written: str
) -> None:
    server.faults = [Fault(times=10, status=status, body=body)]
    async with started(server) as engine:
        turn = await engine.respond(ask("a#0"))
        assert engine.usage("a")["requests"] == engine.usage("a")["unmetered"] == 1
    assert turn.tool_call is None and "cannot be read" in turn.parse_error
    assert (turn.text, turn.stop) == (written, "stop") and len(server.asked) == 1


async def test_without_tools_there_is_no_call_to_be_read(server: OpenAIServer) -> None:
    server.faults = [Fault(times=10, status=500, body=error_body("Failed to parse input at pos 9: x"))]
    async with started(server, max_retries=1) as engine:
        with pytest.raises(EngineError, match="after 2 tries: Failed to parse"):
            await engine.respond(ask(tools=False))


@pytest.mark.parametrize("ending", [{"finish_reason": "error"}, {"finish_reason": "abort"}, {"error": {"code": 502}}])
async def test_a_reply_that_broke_off_is_repeated_and_not_scored(server: OpenAIServer, ending: dict[str, Any]) -> None:
    choice = {"message": {"role": "assistant", "content": "Let me"}, **ending}
    server.faults = [Fault(status=200, body=json.dumps({"choices": [choice]}).encode())]
    async with started(server) as engine:
        assert (await engine.respond(ask())).tool_call == SUBMIT
    assert len(server.asked) == 2


async def test_the_use_of_old_episodes_is_not_kept(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "KEPT_EPISODES", 2)
    with structlog.testing.capture_logs() as logged:
        async with started(server) as engine:
            for key in ("a#0", "b#0", "a#1", "c#0"):
                await engine.respond(ask(key))
            assert [engine.usage(name)["requests"] for name in "abc"] == [2, 0, 1]
    assert [line["requests"] for line in logged if line["event"] == "tokens used in all"] == [4]


async def test_who_leaves_the_queue_leaves_no_gap() -> None:
    gate = Gate(places=10, tokens_per_minute=60)

    async def pass_through(tokens: int) -> None:
        async with gate.place(tokens):
            pass

    began = time.monotonic()
    await pass_through(1)
    waiting = [asyncio.create_task(pass_through(1000)) for _ in range(3)]
    await asyncio.sleep(0.01)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.wait_for(pass_through(1), 30)
    assert time.monotonic() - began > 0.9  # the second of the first token
