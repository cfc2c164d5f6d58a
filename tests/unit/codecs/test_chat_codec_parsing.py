from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finqa_cli.types import ToolCall
from finqa_plugins.codecs.json_formats import HermesFormat
from finqa_plugins.codecs.parsing import parse_turn, split_reasoning

HERMES = HermesFormat()
GOOD = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "I look it up.\n" + GOOD,
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> and more',
        "<think>\nmaybe <tool_call>{}</tool_call>\n</think>\n\n" + GOOD,
    ],
)
def test_one_call_is_found(text: str) -> None:
    turn = parse_turn(text, HERMES, {})
    assert (turn.tool_call, turn.parse_error, turn.text) == (ToolCall(name="f", arguments={"a": 1}), "", text)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", "is empty"),
        ("{", "not valid JSON: Expecting property name .* at position 1"),
        ('{"name": "f" "arguments": {}}', "Expecting ',' delimiter at position 13"),
        ("[]", "must be a JSON object, got a list"),
        ('{"arguments": {}}', 'has no "name"'),
        ('{"name": 3, "arguments": {}}', "must be a tool's name, got a number"),
        ('{"name": "", "arguments": {}}', "must be a tool's name, got an empty string"),
        ('{"name": "f"}', 'has no "arguments"'),
        ('{"name": "f", "parameters": {}}', 'has no "arguments"'),
        ('{"name": "f", "arguments": null}', "must be a JSON object, got null"),
        ('{"name": "f", "arguments": "{}"}', "must be a JSON object, got a string"),
        ('{"name": "f", "arguments": {"a": NaN}}', "NaN is not a JSON number"),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', "surrogate"),
        ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "a number in it is too long"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_each_mistake_is_named(body: str, error: str) -> None:
    turn = parse_turn(f"<tool_call>\n{body}\n</tool_call>", HERMES, {})
    assert turn.tool_call is None
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(turn.parse_error)


def test_missing_unclosed_and_several_calls() -> None:
    assert parse_turn("42", HERMES, {}).parse_error.startswith("No tool call found.")
    assert "</tool_call> is missing" in parse_turn(GOOD.removesuffix("</tool_call>"), HERMES, {}).parse_error
    assert parse_turn(GOOD + GOOD, HERMES, {}).parse_error.startswith("2 tool calls found.")


@given(st.text() | st.text().map(lambda body: f"<tool_call>{body}</tool_call>"))
def test_any_text_gives_a_turn(text: str) -> None:
    turn = parse_turn(text, HERMES, {})
    assert (turn.tool_call is None) == bool(turn.parse_error)


@given(st.dictionaries(st.text(), st.text().filter(lambda text: "tool_call>" not in text and "think>" not in text)))
def test_rendered_calls_parse_back(arguments: dict[str, str]) -> None:
    if any("tool_call>" in key or "think>" in key for key in arguments):
        return
    call = ToolCall(name="sql_query", arguments=arguments)
    assert parse_turn(HERMES.render(call), HERMES, {}).tool_call == call


@pytest.mark.parametrize(
    ("content", "opened", "parts"),
    [
        ("<think>\n\n  weigh \n</think>\n\n  So: \n", False, ("  weigh ", "  So: \n")),
        ("weigh\n</think>\nSo", True, ("weigh", "So")),
        ("weigh\n</think>\nSo", False, ("", "weigh\n</think>\nSo")),
        ("So, no <think>", True, ("", "So, no <think>")),
    ],
)
def test_reasoning_and_words_lose_the_empty_lines_between_them_and_no_blanks(
    content: str, opened: bool, parts: tuple[str, str]
) -> None:
    assert split_reasoning(content, opened=opened) == parts
