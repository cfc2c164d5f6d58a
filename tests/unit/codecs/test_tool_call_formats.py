from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.contracts import CallFormat
from finqa_cli.types import ToolCall
from finqa_plugins.codecs.json_formats import HermesFormat, Llama3JsonFormat
from finqa_plugins.codecs.parsing import parse_turn
from finqa_plugins.codecs.xml_format import XmlFormat

FORMATS: dict[str, CallFormat] = {"hermes": HermesFormat(), "llama3_json": Llama3JsonFormat(), "xml": XmlFormat()}
LLAMA = '{"name": "f", "parameters": {"a": 1}}'
XML = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
TYPES: dict[str, Any] = {
    "f": {
        "properties": {
            "a": {"type": "integer"},
            "n": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "s": {"type": "string"},
        }
    }
}


def parse(name: str, text: str) -> Any:
    return parse_turn(text, FORMATS[name], TYPES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", LLAMA),
        ("llama3_json", "<|python_tag|>" + LLAMA),
        ("llama3_json", f"I look it up.\n{LLAMA}\nand more }}"),
        ("llama3_json", '{"type": "function", "name": "f", "arguments": {"a": 1}}'),
        ("llama3_json", '<think>{"name": "g"}</think>' + LLAMA),
        ("xml", XML),
        ("xml", f"I look it up.\n\n{XML} and more"),
        ("xml", XML.replace("\n", "")),
        ("xml", f"<think>\n{XML}\n</think>\n\n{XML}"),
    ],
)
def test_one_call_is_found(name: str, text: str) -> None:
    turn = parse(name, text)
    assert (turn.tool_call, turn.parse_error, turn.text) == (ToolCall(name="f", arguments={"a": 1}), "", text)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("llama3_json", "42", "No tool call found"),
        ("llama3_json", LLAMA + "; " + LLAMA, "Several tool calls"),
        ("llama3_json", '{"parameters": {}}', 'has no "name"'),
        ("llama3_json", '{"name": "f"}', 'has no "parameters"'),
        ("llama3_json", '{"name": "f", "parameters": []}', '"parameters" must be a JSON object, got a list'),
        ("llama3_json", '{"name": "f", "parameters": {"a": NaN}}', "NaN is not a JSON number"),
        ("llama3_json", '{"name": "f", "parameters": {"a": "\\ud800"}}', "surrogate"),
        ("llama3_json", LLAMA[:-2], "not valid JSON"),
        ("llama3_json", "<think>\n" + LLAMA, "reasoning is not closed"),
        ("llama3_json", '{"a":' * 100_000, "nested too deeply"),
        ("xml", "42", "No tool call found"),
        ("xml", XML + XML, "2 tool calls found"),
        ("xml", XML.removesuffix("</tool_call>"), "</tool_call> is missing"),
        ("xml", "<tool_call></tool_call>", "names no function"),
        ("xml", '<tool_call>{"name": "f"}</tool_call>', "names no function"),
        ("xml", XML.replace("</function>", ""), "</function> is missing"),
        ("xml", XML.replace("</parameter>", ""), "</parameter> is missing"),
        ("xml", XML.replace("<parameter=a>", "a:"), "only parameters may stand"),
        ("xml", XML.replace("</parameter>", "</parameter><parameter=a>2</parameter>"), "'a' is given twice"),
        ("xml", XML.replace("=a>\n1", "=o>\nx"), "'o' must be JSON"),
    ],
)
def test_each_mistake_is_named(name: str, text: str, error: str) -> None:
    turn = parse(name, text)
    assert turn.tool_call is None
    assert error in turn.parse_error


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("a", "-12", -12),
        ("a", "1.5", 1.5),
        ("a", "many", "many"),
        ("a", "9" * 5000, "9" * 5000),
        ("n", "None", None),
        ("n", "1e3", 1000.0),
        ("n", "1e999", "1e999"),
        ("b", "True", True),
        ("b", "false", False),
        ("b", "1", "1"),
        ("o", '{"x": [1]}', {"x": [1]}),
        ("s", "2024", "2024"),
        ("s", "null", "null"),
        (
            "s",
            " two\n\nlines </parameter> or </function> in a value",
            " two\n\nlines </parameter> or </function> in a value",
        ),
        ("unknown", "1", "1"),
    ],
)
def test_xml_values_are_typed_by_the_schema(key: str, text: str, value: object) -> None:
    turn = parse("xml", XML.replace("=a>\n1", f"={key}>\n{text}"))
    assert turn.tool_call is not None, turn.parse_error
    assert repr(turn.tool_call.arguments) == repr({key: value})


