"""Contract of chat engines: a turn for any conversation, many requests at once, and an EngineError after closing.

The fixture `make` creates an engine that is not started. `question` can be replaced for an engine that answers only
certain conversations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from finqa_cli.contracts import ChatEngine
from finqa_cli.errors import ConfigError, EngineError
from finqa_cli.types import AssistantTurn, ChatRequest, Message, Sampling, ToolCall, ToolSpec

Make = Callable[[], ChatEngine]
LOOK_UP = ToolSpec(
    name="look_up",
    description="Number of an item in stock.",
    parameters={"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
)


@pytest.fixture
def question() -> ChatRequest:
    """Returns a conversation in which the next turn is the engine's."""
    messages = (
        Message(role="system", content="You work in a warehouse."),
        Message(role="user", content="How many bolts are in stock?"),
    )
    return ChatRequest(key="train/q/0#0", messages=messages, tools=(LOOK_UP,), sampling=Sampling(max_tokens=64))


@pytest.fixture
async def engine(make: Make) -> AsyncIterator[ChatEngine]:
    """Yields a started engine, and closes it."""
    made = make()
    await made.start()
    yield made
    await made.close()


async def answered(engine: ChatEngine, request: ChatRequest) -> AssistantTurn:
    """Returns the engine's turn; skips the test if a ConfigError says that it has no answer to such questions."""
    try:
        return await engine.respond(request)
    except ConfigError as error:
        pytest.skip(error.message)


def checked(turn: AssistantTurn) -> AssistantTurn:
    """Returns the turn after checking that its parts are consistent."""
    assert turn.text or turn.tool_call, "the turn is empty: neither words nor a call"
    assert turn.tool_call is not None or not turn.further_calls, "there are further calls without a first one"
    assert not (turn.tool_call and turn.parse_error), "a call that was read has no parse error"
    return turn


async def test_a_conversation_gets_a_turn(engine: ChatEngine, question: ChatRequest) -> None:
    """The turn has words, a call, or both."""
    checked(await answered(engine, question))


async def test_a_conversation_with_calls_and_replies_gets_a_turn(engine: ChatEngine, question: ChatRequest) -> None:
    """Earlier turns with a call and its reply are part of the request."""
    call = ToolCall(name="look_up", arguments={"item": "bolts"})
    said = (
        Message(role="assistant", content="I look.", tool_call=call),
        Message(role="tool", name="look_up", content="17"),
    )
    checked(await answered(engine, replace(question, key="train/q/0#1", messages=(*question.messages, *said))))


async def test_one_call_at_most_unless_several_are_taken(engine: ChatEngine, question: ChatRequest) -> None:
    """Without `several_calls` a turn has at most one call, because most sessions take only one."""
    assert not checked(await answered(engine, question)).further_calls


async def test_many_requests_run_concurrently(engine: ChatEngine, question: ChatRequest) -> None:
    """Hundreds of episodes share an engine."""
    requests = [replace(question, key=f"train/{number}/0#0") for number in range(16)]
    turns = await asyncio.wait_for(asyncio.gather(*(answered(engine, request) for request in requests)), 120)
    assert len([checked(turn) for turn in turns]) == 16


async def test_cancellation_does_not_affect_other_requests(engine: ChatEngine, question: ChatRequest) -> None:
    """Every second request is cancelled; the others get a turn."""
    await answered(engine, question)
    requests = [replace(question, key=f"train/{number}/0#0") for number in range(6)]
    tasks = [asyncio.create_task(answered(engine, request)) for request in requests]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)
    assert all(isinstance(result, AssistantTurn) for result in results[1::2]), results[1::2]


async def test_the_usage_of_an_episode_is_json(engine: ChatEngine, question: ChatRequest) -> None:
    """The usage consists of JSON values; an engine that does not count returns an empty mapping."""
    await answered(engine, question)
    usage = engine.usage(question.key.partition("#")[0])
    assert all(isinstance(name, str) for name in usage)
    assert all(isinstance(value, int | float | str | bool | dict | list | None) for value in usage.values()), usage


async def test_start_and_close_are_idempotent(make: Make, question: ChatRequest) -> None:
    """Starting and closing twice has no further effect, and a closed engine raises an EngineError."""
    engine = make()
    await asyncio.gather(engine.start(), engine.start())
    await engine.start()
    checked(await answered(engine, question))
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError):
        await engine.respond(question)
