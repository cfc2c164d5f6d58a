from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import EngineContext
from finqa_cli.types import ChatRequest, Message, Sampling, ToolSpec
from finqa_plugins.engines.random_calls.random_engine import RandomConfig, RandomEngine
from finqa_plugins.environments._schemas.random_values import draw_value

TREE = {
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}, "required": ["next"]}},
    "$ref": "#/$defs/Node",
}
SCHEMAS: list[tuple[Any, Any]] = [
    ({"enum": ["UP", "DOWN"]}, lambda value: value in ("UP", "DOWN")),
    ({"const": 3}, lambda value: value == 3),
    ({"type": "boolean"}, lambda value: isinstance(value, bool)),
    ({"type": "integer", "minimum": 2, "maximum": 4}, lambda value: value in (2, 3, 4)),
    ({"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 4}, lambda value: value == 3),
    ({"type": "number", "maximum": -1}, lambda value: value <= -1),
    ({"type": "integer"}, lambda value: isinstance(value, int)),
    ({"type": "string"}, lambda value: value in ("two", "bolts")),
    ({"type": "string", "pattern": "^(reveal|flag)$"}, lambda value: value in ("reveal", "flag")),
    ({"type": "string", "pattern": r"^\\d+$"}, lambda value: value in ("two", "bolts")),
    (
        {"type": "string", "description": "One of 'left' or \"right\"; don't guess."},
        lambda value: value in ("two", "bolts", "left", "right"),
    ),
    ({"type": ["null", "string"]}, lambda value: value is None or isinstance(value, str)),
    ({"anyOf": [{"type": "null"}, {"enum": [1]}]}, lambda value: value in (None, 1)),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, lambda value: 1 <= len(value) <= 2),
    ({"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "required": ["a"]}, lambda value: value["a"] == 1),
    (TREE, lambda value: isinstance(value, dict)),
    (True, lambda value: isinstance(value, str)),
]


@pytest.mark.parametrize(("schema", "holds"), SCHEMAS)
def test_values_fit_their_schema(schema: Any, holds: Any) -> None:
    for seed in range(50):
        value = draw_value(schema, random.Random(seed), "two bolts")
        assert holds(value), value
        assert value == draw_value(schema, random.Random(seed), "two bolts")


@given(properties=st.dictionaries(st.text(max_size=3), st.fixed_dictionaries({"type": st.text(max_size=7)})))
def test_unknown_types_are_texts(properties: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    assert set(draw_value(schema, random.Random(0), "a word")) == set(properties)


async def test_turns_follow_from_conversation_and_seed() -> None:
    tool = ToolSpec(name="count", description="", parameters={"properties": {"item": {"type": "string"}}})
    messages = (Message(role="user", content="How many bolts?"),)

    def request(number: int, tools: tuple[ToolSpec, ...] = (tool,)) -> ChatRequest:
        return ChatRequest(key=f"eval/q/0#{number:04d}", messages=messages, tools=tools, sampling=Sampling(seed=4))

    engine = RandomEngine(None, EngineContext(seed=1))
    turns = [await engine.respond(request(number)) for number in range(20)]
    assert turns == [await RandomEngine(None, EngineContext(seed=1)).respond(request(number)) for number in range(20)]
    calls = [turn.tool_call for turn in turns]
    assert all(call is not None and call.name == "count" for call in calls)
    assert {call.arguments.get("item") for call in calls if call} <= {None, "How", "many", "bolts"}
    assert json.loads(turns[0].text.split("\n")[1])["name"] == "count"
    words = RandomEngine(RandomConfig(plain_words=1.0), EngineContext(seed=1))
    assert [(await words.respond(request(n))).tool_call for n in range(5)] == [None] * 5
    assert (await engine.respond(request(0, ()))).tool_call is None