def test_a_turn_that_starts_in_reasoning_has_no_call_until_it_is_closed() -> None:
    for name, form in FORMATS.items():
        call = form.render(ToolCall(name="f", arguments={"a": 1}))
        assert "not closed" in parse_turn(call, form, TYPES, reasoning=True).parse_error, name
        assert parse_turn("so\n</think>\n\n" + call, form, TYPES, reasoning=True).tool_call is not None


_tags = st.sampled_from(["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>"])
_text = st.lists(_tags | st.sampled_from(["{", '"name": "f"', "}", "<think>", "</think>", "\n"]) | st.text()).map(
    "".join
)


@given(text=_text)
def test_any_text_gives_a_turn_in_every_format(text: str) -> None:
    for form in FORMATS.values():
        turn = parse_turn(text, form, TYPES)
        assert (turn.tool_call is None) == bool(turn.parse_error)


@pytest.mark.parametrize(
    "piece", ["<parameter=a>", "</parameter>\n", "<parameter=a></parameter>x", "{", '{"a":', " \n"]
)
@pytest.mark.timeout(30)  # a guard against hanging, not a measurement
def test_hostile_texts_are_read_in_linear_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    for form in FORMATS.values():
        parse_turn(f"<tool_call>\n<function=f>\n{text}</function>\n</tool_call>", form, TYPES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": -1e999}}\n</tool_call>'),
        ("llama3_json", '{"name": "f", "parameters": {"a": [1e999]}}'),
        ("xml", XML.replace("=a>\n1\n", "=n>\n1e999\n")),
    ],
)
def test_a_number_that_no_record_could_hold_is_no_call(name: str, text: str) -> None:
    turn = parse(name, text)
    if turn.tool_call is None:
        assert "too large" in turn.parse_error
    else:
        assert turn.tool_call.arguments == {"n": "1e999"}, "xml keeps as a text what is no number"


NESTED = '{"name": "f", "arguments": {"o": %s}}'


@pytest.mark.parametrize("levels", [65, 300, 900, 100_000])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f"<tool_call>{NESTED}</tool_call>"),
        ("llama3_json", NESTED),
        ("xml", XML.replace("parameter=a", "parameter=o").replace("\n1\n", "\n%s\n")),
    ],
)
def test_arguments_are_never_nested_deeper_than_can_be_written_anywhere(name: str, text: str, levels: int) -> None:
    turn = parse(name, text % ("[" * levels + "]" * levels))
    assert turn.tool_call is None and "64 levels" in turn.parse_error
    shallow = parse(name, text % ('{"a":' * 20 + "1" + "}" * 20))
    assert shallow.tool_call is not None and "a" in shallow.tool_call.arguments["o"]


@pytest.mark.parametrize(
    "schema", [{"type": None}, {"type": 5}, {"type": ["string", {}]}, {"anyOf": None}, {"oneOf": {"a": 1}}, True]
)
def test_a_strange_schema_leaves_values_text(schema: Any) -> None:
    turn = parse_turn(XML, FORMATS["xml"], {"f": {"properties": {"a": schema}}})
    assert turn.tool_call == ToolCall(name="f", arguments={"a": "1"})
